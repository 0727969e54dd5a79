"""Calls of a session become trajectories, by token ids alone."""

import sys
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.trajectories.trajectory_tree import (
    History,
    RecordedCall,
    RecordedChoice,
    TrajectoryTree,
)


def _choice(token_ids, *, first_logprob=-1.0, spans=None, text=""):
    return RecordedChoice(
        token_ids=token_ids,
        logprobs=[first_logprob - number for number in range(len(token_ids))],
        spans=spans or [(1, 0, len(token_ids), "a")],
        finish_reason="stop",
        text=text,
    )


def _call(prompt, *answers, messages=(), text="", **how):
    choices = [_choice(answer, text=text, **how) for answer in answers]
    return RecordedCall(prompt_token_ids=prompt, choices=choices, history=History(messages))


def _trajectories(tree):
    reading = tree.reading()
    made = reading.trajectories(reading.leaves())
    assert tree.leaves == len(made)
    whole = sum(len(one.prompt_token_ids) + len(one.response_token_ids) for one in made)
    assert tree.written_out == whole
    return made


def test_later_calls_extend_the_trajectory_and_what_was_put_between_has_mask_0():
    tree = TrajectoryTree()
    assert tree.record(_call([1, 2], [10, 11], spans=[(4, 0, 1, "a"), (5, 1, 2, "a")])) == "first"
    later = _call([1, 2, 10, 11, 3, 4], [12], first_logprob=-9.0, spans=[(6, 0, 1, "b")])
    assert tree.record(later) == "extended"
    (made,) = _trajectories(tree)
    assert made.prompt_token_ids == [1, 2]
    assert made.response_token_ids == [10, 11, 3, 4, 12]
    assert made.loss_mask == [1, 1, 0, 0, 1]
    assert made.behaviour_logprobs == [-1.0, -2.0, 0.0, 0.0, -9.0]
    assert made.spans == [(4, 0, 1, "a"), (5, 1, 2, "a"), (6, 2, 5, "b")]
    assert (made.calls, made.shared_tokens, made.begun_by) == (2, 0, "first")
    trajectory = made.to_trajectory()
    assert trajectory.oldest_version == 4


def test_an_edited_history_begins_a_trajectory_that_shares_only_what_is_proven():
    tree = TrajectoryTree()
    tree.record(_call([1], [10]))
    tree.record(_call([1, 10, 2], [11, 12]))
    assert tree.record(_call([1, 10, 3], [13])) == "branched"
    assert tree.record(_call([7, 10, 3], [14])) == "other_history"
    first, second, third = _trajectories(tree)
    assert (first.response_token_ids, first.loss_mask) == ([10, 2, 11, 12], [1, 0, 1, 1])
    assert (second.response_token_ids, second.loss_mask) == ([10, 3, 13], [0, 0, 1])
    assert (second.shared_tokens, second.begun_by) == (1, "branched")
    assert (third.prompt_token_ids, third.response_token_ids) == ([7, 10, 3], [14])


def test_several_answers_to_one_prompt_are_siblings_and_the_one_that_goes_on_owns_the_past():
    tree = TrajectoryTree()
    tree.record(_call([1], [10]))
    tree.record(_call([1, 10, 2], [11], [12]))
    assert tree.record(_call([1, 10, 2], [13])) == "resampled"
    assert tree.record(_call([1, 10, 2, 12, 3], [14])) == "extended"
    by_text = {tuple(made.response_token_ids): made for made in _trajectories(tree)}
    assert by_text[10, 2, 12, 3, 14].loss_mask == [1, 0, 1, 0, 1]
    assert by_text[10, 2, 11].loss_mask == [0, 0, 1]
    assert by_text[10, 2, 13].loss_mask == [0, 0, 1]
    assert by_text[10, 2, 13].begun_by == "resampled"


USER = {"role": "user", "content": "add 1 and 2"}
MORE = {"role": "user", "content": "sure?"}


def _kind_of_second(answer_text, assistant, prompt=(1, 99, 5)):
    tree = TrajectoryTree()
    tree.record(_call([1], [10, 11], messages=[USER], text=answer_text))
    kind = tree.record(_call(list(prompt), [12], messages=[USER, assistant, MORE]))
    assert sum(sum(made.loss_mask) for made in _trajectories(tree)) == 3
    return kind


