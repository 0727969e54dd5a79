"""What a train step computed for each token of the trajectories that somebody wants to see."""

from collections.abc import Collection, Sequence

from torch import Tensor

from services.protocol.trainer import TokenDetail
from services.trainer.batch.batching import Row
from services.trainer.step.credit import Prepared


class TokenDetails:
    """Gathers them on one rank, from the forward passes that are made anyway.

    Args:
        rows: of the batch.
        wanted: sample groups to keep.
    """

    def __init__(self, rows: Sequence[Row], wanted: Collection[int]) -> None:
        self._rows, self._wanted = rows, frozenset(wanted)
        self._found: list[TokenDetail] = []

    @property
    def found(self) -> tuple[TokenDetail, ...]:
        """Of this rank's rows."""
        return tuple(self._found)

    def add(self, prepared: Prepared, current: Tensor) -> None:
        """Take a micro-batch; `current` are its logprobs `[N]` where nothing was scored before.

        Those are of the weights at the step's start in the first minibatch, and later ones of
        the weights as they are by then.
        """
        logprobs = current.detach() if prepared.proximal is None else prepared.proximal
        for place, number in enumerate(prepared.rows):
            row = self._rows[number]
            if row.group_id not in self._wanted:
                continue
            own = prepared.micro.row == place
            trained = [i for i, keep in enumerate(row.trajectory.loss_mask) if keep]
            self._found.append(
                TokenDetail(
                    group_id=row.group_id,
                    index=row.index,
                    places=tuple(trained),
                    logprobs=tuple(logprobs[own].tolist()),
                    advantages=tuple(prepared.micro.advantage[own].tolist()),
                )
            )
