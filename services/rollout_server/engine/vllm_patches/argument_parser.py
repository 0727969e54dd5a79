"""vLLM's command line by the names of its arguments, for values that come from a file."""

import json
from argparse import ArgumentTypeError, BooleanOptionalAction, Namespace
from typing import Any, NoReturn

from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser


class _Parser(FlexibleArgumentParser):
    """vLLM's parser, which ends the process where it does not like an argument."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


class ArgumentParser:
    """The arguments of vLLM's engine and OpenAI server.

    Attributes:
        actions: what argparse knows of each argument, by name.
    """

    def __init__(self) -> None:
        self._parser: Any = make_arg_parser(_Parser(add_help=False))  # type: ignore[no-untyped-call]
        self.actions = {one.dest: one for one in self._parser._actions if one.option_strings}

    def defaults(self) -> Namespace:
        """All arguments as vLLM leaves them."""
        arguments: Namespace = self._parser.parse_args([])
        return arguments

    def parsed(self, name: str, value: Any) -> Any:
        """The value as vLLM's parser would have it from a command line.

        Raises:
            ValueError: vLLM does not take it.
        """
        action = self.actions[name]
        option = action.option_strings[0]
        if value is None:
            return None
        if action.nargs == 0 or isinstance(action, BooleanOptionalAction):
            if not isinstance(value, bool):
                raise ValueError("Write true or false.")
            return value
        if isinstance(value, list) and action.nargs is not None:
            line = [option, *map(_word, value)]
        else:
            line = [f"{option}={_word(value)}"]
        try:
            return getattr(self._parser.parse_args(line), name)
        except (ValueError, ArgumentTypeError) as error:
            problem = " ".join(str(error).partition("[type=")[0].split())
            raise ValueError(problem) from None


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
