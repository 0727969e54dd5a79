"""Policy-version spans on every streamed chunk: a patch of vLLM's output processor.

vLLM tracks which weight version sampled which token, but attaches the spans only to the
last output of a request. A router that continues a request elsewhere after a replica died
never sees that one, so every output must carry the spans of all tokens so far.
"""

from typing import Any

from vllm.v1.engine.output_processor import RequestState

_PATCHED = "_millrace_spans_on_every_output"


def put_spans_on_every_output() -> None:
    """Patch vLLM in this process; calling it again does nothing."""
    if getattr(RequestState, _PATCHED, False):
        return
    original = RequestState._new_completion_output

    def with_spans(self: RequestState, *args: Any, **kwargs: Any) -> Any:
        output = original(self, *args, **kwargs)
        output.weight_versions = self._weight_version_spans()
        return output

    RequestState._new_completion_output = with_spans  # type: ignore[method-assign]
    setattr(RequestState, _PATCHED, True)
