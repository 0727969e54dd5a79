"""The trainer's self-tests on a GPU, as `millrace accept` runs them."""

import json

import pytest
import torch

from millrace_tools.accept.stages.train_step import _LIMITS, gaps_of
from services.trainer.self_test import device_bandwidths, train_step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.timeout(600)
def test_a_step_in_bfloat16_is_within_its_limits_and_the_sizing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    train_step.main(["--device", "cuda"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    with capsys.disabled():
        print(json.dumps({"device": torch.cuda.get_device_name(), **found}))
    for name, gap in gaps_of(found).items():
        assert gap <= _LIMITS["cuda"][name], name
    assert found["most_gib"] == pytest.approx(found["sizing_gib"], rel=0.1)


@pytest.mark.timeout(300)
def test_bandwidths_of_the_device_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    device_bandwidths.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert min(found[name] for name in ("host_to_device", "device_to_host", "within_device")) > 1e8
    assert (found["device_to_device"] is None) == (torch.cuda.device_count() < 2)