def test_the_same_text_under_other_ids_is_a_branch_with_that_reason():
    same = {"role": "assistant", "content": "it is 3"}
    assert _kind_of_second("it is 3", same) == "retokenized"
    assert _kind_of_second("<think>hm</think>it is 3\n", same) == "retokenized"
    parts = {"role": "assistant", "content": [{"type": "text", "text": "it is 3"}]}
    assert _kind_of_second("it is 3", parts) == "retokenized"
    tool = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add"}}]}
    assert _kind_of_second('<tool>{"name":"add"}</tool>', tool) == "retokenized"


def test_another_text_is_another_history():
    for changed in ("it is 4", "", "is"):
        assistant = {"role": "assistant", "content": changed}
        assert _kind_of_second("it is 3", assistant) == "other_history", changed
    assert _kind_of_second("it is 3", USER) == "other_history"


def test_a_prompt_that_ends_inside_an_answer_does_not_extend_it():
    tree = TrajectoryTree()
    tree.record(_call([1], [10, 11]))
    assert tree.record(_call([1, 10], [11, 12])) == "other_history"
    assert [made.prompt_token_ids for made in _trajectories(tree)] == [[1], [1, 10]]


def test_a_session_of_many_turns_is_no_deep_recursion():
    tree, prompt, turns = TrajectoryTree(), [1], sys.getrecursionlimit() + 200
    for turn in range(turns):
        tree.record(_call(prompt, [turn]))
        prompt = [*prompt, turn, 7]
    (made,) = _trajectories(tree)
    assert sum(made.loss_mask) == turns


@st.composite
def _moves(draw):
    """What an agent may do: go on from any answer, edit, ask again, ask for several."""
    token = st.integers(0, 2)
    move = st.tuples(
        st.integers(0, 10),
        st.sampled_from(["go on", "edit", "again"]),
        st.lists(token, max_size=3),
        st.lists(st.lists(token, min_size=1, max_size=3), min_size=1, max_size=3),
        st.integers(0, 20),
    )
    return draw(st.lists(move, min_size=1, max_size=10))


@settings(max_examples=200)
@given(_moves())
def test_every_sampled_token_counts_once_and_every_trajectory_is_what_an_engine_saw(moves):
    tree, known, prompts, sampled = TrajectoryTree(), [[0]], [[0]], []
    identity = 0
    for pick, how, put, answers, where in moves:
        if how == "again":
            prompt = prompts[pick % len(prompts)]
        else:
            prompt = [*known[pick % len(known)], *put] or [0]
            if how == "edit":
                prompt[where % len(prompt)] = 9
        choices = []
        for answer in answers:
            names = [float(identity + number) for number in range(1, len(answer) + 1)]
            identity += len(answer)
            sampled += zip(answer, names, strict=True)
            spans = [(pick, 0, len(answer), "a")]
            choices.append(
                RecordedChoice(
                    token_ids=answer, logprobs=names, spans=spans, finish_reason="stop", text=""
                )
            )
            known.append([*prompt, *answer])
        prompts.append(prompt)
        call = RecordedCall(prompt_token_ids=prompt, choices=choices, history=History([]))
        tree.record(call)
    trained = []
    for made in _trajectories(tree):
        made.to_trajectory()  # refuses lengths and spans that disagree
        assert made.prompt_token_ids + made.response_token_ids in known
        columns = zip(made.response_token_ids, made.behaviour_logprobs, made.loss_mask, strict=True)
        trained += [(token, name) for token, name, mask in columns if mask]
        assert not any(made.loss_mask[: made.shared_tokens])
    assert Counter(trained) == Counter(sampled)


def test_a_prompt_is_kept_once_however_many_answers_it_gets():
    tree = TrajectoryTree()
    tree.record(_call([1] * 100, [10], [11], [12]))
    tree.record(_call([1] * 100, [13]))
    assert tree.tokens == 100 + 4
    assert [len(made.prompt_token_ids) for made in _trajectories(tree)] == [100] * 4


def test_a_reading_is_of_what_was_recorded_before_it():
    tree = TrajectoryTree()
    tree.record(_call([1], [10]))
    reading = tree.reading()
    tree.record(_call([1, 10, 2], [11]))
    (made,) = reading.trajectories(reading.leaves())
    assert made.response_token_ids == [10]
