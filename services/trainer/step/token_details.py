"""The numbers that a train step computed for each token of some trajectories."""

from collections.abc import Collection, Iterator, Sequence

from torch import Tensor

from services.protocol.trainer import TokenDetail
from services.trainer.batch.batching import Row
from services.trainer.step.credit import Prepared


def token_details(
    prepared: Prepared, current: Tensor, rows: Sequence[Row], wanted: Collection[int]
) -> Iterator[TokenDetail]:
    """The details of a micro-batch, from the forward passes that are made anyway.

    Args:
        prepared: the micro-batch.
        current: its logprobs `[N]`, used where nothing was scored before: in the first minibatch
            those of the weights at the step's start, later of the weights at that time.
        rows: of the batch.
        wanted: sample groups that are detailed.
    """
    logprobs = current.detach() if prepared.proximal is None else prepared.proximal
    for place, number in enumerate(prepared.rows):
        row = rows[number]
        if row.group_id not in wanted:
            continue
        own = prepared.micro.row == place
        yield TokenDetail(
            group_id=row.group_id,
            index=row.index,
            places=tuple(i for i, keep in enumerate(row.trajectory.loss_mask) if keep),
            logprobs=tuple(logprobs[own].tolist()),
            advantages=tuple(prepared.micro.advantage[own].tolist()),
        )
