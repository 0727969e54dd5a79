"""What every client program does: run its checks in turn, and print one JSON line for each.

The programs run in environments of their own, which have no package of Millrace.
"""

import asyncio
import json
import os
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

MODEL = os.environ["MODEL"]
URL = os.environ["OPENAI_BASE_URL"]
KEY = os.environ["OPENAI_API_KEY"]
ROOT = URL.removesuffix("/v1")
ASK = "4 lemon"
ITEMS = ("apple", "lemon", "pen")
MANY = 50
CHECK_S = 120.0

Check = Callable[[], Awaitable[Any]]


def run(*checks: Check) -> None:
    """Run each; one that raises, or takes longer than `CHECK_S`, has failed."""
    asyncio.run(_run(checks))


async def _run(checks: tuple[Check, ...]) -> None:
    for check in checks:
        try:
            await asyncio.wait_for(check(), CHECK_S)
            error = None
        except Exception as failed:  # noqa: BLE001  (each check may fail)
            traceback.print_exc()
            error = f"{type(failed).__name__}: {failed}"[:300]
        print(json.dumps({"check": check.__name__, "error": error}), flush=True)


async def many(call: Callable[[], Awaitable[str]]) -> None:
    """`MANY` calls at once; all are answered."""
    answers = await asyncio.gather(*(call() for _ in range(MANY)))
    assert all(answers), f"{sum(not one for one in answers)} of {MANY} are empty"
