"""An OpenEnv server of the package `openenv-core`, on a port: its first argument.

A number below ten is drawn by the seed; each wrong guess costs a tenth. The guess 99 ends the
server's process. With a second argument `generous` every episode begins with a reward.
"""

import os
import sys
from random import Random
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    number: int


class Hint(Observation):
    text: str


class Guessing(Environment):
    def reset(self, seed: Any = None, episode_id: Any = None, **_: Any) -> Hint:
        self._number, self._steps = Random(seed).randrange(10), 0
        return Hint(text="guess", reward=1.0 if "generous" in sys.argv else None)

    def step(self, action: Guess, timeout_s: Any = None, **_: Any) -> Hint:
        self._steps += 1
        if action.number == 99:
            os._exit(1)
        if action.number == self._number:
            return Hint(text="right", reward=1.0, done=True)
        said = "higher" if self._number > action.number else "lower"
        return Hint(text=said, reward=-0.1)

    @property
    def state(self) -> State:
        return State(episode_id="the one", step_count=self._steps)


if __name__ == "__main__":
    app = create_fastapi_app(Guessing, Guess, Hint)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
