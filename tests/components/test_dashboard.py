"""The dashboard's document: Grafana reads it, its lines are the stack's alerts, and its queries are PromQL."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.alerts import rule_groups
from planner.metrics import metrics_of, series_in
from planner.releases import known_releases, release_at
from tests.monitoring.targets import target
from tests.planner.test_alerts import everything

pytest.importorskip("grafana_foundation_sdk", reason="the library that makes dashboards needs Python 3.11")

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from components.dashboard import dashboard_json

PRICED = {"nodes.lab.pricePerHour": 0.4}
each_release = pytest.mark.parametrize("version", known_releases())


def document(version: str = "0.33.0", alerts: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return dict(json.loads(dashboard_json(target(version, alerts, **more))))


def panels(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The panels without the headings of rows."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def by_title(board: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {panel["title"]: panel for panel in panels(board)}


def queries(board: Mapping[str, Any]) -> list[str]:
    return [query["expr"] for panel in panels(board) for query in panel["targets"]]


def steps(panel: Mapping[str, Any]) -> list[tuple[float | None, str]]:
    thresholds = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    return [(step["value"], step["color"]) for step in thresholds]


def read_back(board: Mapping[str, Any]) -> dict[str, Any]:
    """The document after Grafana's own schema has read it; what the schema does not know is lost."""
    register_default_plugins()
    again = dict(json.loads(JSONEncoder().encode(Dashboard.from_json(dict(board)))))
    for panel in panels(again):
        defaults = panel["fieldConfig"]["defaults"]
        if defaults.get("custom") == {}:
            del defaults["custom"]
    return again


@each_release
def test_grafanas_schema_knows_every_field(version: str) -> None:
    board = document(version, everything(version), changes=PRICED, replicas=2)
    assert read_back(board) == board, "a field that the schema loses is one that Grafana ignores"
    misspelt = {**board, "refesh": "30s"}
    assert read_back(misspelt) != misspelt, "a field that does not exist is noticed"


@each_release
def test_every_panel_says_what_it_shows(version: str) -> None:
    board = document(version, changes=PRICED)
    for panel in panels(board):
        assert panel["title"], "a number without a name"
        assert len(panel.get("description", "")) > 20, f"{panel['title']}: says what is counted, and over what"
        assert panel["fieldConfig"]["defaults"]["unit"], f"{panel['title']}: a number without a unit"
        assert panel["targets"], f"{panel['title']}: asks nothing"
    titles = [panel["title"] for panel in panels(board)]
    assert len(set(titles)) == len(titles), "people speak of a panel by its title"
    identifiers = [panel["id"] for panel in board["panels"]]
    assert len(set(identifiers)) == len(identifiers), "Grafana links to a panel by its id"


