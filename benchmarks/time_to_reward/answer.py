"""One answer to a tiny_code task, run and judged; as a program, in a process with limits.

It imports little, since each answer may start it anew.
"""

import ast
import json
import resource
import signal
import sys

TEMPLATE = "def f(a, b, c):\n    {completion}"
CPU_S = 1
MEMORY_BYTES = 256 << 20
_BUILTINS = {"max": max, "min": min, "abs": abs}
_COSTLY = (ast.Pow, ast.LShift)  # no right answer needs these, and no signal ends them


def passes(completion: str, tests: str) -> bool:
    """Run one answer here, against calls in JSON."""
    calls = json.loads(tests)
    before = signal.signal(signal.SIGALRM, _late)
    try:
        tree = ast.parse(TEMPLATE.format(completion=completion))
        if any(isinstance(node, _COSTLY) for node in ast.walk(tree)):
            return False
        names: dict[str, object] = {"__builtins__": _BUILTINS}
        signal.setitimer(signal.ITIMER_REAL, CPU_S)
        exec(compile(tree, "answer", "exec"), names)
        function = names["f"]
        found = [function(*call["args"]) for call in calls]  # type: ignore[operator]
    except Exception:  # noqa: BLE001  (whatever an answer raises, it is wrong)
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    wanted = [call["expected"] for call in calls]
    return all(type(a) is type(b) and a == b for a, b in zip(found, wanted, strict=True))


def _late(_: int, __: object) -> None:
    raise TimeoutError


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    print("passed" if passes(*json.loads(sys.stdin.read())) else "wrong")
