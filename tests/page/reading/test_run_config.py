from services.page.reading.run_config import beside_defaults
from services.protocol.run.orchestrator import RunConfig


def test_every_key_stands_beside_its_default_and_says_whether_it_was_changed() -> None:
    config = RunConfig.model_validate(
        {
            "name": "a",
            "task_file": "t",
            "model": "m",
            "steps": 5,
            "batch_groups": 2,
            "group_size": 4,
            "algorithm": {"learning_rate": 1e-3},
            "schedule": {"preset": "one_step_off"},
        }
    ).model_dump(mode="json")
    rows = {row["key"]: row for row in beside_defaults(config | {"old_key": 1})}
    assert rows["algorithm.learning_rate"]["changed"]
    assert rows["algorithm.learning_rate"]["default"] < 1e-3
    assert rows["schedule.max_staleness"] == {
        "key": "schedule.max_staleness", "value": 1, "default": 0, "changed": True
    }, "what a preset means is resolved"  # fmt: skip
    assert not rows["algorithm.clip_low"]["changed"]
    assert rows["steps"] == {"key": "steps", "value": 5, "changed": True}
    assert rows["old_key"] == {"key": "old_key", "value": 1, "changed": True}


def test_a_configuration_that_cannot_be_read_has_no_keys() -> None:
    assert beside_defaults({}) == []
