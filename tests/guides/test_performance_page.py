"""What is said of speed is what benchmarks/ measured."""

import runpy
from pathlib import Path

from services.protocol.yaml_text import load_yaml
from tests.deploy.test_compatibility import CLASSES

ROOT = Path(__file__).parents[2]
MAKER = runpy.run_path(str(ROOT / "docs" / "make_performance.py"))
SIZES_AND_ADDRESSES = {
    *("activation_checkpointing", "bucket_mb", "checkpoints_kept", "device", "dtype"),
    "enforce_eager",  # an engine on GPUs captures graphs; one on CPUs has none
    *("evaluation_concurrency", "gpu_memory_utilization", "gpus_per_rank", "kv_cache_gb"),
    *("listen", "max_connections", "max_model_len", "max_num_seqs", "micro_batch_tokens", "model"),
    *("num_cpus", "rank_num_cpus", "ranks_per_node", "replicas", "replicas_timeout_s"),
    *("require_tier", "router_url", "served_model_name", "slots", "stage_timeout_s"),
    *("tensor_parallel_size", "world_size"),
}
"""What a file must say of its machines and model, or may without a change of what is done."""
HINT = "run `python docs/make_performance.py`"


def test_the_page_is_up_to_date() -> None:
    assert MAKER["page"]() == (ROOT / "docs" / "performance.md").read_text(encoding="utf-8"), HINT


def test_the_table_of_the_readme_is_up_to_date() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert MAKER["readme"](text) == text, HINT


def test_every_baseline_is_shown_or_has_a_page() -> None:
    makers = ("make_performance.py", "make_sandboxes.py")
    source = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in makers)
    guides = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    for path in (ROOT / "benchmarks" / "baselines").glob("*.json"):
        module = path.stem.replace("_", "/", 1)
        shown = f"benchmarks/{module}.py" in guides or f"benchmarks.{path.stem}" in guides
        assert shown or f'"{path.stem}"' in source, path.name


def test_the_documentation_measures_the_shipped_defaults() -> None:
    """Benchmarks leave the defaults of classes as they are, and so do the files that we ship."""
    for name in ("laptop", "cluster"):
        for application in load_yaml(ROOT / "deploy" / f"{name}.yaml")["applications"]:
            for key, value in application.get("args", {}).items():
                field = CLASSES[application["name"]].model_fields[key]
                same = key in SIZES_AND_ADDRESSES or value == field.default
                assert same, f"{name}.yaml: {application['name']}.{key} is another than measured"
