"""A Hugging Face forward as the judge of every served logprob."""

import json
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from services.trainer.checkpoints.export import export


def initial_model(model_dir: Path) -> PreTrainedModel:
    """The model as it was deployed: policy version 0."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    return model.eval()


def checkpointed_model(checkpoint: Path) -> PreTrainedModel:
    """The model that one of the trainer's checkpoints is exported as."""
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "model"
        export(checkpoint, exported)
        return initial_model(exported)


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
