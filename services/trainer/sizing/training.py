"""What is to be trained, with the quantities that the terms of the sizing share."""

from dataclasses import dataclass, field
from math import ceil

from services.protocol.run.algorithm import AlgorithmConfig
from services.trainer.config import TrainerConfig
from services.trainer.sizing.shape import ModelShape

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, kw_only=True)
class Training:
    """A model, how ranks hold it, and what a run asks for besides.

    Attributes:
        shape: of the model, whose parameters can be counted.
        trainer: the ranks.
        algorithm: of the run, which may need a KL reference and a critic.
        longest_row: in tokens, where it is known; a row that is longer than a micro-batch gets a
            pass of its own.
    """

    shape: ModelShape
    trainer: TrainerConfig
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    longest_row: int = 0

    @property
    def parameters(self) -> int:
        """Of the model."""
        assert self.shape.parameters is not None
        return self.shape.parameters

    @property
    def adapter(self) -> int:
        """Parameters of the LoRA adapter, 0 without one."""
        lora = self.trainer.lora
        return 0 if lora is None else self.shape.adapter_parameters(lora.rank)

    @property
    def trained(self) -> int:
        """Parameters that an update changes."""
        return self.adapter if self.trainer.lora is not None else self.parameters

    @property
    def shards(self) -> int:
        """Ranks that divide one copy of the model."""
        return self.trainer.shards

    @property
    def itemsize(self) -> int:
        """Bytes of an element in forward and backward passes."""
        return ITEMSIZE[self.trainer.dtype]

    @property
    def tokens(self) -> int:
        """Tokens of the largest pass on one rank: `context_parallel` ranks share them."""
        most = max(self.trainer.micro_batch_tokens, self.longest_row)
        return ceil(most / self.trainer.context_parallel)

    @property
    def has_reference(self) -> bool:
        """Whether a KL reference is a model of its own: under an adapter it is the policy's."""
        return self.algorithm.kl.coefficient > 0 and self.trainer.lora is None

    @property
    def critic_parameters(self) -> int:
        """Of the critic, whose output layer has one row; 0 without one."""
        if not self.algorithm.has_critic:
            return 0
        return self.parameters - (
            0 if self.shape.tied else self.shape.vocabulary * self.shape.hidden
        )
