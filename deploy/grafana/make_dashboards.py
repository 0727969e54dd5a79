"""Writes deploy/grafana/dashboards from deploy/grafana/boards.

From the repository's root: `python -m deploy.grafana.make_dashboards`.
"""

from pathlib import Path
from string import ascii_uppercase

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from deploy.grafana.board import FIRING, Board, Panel, Query
from deploy.grafana.boards import BOARDS

FOLDER = Path(__file__).parent / "dashboards"
RUNBOOK = "docs/runbook.md"
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_HEIGHT = {"number": 5, "lines": 8, "stack": 8}


def dashboard_json(board: Board) -> str:
    """The text of a dashboard's file."""
    made = (
        dashboard.Dashboard(f"Millrace / {board.title}")
        .uid(f"millrace-{board.name}")
        .description(board.description)
        .tags(["millrace"])
        .timezone("browser")
        .refresh("10s")
        .time("now-1h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
        )
        .link(
            dashboard.DashboardLink("Millrace")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["millrace"])
            .include_vars(True)
            .keep_time(True)
        )
        .link(_runbook("Runbook", ""))
        .annotation(_alerts())
    )
    for name, query in board.variables.items():
        made.with_variable(_variable(name, query))
    for row in board.rows:
        made.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            made.with_panel(_panel(panel))
    built = made.build()
    for number, numbered in enumerate(built.panels or [], start=1):
        numbered.id_val = number
    return JSONEncoder(sort_keys=True, indent=1).encode(built) + "\n"


def _alerts() -> dashboard.AnnotationQuery:
    """Marks on every panel from when to when an alert fired."""
    return (
        dashboard.AnnotationQuery()
        .name("Alerts")
        .datasource(_SOURCE)
        .enable(True)
        .icon_color("red")
        .expr(FIRING)
    )


def _variable(name: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .datasource(_SOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(text="All", value="$__all"))
    )


def _panel(panel: Panel) -> stat.Panel | timeseries.Panel:
    made = _number(panel) if panel.kind == "number" else _lines(panel)
    made.title(panel.title).description(_description(panel)).datasource(_SOURCE)
    made.unit(panel.unit).span(panel.width).height(_HEIGHT[panel.kind])
    made.thresholds(_thresholds(panel))
    for letter, query in zip(ascii_uppercase[: len(panel.queries)], panel.queries, strict=True):
        made.with_target(_target(letter, query))
    if panel.runbook:
        made.links([_runbook(f"Runbook: {panel.runbook}", f"#{panel.runbook.lower()}")])
    return made


def _number(panel: Panel) -> stat.Panel:
    last = common.ReduceDataOptions().calcs(["lastNotNull"])
    return stat.Panel().reduce_options(last).graph_mode(BigValueGraphMode.AREA)


def _lines(panel: Panel) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.TABLE)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        .show_points(VisibilityMode.NEVER)
        .fill_opacity(60 if panel.kind == "stack" else 5)
    )
    if panel.kind == "stack":
        made.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    if panel.unit in ("none", "s", "ops", "reqps", "percentunit"):
        made.axis_soft_min(0)
    if panel.warn is not None or panel.bad is not None:
        style = common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
        made.thresholds_style(style)
    return made


def _description(panel: Panel) -> str:
    reasons = list(dict.fromkeys(query.no_data for query in panel.queries if query.no_data))
    return (
        f"{panel.description}\n\nWithout data: {'; '.join(reasons)}."
        if reasons
        else panel.description
    )


def _thresholds(panel: Panel) -> dashboard.ThresholdsConfig:
    limits = [(panel.warn, "yellow"), (panel.bad, "red")]
    rising = [(value, colour) for value, colour in limits if value is not None]
    steps = [Threshold(None, "green")] + [Threshold(value, colour) for value, colour in rising]
    if panel.warn is not None and panel.bad is not None and panel.bad < panel.warn:
        steps = [
            Threshold(None, "red"),
            Threshold(panel.bad, "yellow"),
            Threshold(panel.warn, "green"),
        ]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _target(letter: str, query: Query) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery()
        .ref_id(letter)
        .datasource(_SOURCE)
        .expr(query.expr)
        .legend_format(query.legend)
        .range()
    )


def _runbook(title: str, place: str) -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink(title)
        .type(DashboardLinkType.LINK)
        .url(f"{RUNBOOK}{place}")
        .target_blank(True)
    )


def files() -> dict[str, str]:
    """Names and texts of the files in the folder."""
    return {f"{board.name}.json": dashboard_json(board) for board in BOARDS}


def main() -> None:
    """Write all dashboards, and nothing else, into the folder."""
    FOLDER.mkdir(exist_ok=True)
    wanted = files()
    for file in FOLDER.glob("*.json"):
        if file.name not in wanted:
            file.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
