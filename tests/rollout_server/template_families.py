"""Chat templates that treat history as those of common families do, and how their models speak.

The templates are our own. Each writes turns, thoughts and tool calls with the marks of its family,
and leaves out of the history what that family's published template leaves out.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

Part = tuple[str, bool]
"""Text that a model samples, and whether a template that drops thoughts leaves it out."""

QWEN3 = (
    r"{%- set ns = namespace(query=-1) %}{%- for m in messages %}"
    r"{%- if m.role == 'user' %}{%- set ns.query = loop.index0 %}{%- endif %}{%- endfor %}"
    r"{%- if tools %}{{- '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{%- endif %}"
    r"{%- for m in messages %}{%- if m.role == 'assistant' %}{{- '<|im_start|>assistant\n' }}"
    r"{%- if loop.index0 > ns.query and (loop.last or m.reasoning_content) %}"
    r"{{- '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{%- endif %}"
    r"{{- m.content }}{%- for call in m.tool_calls or [] %}"
    r"{{- '\n' if m.content or not loop.first else '' }}"
    r"{{- '<tool_call>\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' }}"
    r"{{- call.function.arguments | tojson }}{{- '}\n</tool_call>' }}{%- endfor %}"
    r"{{- '<|im_end|>\n' }}"
    r"{%- elif m.role == 'tool' %}"
    r"{%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}"
    r"{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    r"{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}"
    r"{%- endif %}"
    r"{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}"
    r"{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)

GLM = (
    r"{%- set ns = namespace(user=-1) %}{%- for m in messages %}"
    r"{%- if m.role == 'user' %}{%- set ns.user = loop.index0 %}{%- endif %}{%- endfor %}"
    r"{{- '[gMASK]<sop>' }}{%- if tools %}{{- '<|system|>\n' + (tools | tojson) }}{%- endif %}"
    r"{%- for m in messages %}{%- if m.role == 'assistant' %}{{- '<|assistant|>\n<think>' }}"
    r"{%- if loop.index0 > ns.user or clear_thinking is false %}"
    r"{{- m.reasoning_content or '' }}{%- endif %}{{- '</think>' }}"
    r"{{- '\n' + m.content if m.content else '' }}{%- for call in m.tool_calls or [] %}"
    r"{{- '\n<tool_call>' + call.function.name }}"
    r"{%- for name, value in call.function.arguments.items() %}"
    r"{{- '\n<arg_key>' + name + '</arg_key>\n<arg_value>' + value + '</arg_value>' }}{%- endfor %}"
    r"{{- '\n</tool_call>' }}{%- endfor %}"
    r"{%- elif m.role == 'tool' %}"
    r"{%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|observation|>' }}{%- endif %}"
    r"{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    r"{%- else %}{{- '<|' + m.role + '|>\n' + m.content }}{%- endif %}{%- endfor %}"
    r"{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)

DEEPSEEK = (
    r"{{- '<｜begin▁of▁sentence｜>' + (tools | tojson if tools else '') }}"
    r"{%- for m in messages %}{%- if m.role == 'assistant' %}"
    r"{%- if messages[loop.index0 - 1].role == 'user' %}"
    r"{{- '<｜Assistant｜></think>' }}{%- endif %}"
    r"{{- m.content }}{%- for call in m.tool_calls or [] %}"
    r"{{- '<｜tool▁calls▁begin｜>' if loop.first else '' }}"
    r"{{- '<｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>' }}"
    r"{{- call.function.arguments | tojson }}{{- '<｜tool▁call▁end｜>' }}"
    r"{{- '<｜tool▁calls▁end｜>' if loop.last else '' }}{%- endfor %}"
    r"{{- '<｜end▁of▁sentence｜>' }}"
    r"{%- elif m.role == 'tool' %}"
    r"{{- '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}"
    r"{%- else %}{{- '<｜User｜>' + m.content }}{%- endif %}{%- endfor %}"
    r"{%- if add_generation_prompt and messages[-1].role == 'user' %}"
    r"{{- '<｜Assistant｜>' + ('<think>' if thinking else '</think>') }}{%- endif %}"
)

LLAMA3 = (
    r"{%- macro begin(role) %}{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}"
    r"{%- endmacro %}{{- '<|begin_of_text|>' }}"
    r"{%- if tools %}{{- begin('system') + (tools | tojson) + '<|eot_id|>' }}{%- endif %}"
    r"{%- for m in messages %}{%- if m.role == 'tool' %}"
    r"{{- begin('ipython') }}{{- {'output': m.content} | tojson }}"
    r"{%- elif m.tool_calls %}"
    r"{%- if m.tool_calls | length > 1 %}{{- raise_exception('one call at a time') }}{%- endif %}"
    r"{%- set call = m.tool_calls[0].function %}"
    r"{{- begin('assistant') + '{\"name\": \"' + call.name + '\", \"parameters\": ' }}"
    r"{{- call.arguments | tojson }}{{- '}' }}"
    r"{%- else %}{{- begin(m.role) + m.content | trim }}{%- endif %}{{- '<|eot_id|>' }}"
    r"{%- endfor %}{%- if add_generation_prompt %}{{- begin('assistant') }}{%- endif %}"
)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What a model says in one turn, and what comes back.

    Attributes:
        thought: what it thinks.
        text: what it says to the user; empty if it calls tools.
        calls: name and argument of each tool that it calls.
        answers: the tools' results, or the user's next message; empty after the last turn.
        after_tools: whether results of tools come before it.
    """

    thought: str
    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    answers: tuple[str, ...] = ()
    after_tools: bool = False


