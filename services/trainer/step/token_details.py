"""The numbers that a train step computed for each token of some trajectories."""

from collections.abc import Collection, Iterator

from torch import Tensor

from services.protocol.trainer import TokenDetail
from services.trainer.step.credit import Prepared


def token_details(
    prepared: Prepared, current: Tensor, wanted: Collection[int]
) -> Iterator[TokenDetail]:
    """The details of a micro-batch, from the forward passes that are made anyway.

    Args:
        prepared: the micro-batch.
        current: its logprobs `[N]`, used where nothing was scored before: in the first minibatch
            those of the weights at the step's start, later of the weights at that time.
        wanted: sample groups that are detailed.
    """
    logprobs = current.detach() if prepared.proximal is None else prepared.proximal
    rows, micro = prepared.rows, prepared.micro
    for place, group_id in enumerate(rows.group_ids.tolist()):
        if group_id not in wanted:
            continue
        own = micro.row == place
        # A token is predicted one place before its own.
        first = int(micro.rows.ends[place]) + int(rows.tokens.prompt[place]) - 1
        yield TokenDetail(
            group_id=group_id,
            index=int(rows.indexes[place]),
            places=tuple((micro.position[own] - first).tolist()),
            logprobs=tuple(logprobs[own].tolist()),
            advantages=tuple(prepared.micro.advantage[own].tolist()),
        )
