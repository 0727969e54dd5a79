"""The receiver of spans as tests see it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Spans = list[dict[str, Any]]


@dataclass(frozen=True)
class Collector:
    """A receiver in another process; it has stored what it has answered."""

    endpoint: str
    file: Path

    def spans(self, **wanted: Any) -> Spans:
        """Those whose fields are as wanted, in the order in which they began."""
        text = self.file.read_text() if self.file.exists() else ""
        spans = [json.loads(line) for line in text.split("\n")[:-1]]
        found = [one for one in spans if all(one[key] == value for key, value in wanted.items())]
        return sorted(found, key=lambda one: one["began"])

    def span(self, **wanted: Any) -> dict[str, Any]:
        found = self.spans(**wanted)
        assert len(found) == 1, (wanted, found or self.spans())
        return found[0]


@contextmanager
def receiving(folder: Path) -> Iterator[Collector]:
    file = folder / "spans.jsonl"
    script = Path(__file__).with_name("otlp_receiver.py")
    command = [sys.executable, str(script), str(file)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        try:
            yield Collector(f"http://127.0.0.1:{port}", file)
        finally:
            process.kill()
