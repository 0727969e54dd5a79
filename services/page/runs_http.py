"""Questions about several runs: their list, side by side, as a report."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import FastAPI, Query
from fastapi.responses import Response
from pydantic import Field

from services.page.reading.comparison.comparison import MOST_COMPARED, figure_heads
from services.page.reading.metric_table import Axis
from services.page.report.report import SMOOTHING, report
from services.page.run_store import RunStore
from services.protocol.strict import StrictModel

_RunId = Annotated[str, Field(max_length=255)]


class CompareQuery(StrictModel, use_attribute_docstrings=True):
    """Runs side by side."""

    run: Annotated[list[_RunId], Field(min_length=1, max_length=MOST_COMPARED)]
    """Their ids."""

    by: Axis = "step"
    """What curves are drawn over: train steps, seconds or sampled tokens."""

    smoothing: float = Field(default=0.0, ge=0, le=0.99)
    """Weight of the steps before in the moving average; 0 for none."""

    points: int = Field(default=300, ge=2, le=2000)
    """Most points of a curve: where there are more steps, a point is the mean over several."""


class ReportQuery(StrictModel, use_attribute_docstrings=True):
    """Runs as one HTML file."""

    run: Annotated[list[_RunId], Field(min_length=1, max_length=MOST_COMPARED)]
    """Their ids."""

    smoothing: float = Field(default=SMOOTHING, ge=0, le=0.99)
    """Weight of the steps before in the moving average; 0 for none."""


def add_runs(app: FastAPI, store: RunStore) -> None:
    """Answer these questions from a store."""

    @app.get("/api/runs")
    def runs() -> Any:
        """The runs that the page can show with their figures, newest first."""
        known = {"figures": figure_heads(), "most_compared": MOST_COMPARED}
        return {"runs": store.runs()} | known

    @app.get("/api/compare")
    def compare(asked: Annotated[CompareQuery, Query()]) -> Any:
        """Runs side by side: figures, changed keys and curves, the best run first."""
        runs = store.comparison(asked.run)
        charts = runs.charts(asked.by, asked.smoothing, asked.points)
        return runs.table() | {"charts": [asdict(chart) for chart in charts]}

    @app.get("/api/report", response_class=Response)
    def report_file(asked: Annotated[ReportQuery, Query()]) -> Response:
        """Runs side by side as one HTML file without scripts, to be saved and sent."""
        headers = {"content-disposition": 'attachment; filename="millrace-report.html"'}
        content = report(store.comparison(asked.run), asked.smoothing)
        return Response(content, media_type="text/html", headers=headers)
