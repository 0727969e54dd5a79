"""How a program of a language with a runtime is started, in the terms of a slot."""

from dataclasses import dataclass, replace

from services.protocol.reward.code_tests import Limits
from services.reward_service.jailed.orders import Order
from services.reward_service.jailed.zygote import CODE_FD
from services.reward_service.languages.language import Runtime
from services.reward_service.languages.tool import Tool


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A runtime with what it has in the jails of this machine.

    Attributes:
        language: its name, under which slots have prepared it.
        runtime: of the language.
        tool: the interpreter as jails have it; None: the program is an executable.
        folder: of the toolchain's header, as jails have it; empty if there is none.
    """

    language: str
    runtime: Runtime
    tool: Tool | None
    folder: str

    def applied(self, order: Order, limits: Limits) -> Order:
        """An order with the arguments, environment and memory of a run under a test's limits."""
        values = {
            "{program}": str(CODE_FD),
            "{memory_mb}": str(limits.memory_mb),
            "{folder}": self.folder,
            "{home}": "" if self.tool is None else self.tool.home,
        }
        first = "program" if self.tool is None else self.tool.path
        variables = (f"{name}={value}" for name, value in self.runtime.environment)
        return replace(
            order,
            arguments=[first, *(filled(text, values) for text in self.runtime.arguments)],
            environment=[filled(text, values) for text in variables],
            address_space=(limits.memory_mb + self.runtime.reserved_mb) << 20,
            data=(limits.memory_mb + self.runtime.own_mb) << 20,
            stack=self.runtime.stack_mb << 20,
        )


def filled(text: str, values: dict[str, str]) -> str:
    """A text with values in the place of their names."""
    for name, value in values.items():
        text = text.replace(name, value)
    return text
