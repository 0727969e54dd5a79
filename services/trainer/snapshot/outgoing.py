"""What of the model travels: its parameters, those with the adapter merged, or the adapter."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor
from torch.distributed.tensor import DTensor

from services.protocol.weights.weights import Adapter
from services.trainer.config import LoraConfig
from services.trainer.model.lora import ADAPTER_PARAMETERS, PEFT_PREFIX, LoraLinear, lora_layers
from services.trainer.model.model import Policy


@dataclass(frozen=True, kw_only=True)
class OutgoingTensor:
    """One tensor of a version.

    Attributes:
        name: in the checkpoint, or in the PEFT format.
        parameter: has its shape, and lies on the ranks as it does.
        merged: the layer whose difference is to be added; None: nothing is.
    """

    name: str
    parameter: DTensor
    merged: LoraLinear | None = None

    def shard(self) -> Tensor:
        """This rank's part, on its device. Collective where a difference is added."""
        if self.merged is not None:
            return self.merged.merged_shard()
        return self.parameter.to_local().detach()


def describe_adapter(config: LoraConfig | None, base: str | None) -> Adapter | None:
    """What is to be said of an adapter that travels; None where the model does."""
    if config is None or base is None or config.push != "adapter":
        return None
    return Adapter(rank=config.rank, alpha=config.alpha, base=base)


def outgoing(policy: Policy, config: LoraConfig | None) -> list[OutgoingTensor]:
    """The tensors of a version, in the order in which they travel."""
    if config is not None and config.push == "adapter":
        return list(_adapter(policy))
    layers = dict(lora_layers(policy.causal))
    return [
        OutgoingTensor(name=name, parameter=parameter, merged=_merged(name, layers))
        for name, parameter in policy.checkpoint_parameters()
    ]


def _merged(name: str, layers: dict[str, LoraLinear]) -> LoraLinear | None:
    layer, _, kind = name.rpartition(".")
    return layers.get(layer) if kind == "weight" else None


def _adapter(policy: Policy) -> Iterator[OutgoingTensor]:
    for name, layer in lora_layers(policy.causal):
        for kind in ADAPTER_PARAMETERS:
            parameter = getattr(layer, kind)
            assert isinstance(parameter, DTensor), f"{name} is not sharded"
            yield OutgoingTensor(name=f"{PEFT_PREFIX}{name}.{kind}.weight", parameter=parameter)
