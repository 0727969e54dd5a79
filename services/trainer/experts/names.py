"""The names of a parameter's tensors in a Hugging Face checkpoint.

Transformers keeps the experts of a layer in one parameter, but writes and reads checkpoints
with a tensor for each. An inference engine knows the checkpoint's names. The parts lie one
after another in the merged parameter, so only names and shapes change, and no byte moves.
"""

from collections.abc import Sequence
from typing import Any

from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from services.protocol.errors import InvalidInput

_MERGED = (("MergeModulelist", 0),)
_MERGED_AND_JOINED = (("MergeModulelist", 0), ("Concatenate", 1))

Part = tuple[str, tuple[int, ...]]
"""Checkpoint name and shape."""


class CheckpointNames:
    """The checkpoint names of one model type's parameters."""

    def __init__(self, model_type: str) -> None:
        self._model_type = model_type
        known = get_checkpoint_conversion_mapping(model_type)  # type: ignore[no-untyped-call]
        self._converters: Sequence[Any] = known or ()

    def parts(self, name: str, shape: tuple[int, ...]) -> list[Part]:
        """The checkpoint's tensors that lie in a parameter, in the order of its bytes.

        Raises:
            InvalidInput: the parameter is made from its checkpoint in a way that is not
                known here.
        """
        parts = [(name, shape)]
        for converter in self._converters:
            operations = getattr(converter, "operations", None) or ()
            if operations and converter.target_patterns[0] in name:
                parts = self._split(name, shape, converter)
        return [(self._rename(part), its_shape) for part, its_shape in parts]

    def is_stack(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether the checkpoint has tensors of their own for each index of the first dimension,
        as for each expert: then ranks may hold rows of all of them."""
        try:
            parts = self.parts(name, shape)
        except InvalidInput:
            return False
        return len(shape) > 1 and len(parts) >= shape[0] > 1

    def _split(self, name: str, shape: tuple[int, ...], converter: Any) -> list[Part]:
        done = tuple(
            (type(one).__name__, getattr(one, "dim", None)) for one in converter.operations
        )
        sources, target = converter.source_patterns, converter.target_patterns[0]
        known = done == _MERGED_AND_JOINED or (done == _MERGED and len(sources) == 1)
        if not known or len(converter.target_patterns) != 1:
            raise InvalidInput(
                "trainer.model",
                self._model_type,
                f"Its parameter {name} is made from the checkpoint by {[one for one, _ in done]}, "
                "which cannot be undone here yet; use another model.",
            )
        count, rows = shape[0], shape[1] // len(sources)
        return [
            (name.replace(target, source.replace("*", str(index))), (rows, *shape[2:]))
            for index in range(count)
            for source in sources
        ]

    def _rename(self, name: str) -> str:
        for converter in self._converters:
            if getattr(converter, "operations", None):
                continue
            for source, target in zip(
                converter.source_patterns, converter.target_patterns, strict=True
            ):
                name = name.replace(target, source)
        return name
