"""Where Ray puts the ranks of a group."""

import asyncio
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from services.protocol.errors import NotReady
from services.trainer.config import TrainerConfig
from services.warm_workers import Stage, warmed


class RankPlacement:
    """Resources for all ranks, reserved at once where `ranks_per_node` says how many share a node.

    So many ranks in a row are then on one node, which is what `model_copies` counts on, and no
    two trainers can each hold half of the GPUs that one needs.
    """

    def __init__(self, config: TrainerConfig, group: PlacementGroup | None) -> None:
        self._config, self._group = config, group

    @classmethod
    async def reserve(cls, config: TrainerConfig) -> "RankPlacement":
        """Wait for the resources.

        Raises:
            NotReady: nodes do not have them within `start_timeout_s`.
        """
        if config.ranks_per_node is None:
            return cls(config, None)
        bundles = list(config.rank_bundles)
        group = placement_group(bundles, strategy="PACK")
        try:
            async with asyncio.timeout(config.start_timeout_s):
                await group.ready()
        except BaseException as error:
            remove_placement_group(group)
            if not isinstance(error, TimeoutError):
                raise
            raise NotReady(
                f"no resources for the trainer's ranks in {config.start_timeout_s:g} s: "
                f"{len(bundles)} x {bundles[0]}, each on one node"
            ) from None
        return cls(config, group)

    def options(self, rank: int) -> dict[str, Any]:
        """Ray options of a rank."""
        config = self._config
        asked: dict[str, Any] = {"num_cpus": config.rank_num_cpus, "num_gpus": config.gpus_per_rank}
        asked |= warmed(Stage.TRAINER)
        if self._group is None:
            return asked | {"resources": config.rank_resources}
        assert config.ranks_per_node is not None
        return asked | {
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self._group,
                placement_group_bundle_index=rank // config.ranks_per_node,
            )
        }

    def release(self) -> None:
        """Release the resources; safe to call again."""
        group, self._group = self._group, None
        if group is not None and ray.is_initialized():
            remove_placement_group(group)
