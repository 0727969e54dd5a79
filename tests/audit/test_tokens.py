"""What an audit says of the tokens that a model's episodes have."""

from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from millrace_tools.audit.checks.tokens import Turns, token_findings
from millrace_tools.audit.findings import Finding, Verdict
from millrace_tools.audit.policy.forwarded_policy import Exchange, ForwardedPolicy

ASKED = [{"role": "user", "content": "one"}]
LATER = [*ASKED, {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}]


def call(
    asked: list[dict[str, Any]], prompt: list[int], sampled: list[int], reason: str = "stop"
) -> Exchange:
    choice = {"token_ids": sampled, "finish_reason": reason}
    return Exchange(asked, {"prompt_token_ids": prompt, "choices": [choice]}, "")


FIRST = call(ASKED, [1, 2], [3, 4])
EXTENDED = call(LATER, [1, 2, 3, 4, 5], [6, 7])
REWRITTEN = call(LATER, [1, 2, 9, 5], [6])


def checks(**episodes: list[Exchange]) -> dict[str, Finding]:
    return {one.check: one for one in token_findings(episodes, 8)}


def test_turns_that_go_on_are_one_trajectory_and_their_prompts_are_cached() -> None:
    turns = Turns.of([FIRST, EXTENDED])
    assert (turns.later, turns.rewritten, turns.prompt, turns.fresh) == (1, 0, 7, 3)
    assert (turns.sampled, turns.longest) == (4, 7)
    assert checks(a=[FIRST, EXTENDED])["tokens.history"].verdict is Verdict.PASS


def test_a_history_that_the_template_rewrites_is_found() -> None:
    found = checks(a=[FIRST, EXTENDED], b=[FIRST, REWRITTEN])
    assert found["tokens.history"].verdict is Verdict.WARN
    assert found["tokens.history"].evidence.startswith("1 of 2 later turns do; 1, the first at cal")
    assert "in 1.5 trajectories" in found["tokens.cost"].evidence


def test_turns_after_thoughts_are_counted() -> None:
    for message in ({"content": "hm</think>two"}, {"content": "two", "reasoning": "hm"}):
        thinks = call(ASKED, [1, 2], [3, 4])
        assert thinks.answered is not None
        thinks.answered["choices"][0]["message"] = message
        assert Turns.of([thinks, REWRITTEN]).thoughts == 1
        assert (
            "1 times one with thoughts" in checks(a=[thinks, REWRITTEN])["tokens.history"].evidence
        )
    assert Turns.of([FIRST, REWRITTEN]).thoughts == 0


def test_another_conversation_is_no_history() -> None:
    other = call([{"role": "user", "content": "else"}], [8], [9])
    assert Turns.of([FIRST, other]).later == 0


def test_answers_that_are_cut_are_told() -> None:
    found = checks(a=[FIRST, call(LATER, [1, 2, 3, 4, 5], [6, 7], "length")])
    assert found["tokens.length"].verdict is Verdict.WARN
    assert "7 of 8 tokens; 1 of 2 answers are cut" in found["tokens.length"].evidence


def test_without_token_ids_nothing_is_measured() -> None:
    (found,) = checks(a=[Exchange(ASKED, {"choices": [{}]}, "")], b=[]).values()
    assert found.verdict is Verdict.NOT_MEASURED


async def test_a_server_that_does_not_know_token_ids_is_asked_without() -> None:
    bodies: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        if "return_token_ids" in bodies[-1]:
            return web.json_response({"error": {"message": "unknown"}}, status=400)
        return web.json_response({"choices": [{"message": {"content": "two"}}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with (
        TestServer(app) as server,
        ForwardedPolicy(str(server.make_url("")), "m", "none") as policy,
    ):
        for _ in range(2):
            answered = await policy._http.post(
                f"{policy.url}/v1/chat/completions", json={"messages": ASKED}
            )
            assert answered.status_code == 200
    assert ["return_token_ids" in body for body in bodies] == [True, False, False]
