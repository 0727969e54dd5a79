"""The model that a replica was deployed with, and versions that are not of it."""

from dataclasses import dataclass

from services.protocol.weights.weights import WeightManifest

_BY_TOKEN = ("embed_tokens.weight", "lm_head.weight")
"""Ends of the names of tensors that have a row for each token."""


@dataclass(frozen=True, kw_only=True)
class OwnModel:
    """What is known of a replica's model before it has loaded a version.

    Attributes:
        dtype: in which the engine computes, by torch's name.
        vocabulary: tokens of the model.
    """

    dtype: str
    vocabulary: int

    def difference(self, manifest: WeightManifest) -> str | None:
        """Why the engine would not serve what the trainer trains, None if it would."""
        for spec in manifest.tensors:
            if spec.dtype != self.dtype and not spec.is_buffer:
                return (
                    f"{spec.name} is {spec.dtype}, but this replica computes in {self.dtype}; "
                    "rollout_server.dtype must be trainer.dtype"
                )
            if spec.name.endswith(_BY_TOKEN) and spec.shape[0] != self.vocabulary:
                return (
                    f"{spec.name} has {spec.shape[0]} rows, but the model here has "
                    f"{self.vocabulary} tokens; rollout_server.model must be trainer.model"
                )
        return None
