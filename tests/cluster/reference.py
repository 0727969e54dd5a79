"""A Hugging Face forward as the judge of every served logprob."""

import json
import tempfile
from pathlib import Path

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from transformers import AutoModelForCausalLM, PreTrainedModel


def initial_model(model_dir: Path) -> PreTrainedModel:
    """The model as it was deployed: policy version 0."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    return model.eval()


def checkpointed_model(model_dir: Path, checkpoint: Path) -> PreTrainedModel:
    """The model with the parameters of one of the trainer's checkpoints."""
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        dcp_to_torch_save(str(checkpoint), file.name)
        state = torch.load(file.name, weights_only=False)
    model = initial_model(model_dir)
    missing, unexpected = model.load_state_dict(state["model"], strict=False)
    assert not missing, missing
    assert not unexpected, unexpected
    return model


def logprobs(model: PreTrainedModel, prompt: list[int], response: list[int]) -> list[float]:
    """Natural-log probability of each response token given everything before it."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    chosen = torch.log_softmax(logits.double(), -1).gather(-1, torch.tensor(response)[:, None])
    return chosen[:, 0].tolist()


def largest_difference(models: dict[int, PreTrainedModel], trajectory: dict[str, object]) -> float:
    """Largest |served - reference| over a trajectory, each token under its labelled version."""
    fields = json.loads(json.dumps(trajectory))
    prompt, response = fields["prompt_token_ids"], fields["token_ids"]
    worst = 0.0
    for version, start, end, _ in fields["spans"]:
        expected = logprobs(models[version], prompt, response)[start:end]
        served = fields["logprobs"][start:end]
        worst = max([worst, *(abs(a - b) for a, b in zip(served, expected, strict=True))])
    return worst
