"""DAPO's penalty on long answers; its clip is in `clip`, its sum in `aggregation`."""


def overlong_penalty(length: int, limit: int, buffer: int) -> float:
    """0 up to `limit - buffer` sampled tokens, then falling in a line to -1 at `limit` and beyond.

    Soft overlong punishment, arXiv 2503.14476, equation 13; added to the reward before
    advantages are taken. The paper's limit is 20480 tokens, its buffer 4096.

    Args:
        length: tokens that the policy sampled.
        limit: the longest answer that is not fully punished.
        buffer: length of the line.
    """
    if length <= limit - buffer:
        return 0.0
    if length <= limit:
        return ((limit - buffer) - length) / buffer
    return -1.0
