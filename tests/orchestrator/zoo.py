"""An environment that behaves in every way that one can; the task's data says how."""

import asyncio
import os
import sys
import time
from typing import Any


async def ask(client: Any, task: Any, text: str = "") -> str:
    message = {"role": "user", "content": text or task.messages[-1].content}
    answer = await client.chat.completions.create(
        model="whatever", messages=[message], temperature=0.01, max_completion_tokens=5
    )
    return answer.choices[0].message.content


async def rollout(client: Any, task: Any) -> Any:
    print("an environment may print")
    how = task.data.get("how", "two_turns")
    if how == "never_calls":
        return 1.0
    if how == "refused":
        await ask(client, task, "fail")
    answer = await ask(client, task)
    match how:
        case "two_turns":
            return float(answer == "good" and await ask(client, task, "again") == "good")
        case "graded":
            return f"{answer} enough"
        case "raises":
            raise LookupError("the tool broke")
        case "exits":
            sys.exit("enough")
        case "dies":
            os._exit(3)
        case "blocks":
            time.sleep(60)  # noqa: ASYNC251
        case "sleeps":
            await asyncio.sleep(60)
        case "clings":
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    continue
        case "nonsense":
            return {"reward": "much"}
        case "by_turn":
            return [0.25, float(await ask(client, task, "again") == "good")]
        case "of_other_turns":
            return [0.25, 1.0]
        case "nan":
            return float("nan")
    return None
