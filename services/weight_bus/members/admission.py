"""What a trainer may publish; what it may not is refused by name and counted."""

from services.observability.log import Log
from services.observability.metrics import BusMetrics
from services.protocol.errors import InvalidInput
from services.protocol.weights.weights import WeightManifest
from services.weight_bus.members.replicas import Replicas
from services.weight_bus.members.trainer_groups import TrainerGroups

log = Log("weight_bus")


def check_publish(
    manifest: WeightManifest,
    group: str | None,
    *,
    known_again: bool,
    replicas: Replicas,
    trainers: TrainerGroups,
) -> None:
    """Refuse a version that must not become the newest; what is served stays as it is.

    Args:
        manifest: the version.
        group: the trainer group that publishes, None: it does not say.
        known_again: the bus has restarted and has no manifest of the newest version yet.
        replicas: who serves what.
        trainers: which group is the current one.

    Raises:
        InvalidInput: another trainer has taken over, the version is not above the newest, or
            it is of another model than the one that is served.
    """
    try:
        trainers.check_publisher(group)
        newest = replicas.newest_version
        is_known_again = known_again and manifest.version == newest
        if newest is not None and manifest.version <= newest and not is_known_again:
            raise InvalidInput(
                "version", manifest.version, f"Version {newest} exists; publish a higher one."
            )
        replicas.check_model(manifest)
    except InvalidInput as refusal:
        BusMetrics.refusals.inc(tags={"what": f"publish_{refusal.field}"})
        log.warning("publish refused", version=manifest.version, why=str(refusal))
        raise