@pytest.mark.parametrize("changes", [None, PRICED], ids=["no price", "priced"])
def test_panels_fill_the_grid_and_do_not_overlap(changes: dict[str, Any] | None) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in document(changes=changes)["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies on another panel"
        assert max(x for x, _ in cells) < 24, f"{panel['title']} reaches beyond Grafana's 24 columns"
        taken |= cells
    last = max(y for _, y in taken)
    assert len(taken) == 24 * (last + 1), "a hole in the grid: Grafana would move panels up into it"


def test_what_one_asks_first_comes_first() -> None:
    board = document(changes=PRICED)
    assert panels(board)[0]["title"] == "Alerts firing", "why one was paged"
    rows = [panel["title"] for panel in board["panels"] if panel["type"] == "row"]
    assert [row.split()[-1] for row in rows] == ["prefill?", "cache?", "cost?"], "queue or prefill, room, then cost"


ALERT_OF = {
    "Waiting requests by replica": ("VLLMQueueBacklog", {"queueBacklog": {"waitingPerReplica": 7}}, 7),
    "Waiting, fullest replica": ("VLLMQueueBacklog", {"queueBacklog": {"waitingPerReplica": 7}}, 7),
    "Time to first token": ("VLLMTTFTSLOBreach", {"ttftSloBreach": {"seconds": 3}}, 5),
    "First token in time": ("VLLMTTFTSLOBreach", {"ttftSloBreach": {"quantile": 0.9}}, 0.9),
    "KV cache in use by replica": ("VLLMKVCacheSaturated", {"kvCacheSaturated": {"usage": 0.8}}, 0.8),
    "KV cache, fullest": ("VLLMKVCacheSaturated", {"kvCacheSaturated": {"usage": 0.8}}, 0.8),
    "Prefix cache hit rate": ("VLLMPrefixCacheCollapse", {"prefixCacheCollapse": {"hitRate": 0.3}}, 0.3),
    "Prefix hits now": ("VLLMPrefixCacheCollapse", {"prefixCacheCollapse": {"hitRate": 0.3}}, 0.3),
    "Pre-emptions per minute": ("VLLMPreemptions", {"preemptions": {"enabled": True, "perMinute": 4}}, 4),
    "Time between tokens": ("VLLMInterTokenLatency", {"interTokenLatency": {"enabled": True, "seconds": 0.06}}, 0.075),
}


@each_release
@pytest.mark.parametrize("title", ALERT_OF)
def test_a_line_is_where_the_stacks_alert_begins(title: str, version: str) -> None:
    name, alerts, limit = ALERT_OF[title]
    made = target(version, alerts)
    panel = by_title(json.loads(dashboard_json(made)))[title]
    (rule,) = [rule for group in rule_groups(made) for rule in group["rules"] if rule.get("alert") == name]
    numbers = {float(number) for number in re.findall(r'(?:[<>] |le=")([\d.]+)', rule["expr"])}
    assert steps(panel)[1][0] == limit, "the stack's value, at a bucket edge where the alert is evaluated at one"
    assert limit in numbers, f"the alert compares with {numbers}"
    assert f"{name} " in panel["description"], "the reader learns which alert that is"
    assert f"after {rule['for']}" in panel["description"], "and that a moment above the line pages nobody"


@pytest.mark.parametrize("title", ALERT_OF)
def test_no_line_without_an_alert(title: str) -> None:
    name, alerts, _ = ALERT_OF[title]
    ((field, values),) = alerts.items()
    board = document(alerts={field: {**values, "enabled": False}})
    panel = by_title(board)[title]
    assert len(steps(panel)) == 1, f"{name} is off: a red line would promise a page that never comes"
    assert "Red" not in panel["description"]


def test_the_line_is_red_whichever_side_is_bad() -> None:
    """Grafana draws a step's line in the step's colour, or in the colour before it where it is transparent."""
    board = by_title(document())
    assert steps(board["Waiting requests by replica"]) == [(None, "transparent"), (10, "red")], "too high"
    assert steps(board["Prefix cache hit rate"]) == [(None, "red"), (0.2, "transparent")], "too low"
    for title, panel in board.items():
        custom = panel["fieldConfig"]["defaults"].get("custom", {})
        drawn = custom.get("thresholdsStyle", {}).get("mode") == "dashed"
        assert drawn == (panel["type"] == "timeseries" and len(steps(panel)) > 1), title


def test_a_number_is_coloured_by_its_limit() -> None:
    board = by_title(document(replicas=2))
    assert steps(board["Replicas up, of 2"]) == [(None, "red"), (2, "green")], "one of two is not well"
    assert steps(board["KV cache, fullest"]) == [(None, "green"), (0.95, "red")]
    assert board["Generated per second"]["options"]["colorMode"] == "none", "no alert says which speed is bad"


def test_a_limit_stays_in_the_picture() -> None:
    """An idle service is far below its limits; the line must be seen all the same."""
    for title, panel in by_title(document()).items():
        if panel["type"] == "timeseries" and len(steps(panel)) > 1:
            defaults = panel["fieldConfig"]["defaults"]
            assert defaults["custom"]["axisSoftMax"] > steps(panel)[1][0], f"{title}: the axis ends below its line"


def test_the_objectives_quantile_is_a_curve() -> None:
    """It crosses the line as the alert does; another quantile crosses it earlier or later."""
    board = by_title(document(alerts={"ttftSloBreach": {"quantile": 0.9}}))
    legends = [query["legendFormat"] for query in board["Time to first token"]["targets"]]
    assert legends == ["p50", "p90", "p99"]


def test_numbers_of_this_moment_are_asked_for_this_moment() -> None:
    """Of a range Grafana would show the last value there was, hours after the series ended."""
    for panel in panels(document()):
        for query in panel["targets"]:
            assert query["instant"] == (panel["type"] == "stat"), panel["title"]
            assert query["range"] == (panel["type"] == "timeseries"), panel["title"]


@pytest.mark.parametrize("seconds", [15, 60])
def test_curves_are_no_finer_than_the_readings(seconds: int) -> None:
    made = replace(target("0.33.0"), scrape_interval_seconds=seconds)
    curves = [panel for panel in panels(json.loads(dashboard_json(made))) if panel["type"] == "timeseries"]
    assert {panel["interval"] for panel in curves} == {f"{seconds}s"}


@each_release
def test_every_query_reads_series_of_the_release(version: str) -> None:
    metrics = metrics_of(release_at(version))
    board = document(version, everything(version), changes=PRICED)
    assert len(queries(board)) > len(panels(board)), "quantiles and parts are several queries"
    for query in queries(board):
        assert not [name for name in series_in(query) if metrics.family_of(name) is None], f"{query} on {version}"


@each_release
def test_every_recorded_series_is_recorded(version: str) -> None:
    made = target(version, changes=PRICED)
    recorded = {rule["record"] for group in rule_groups(made) for rule in group["rules"] if "record" in rule}
    read = {
        name for query in queries(json.loads(dashboard_json(made))) for name in re.findall(r"service:[\w:]+", query)
    }
    assert read, "the parts of the time to the first token are recorded"
    assert read <= recorded, f"nobody records {read - recorded}"


@each_release
def test_prometheus_parses_every_query(promtool: Path, tmp_path: Path, version: str) -> None:
    asked = queries(document(version, everything(version), changes=PRICED, replicas=2))
    assert accepted(promtool, tmp_path, asked), "the queries of a dashboard are checked by nobody else"
    assert not accepted(promtool, tmp_path, [*asked, f"{asked[0]})"]), "one bracket too many is noticed"


def accepted(promtool: Path, folder: Path, expressions: list[str]) -> bool:
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(expressions)]
    (folder / "panels.yaml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
    command = [promtool, "check", "rules", folder / "panels.yaml"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_the_data_source_is_chosen_in_grafana() -> None:
    board = document()
    (variable,) = board["templating"]["list"]
    assert (variable["type"], variable["query"], variable["name"]) == ("datasource", "prometheus", "datasource")
    for panel in panels(board):
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, f"{panel['title']}: hard-coded"
        assert not [query for query in panel["targets"] if "datasource" in query], f"{panel['title']}: a second one"


def test_dashboards_of_several_services_live_side_by_side() -> None:
    here, there = target("0.33.0"), replace(target("0.33.0"), namespace="other")
    boards = [json.loads(dashboard_json(made)) for made in (here, there, replace(here, service="second"))]
    assert len({board["uid"] for board in boards}) == 3, "one would overwrite the other"
    assert len({board["title"] for board in boards}) == 3, "two of one name cannot be told apart in a folder"
    for board in boards:
        assert board["links"][0]["tags"] == ["vllm"], "from one to the others"
        assert "vllm" in board["tags"], "it is found by the others"
    for query in queries(boards[1]):
        for selector in selectors(query):
            assert 'namespace="other"' in selector, f"another service's series: {query}"
            assert f'service="{here.service}"' in selector, f"another service's series: {query}"


def selectors(query: str) -> Iterator[str]:
    """The label matchers of each series in a query."""
    return (match.group(1) for match in re.finditer(r"\{([^}]*)\}", query))


def test_the_address_of_a_dashboard_is_stable() -> None:
    identifiers = {
        document(version, alerts, changes=changes, replicas=replicas)["uid"]
        for version, alerts, changes, replicas in (
            ("0.33.0", None, None, 1),
            ("0.11.0", None, None, 1),
            ("0.33.0", {"queueBacklog": {"waitingPerReplica": 3}}, PRICED, 2),
        )
    }
    (identifier,) = identifiers
    assert len(identifier) <= 40, "Grafana's limit"


def test_a_runbook_on_the_web_is_a_link() -> None:
    board = by_title(json.loads(dashboard_json(target("0.33.0", runbook_url="https://wiki.example.com/runbook"))))
    link = "[VLLMQueueBacklog](https://wiki.example.com/runbook#vllmqueuebacklog)"
    assert link in board["Waiting requests by replica"]["description"]
    plain = by_title(document())["Waiting requests by replica"]["description"]
    assert "VLLMQueueBacklog (docs/runbook.md#vllmqueuebacklog)" in plain, "a path is no link in a browser"
