"""An environment with a sandbox; the task's data says what its model does."""

from types import SimpleNamespace
from typing import Any

from services.orchestrator.rollout.sandbox import sandbox


def asked(name: str, arguments: str, number: int = 0) -> Any:
    """A tool call as OpenAI's client has it."""
    function = SimpleNamespace(name=name, arguments=arguments)
    return SimpleNamespace(id=f"call-{number}", type="function", function=function)


def reply(*calls: Any, content: str | None = None) -> Any:
    """A completion that makes calls."""
    fields = {"role": "assistant", "content": content, "tool_calls": None}
    message = SimpleNamespace(
        content=content, tool_calls=list(calls) or None, model_dump=lambda **_: fields
    )
    return SimpleNamespace(choices=[SimpleNamespace(message=message)])


async def rollout(client: Any, task: Any) -> Any:
    await client.chat.completions.create(model="x", messages=task.chat)
    async with sandbox(files={"a.txt": "one"}) as box:
        match task.data["how"]:
            case "uses":
                calls = [asked("python", '{"code": "print(6 * 7)"}'), asked("tell", "{}", 1)]
                said, ran, wrong = await box.call(reply(*calls))
                right = ran == {"role": "tool", "tool_call_id": "call-0", "content": "42"}
                return float(
                    said["role"] == "assistant" and right and "no such" in wrong["content"]
                )
            case "answers":
                (said,) = await box.call(reply(content="7"))
                return float(said["content"] == "7" and len(box.tools) == 4)
            case "graded":
                return await box.grade(tests=[], policy="fraction")
            case "hostile":
                results = [
                    await box.python("\ud800"),
                    await box.python("raise SystemExit"),
                    await box.bash("a\0b"),
                ]
                left = [await box.read("nothing"), await box.read("../x"), await box.read("a.txt")]
                wrote = [await box.write("../x", ""), await box.write("b", "2")]
                ended = all(one.status == "failed" for one in results)
                return float(ended and left == [None, None, "one"] and wrote == [False, True])
            case "full":
                result = await box.python("x = bytearray(10**12)")
                return float(result.status == "memory_limit") + await box.grade(tests=[])
            case "hangs":
                while True:
                    await box.python("x = 1")
            case "fails":
                await box.use("python", {"code": "1"})
    return None
