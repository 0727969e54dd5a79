"""MLflow, by its client; no global state of the library is used."""

import os
import time
from collections.abc import Mapping
from itertools import islice

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from services.orchestrator.trackers.tracker import TrackedRun, flattened
from services.protocol.run.orchestrator import RunState
from services.protocol.run.tracker import MlflowTracker

_ID_TAG = "millrace.run_id"
_ROLLED_BACK_TAG = "millrace.rolled_back_to"
_BATCH = 100  # of parameters in one call
_LONGEST = 500  # characters of a parameter
_STATUS = {RunState.FINISHED: "FINISHED", RunState.STOPPED: "KILLED", RunState.FAILED: "FAILED"}


class MlflowRun:
    """A run that is found again by the tag with its id."""

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self._client, self._run_id = client, run_id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        now_ms = int(time.time() * 1000)
        metrics = [Metric(name, value, now_ms, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def rolled_back(self, step: int) -> None:
        """Its history is never rewritten: the later values of a step are the valid ones."""
        self._client.set_tag(self._run_id, _ROLLED_BACK_TAG, str(step))

    def close(self, state: RunState) -> None:
        """See `Tracker`."""
        self._client.set_terminated(self._run_id, _STATUS.get(state, "KILLED"))


def open_run(config: MlflowTracker, run: TrackedRun) -> MlflowRun:
    """Begin or go on with the run of this id."""
    uri = config.uri or os.environ.get("MLFLOW_TRACKING_URI")
    client = MlflowClient(tracking_uri=uri or f"sqlite:///{run.run_dir / 'mlflow.db'}")
    experiment = _experiment(client, config.experiment)
    known = client.search_runs([experiment], f"tags.`{_ID_TAG}` = '{run.run_id}'", max_results=1)
    if known:
        run_id = known[0].info.run_id
        client.update_run(run_id, status="RUNNING")
        return MlflowRun(client, run_id)
    tags = {_ID_TAG: run.run_id}
    run_id = client.create_run(experiment, run_name=run.run_id, tags=tags).info.run_id
    parameters = (
        Param(name, str(value)[:_LONGEST])
        for name, value in flattened(run.config, ".")
        if value is not None
    )
    while some := list(islice(parameters, _BATCH)):
        client.log_batch(run_id, params=some)
    client.log_batch(run_id, tags=[RunTag("millrace.run_dir", str(run.run_dir))])
    return MlflowRun(client, run_id)


def _experiment(client: MlflowClient, name: str) -> str:
    known = client.get_experiment_by_name(name)
    if known is not None:
        return str(known.experiment_id)
    try:
        return str(client.create_experiment(name))
    except MlflowException:  # another run has just made it
        known = client.get_experiment_by_name(name)
        if known is None:
            raise
        return str(known.experiment_id)
