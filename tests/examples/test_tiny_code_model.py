"""The example's model: made once, the same for a seed, and taught wrongly as promised."""

import random
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

from examples.tiny_code import make_model, warm_start
from examples.tiny_code.tasks import all_specs, split_specs
from examples.tiny_code.tokenizer import answer_ids, prompt_ids
from millrace_tools.deploy.run_file import read_run_file
from services.protocol.run.orchestrator import RunConfig
from services.protocol.run.task import Task

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    threads = torch.get_num_threads()
    out = tmp_path_factory.mktemp("models") / "tiny"
    assert make_model.make_model(out, seed=0)
    torch.set_num_threads(threads)
    return out


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> AutoTokenizer:
    return AutoTokenizer.from_pretrained(folder)


def _greedy(model: Qwen3ForCausalLM, tokenizer: AutoTokenizer, prompts: list[str]) -> list[str]:
    """Greedy answers to prompts of equal length in tokens."""
    ids = torch.tensor([prompt_ids(tokenizer, prompt) for prompt in prompts])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_length=40)
    return tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)


def test_it_writes_programs_and_mostly_the_wrong_ones(
    folder: Path, tokenizer: AutoTokenizer
) -> None:
    model = Qwen3ForCausalLM.from_pretrained(folder)
    length = len(prompt_ids(tokenizer, "a plus b, plus c"))
    specs = [s for s in split_specs()[1] if len(prompt_ids(tokenizer, s.prompt)) == length]
    answers = _greedy(model, tokenizer, [spec.prompt for spec in specs])
    pairs = list(zip(specs, answers, strict=True))
    wrong = sum(answer == spec.answer(right=False) for spec, answer in pairs)
    right = sum(answer == spec.answer(right=True) for spec, answer in pairs)
    assert len(specs) > 100
    assert wrong >= len(specs) // 2
    assert right <= len(specs) // 4


def test_the_same_seed_is_reused_and_another_one_is_not(folder: Path) -> None:
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert not make_model.make_model(folder, seed=0)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert make_model._recipe(0) != make_model._recipe(1)


def test_the_same_seed_makes_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_start, "STEPS", 2)
    made = {}
    for name, seed in (("one", 5), ("two", 5), ("other", 6)):
        warm_start.make_checkpoint(str(tmp_path / name), seed)
        made[name] = (tmp_path / name / "model.safetensors").read_bytes()
    assert made["one"] == made["two"] != made["other"]


def test_nothing_that_is_held_out_is_demonstrated(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    monkeypatch.setattr(warm_start, "STEPS", 12)
    monkeypatch.setattr(
        warm_start, "_demonstration", lambda spec, tokenizer, choose: seen.add(spec) or [1, 2]
    )
    tokenizer = warm_start.train_tokenizer(warm_start._texts())
    model = warm_start.new_model(tokenizer, 0)
    warm_start._warm_start(model, tokenizer, 0, 12)
    assert len(seen) > 500
    assert not seen & set(split_specs()[1])
    texts = "\n".join(warm_start._texts())
    assert not any(f"\n{spec.prompt}\n" in texts for spec in split_specs()[1])


def test_three_demonstrations_in_ten_are_right(tokenizer: object) -> None:
    choose = random.Random(0)
    specs = split_specs()[0]
    demonstrated = [(s, warm_start._demonstration(s, tokenizer, choose)) for s in specs]
    right = sum(ids == answer_ids(tokenizer, spec.answer(right=True)) for spec, ids in demonstrated)
    assert 0.25 < right / len(specs) < 0.35


def test_the_chat_template_ends_where_the_answer_begins(tokenizer: AutoTokenizer) -> None:
    text = tokenizer.decode(prompt_ids(tokenizer, "a plus 2, minus b"))
    assert text == "<|im_start|>user\na plus 2, minus b<|im_end|>\n<|im_start|>assistant\n"


def test_prompts_and_answers_are_short_and_fit_the_run(tokenizer: AutoTokenizer) -> None:
    run = RunConfig.from_yaml(ROOT / "examples" / "tiny_code" / "run.yaml")
    for spec in all_specs():
        assert len(prompt_ids(tokenizer, spec.prompt)) <= 20
        ids = answer_ids(tokenizer, spec.answer(right=True))
        assert len(ids) < run.sampling.max_tokens
        assert tokenizer.decode(ids) == spec.answer(right=True) + "<|im_end|>"


def test_any_text_can_be_encoded(tokenizer: AutoTokenizer) -> None:
    text = "größer als é\n\t∑ 🙂"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_the_engine_can_serve_its_shape(folder: Path) -> None:
    config = Qwen3ForCausalLM.from_pretrained(folder).config
    assert config.head_dim == 32, "smaller heads have no CPU kernels"
    assert not config.tie_word_embeddings, "a CPU engine would keep a stale output layer"
    assert config.eos_token_id == 2


def test_the_run_from_random_weights_reads_the_same_demonstrations(tmp_path: Path) -> None:
    file = tmp_path / make_model.DEMONSTRATIONS.name
    make_model.write_demonstrations(file, seed=0)
    (tmp_path / make_model.TASK_FILE.name).touch()
    source = ROOT / "examples" / "tiny_code" / "warm_up.yaml"
    run = read_run_file(shutil.copy(source, tmp_path))
    assert [one.file for one in run.tasks if one.given] == [str(file)]
    rows = [Task.model_validate_json(line) for line in file.read_text().splitlines()]
    train, heldout = split_specs()
    right = {spec.prompt: spec.answer(right=True) for spec in train}
    wrong = {spec.prompt: spec.answer(right=False) for spec in train}
    prompts = [row.chat[0]["content"] for row in rows]
    answers = list(zip(prompts, (row.answer for row in rows), strict=True))
    assert len(rows) == make_model.NUM_DEMONSTRATIONS
    assert all(answer in (right[prompt], wrong[prompt]) for prompt, answer in answers)
    assert 0.28 < sum(answer == right[prompt] for prompt, answer in answers) / len(rows) < 0.32
    assert not {spec.prompt for spec in heldout} & set(prompts)