Speaks = Callable[[Turn], list[Part]]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A template and the voice of its models.

    Attributes:
        template: the chat template; None: vLLM has code in place of one.
        special: tokens with a meaning of their own; the first ends a text.
        marks: tokens that text keeps.
        speaks: what a model of the family samples.
        keeps: which thoughts the template writes if a client passes them back: all of them, those
            after the last message of a user, or none.
        opening: how a prompt ends that asks for thoughts, where history leaves that out as well.
        settings: arguments of the template.
        several: whether one answer may call several tools.
    """

    template: str | None
    special: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    speaks: Speaks
    keeps: str
    opening: str = ""
    settings: dict[str, Any] | None = None
    several: bool = True


def _json(argument: str) -> str:
    return json.dumps({"of": argument})


def _qwen3(turn: Turn) -> list[Part]:
    calls = [
        f'<tool_call>\n{{"name": "{name}", "arguments": {_json(argument)}}}\n</tool_call>'
        for name, argument in turn.calls
    ]
    said = turn.text + "\n".join(calls) + "<|im_end|>"
    return [(f"<think>\n{turn.thought}\n</think>\n\n", True), (said, False)]


def _glm(turn: Turn) -> list[Part]:
    calls = [
        f"\n<tool_call>{name}\n<arg_key>of</arg_key>\n<arg_value>{argument}</arg_value>\n"
        "</tool_call>"
        for name, argument in turn.calls
    ]
    text = f"\n{turn.text}" if turn.text else ""
    end = "<|observation|>" if calls else "<|user|>"
    said = "</think>" + text + "".join(calls) + end
    return [("\n<think>", False), (turn.thought, True), (said, False)]


def _deepseek(turn: Turn) -> list[Part]:
    calls = [
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{_json(argument)}<｜tool▁call▁end｜>"
        for name, argument in turn.calls
    ]
    called = f"<｜tool▁calls▁begin｜>{''.join(calls)}<｜tool▁calls▁end｜>" if calls else ""
    said = f"{turn.text}{called}<｜end▁of▁sentence｜>"
    if turn.after_tools:  # the template asks for nothing there, so the model begins its thought
        return [(f"<think>{turn.thought}</think>", True), (said, False)]
    return [(turn.thought, True), (f"</think>{said}", False)]


def _llama3(turn: Turn) -> list[Part]:
    if not turn.calls:
        return [(f"{turn.text}<|eot_id|>", False)]
    ((name, argument),) = turn.calls
    called = f'{{"name": "{name}", "parameters": {_json(argument)}}}<|eot_id|>'
    return [(turn.thought, True), (called, False)]


def _gpt_oss(turn: Turn) -> list[Part]:
    begin = "<|channel|>analysis<|message|>"
    parts = [(f"{begin}{turn.thought}<|end|><|start|>assistant", True)]
    if not turn.calls:
        return [*parts, (f"<|channel|>final<|message|>{turn.text}<|return|>", False)]
    ((name, argument),) = turn.calls
    header = f" to=functions.{name}<|channel|>commentary json<|message|>"
    return [*parts, (f"{header}{_json(argument)}<|call|>", False)]


_DEEPSEEK_CALLS = tuple(
    f"<｜tool▁{name}｜>"
    for name in (
        "calls▁begin",
        "calls▁end",
        "call▁begin",
        "call▁end",
        "sep",
        "output▁begin",
        "output▁end",
    )
)
_THINK = ("<think>", "</think>")
_CALL = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_ARGUMENTS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_GLM_TURNS = ("<|user|>", "<|assistant|>", "<|observation|>", "<|system|>")
_GLM = Family(
    template=GLM,
    special=("<|endoftext|>", *_GLM_TURNS, "[gMASK]", "<sop>"),
    marks=(*_THINK, *_CALL, *_ARGUMENTS),
    speaks=_glm,
    keeps="since the user",
)
FAMILIES: dict[str, Family] = {
    "qwen3": Family(
        template=QWEN3,
        special=("<|im_end|>", "<|im_start|>"),
        marks=(*_THINK, *_CALL),
        speaks=_qwen3,
        keeps="since the user",
    ),
    "glm": _GLM,
    "glm with all thoughts": replace(_GLM, keeps="all", settings={"clear_thinking": False}),
    "deepseek": Family(
        template=DEEPSEEK,
        special=(
            "<｜end▁of▁sentence｜>",
            "<｜begin▁of▁sentence｜>",
            "<｜User｜>",
            "<｜Assistant｜>",
        ),
        marks=(*_THINK, *_DEEPSEEK_CALLS),
        speaks=_deepseek,
        keeps="none",
        opening="<think>",
        settings={"thinking": True},
    ),
    "llama3": Family(
        template=LLAMA3,
        special=("<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
        speaks=_llama3,
        keeps="none",
        several=False,
    ),
    "gpt-oss": Family(template=None, speaks=_gpt_oss, keeps="since the user", several=False),
}
