"""The rendered rules and panels on the series of a real server: nothing is refused, nothing is empty."""

from __future__ import annotations

import math
import sys

import pytest

from infra.snapshot import difference, parse
from planner.alerts import PREFILL_TIME, QUEUE_TIME, TTFT, rule_groups
from planner.scrape import series_of
from sim.traffic import Client, at_once
from tests.metrics.prometheus import Prometheus, until
from tests.metrics.server import Server
from tests.metrics.service import (
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    NEEDS_ANOTHER_EXPORTER,
    alert_rules,
    arguments,
    model_name,
    recorded,
    target,
    without_thresholds,
)
from tests.metrics.words import prompt

pytestmark = pytest.mark.metrics
MADE = target()


ENDED = 1 + 3 * MAX_NUM_SEQS
"""The one that was abandoned ends without being counted (`abort_requests` of vllm/v1/engine/output_processor.py)."""


@pytest.fixture(scope="module", autouse=True)
def served(server: Server, prometheus: Prometheus) -> None:
    """Every kind of request has been served and read: answers, streams, one that was abandoned, a queue, repeats."""
    ended = f"sum(vllm:request_success_total{MADE.selector()})"
    (before,) = until(lambda: prometheus.query(ended), "the server is read before its counters move")
    client = server.client
    client.chat([{"role": "user", "content": prompt(0, 200)}], 8)
    client.abandon(prompt(1, 40), 1000)
    at_once(3 * MAX_NUM_SEQS, lambda number: client.stream(prompt(number % 2, 300), 16))
    until(lambda: prometheus.value(ended) == before.value + ENDED, f"{ENDED} requests have ended and were read")
    first = f"{recorded()[0]}{MADE.selector()}"
    until(lambda: prometheus.query(first), "rates have two readings")


def test_the_server_is_scraped(prometheus: Prometheus) -> None:
    assert prometheus.value(f"up{MADE.selector()}") == 1, "the target answers"


def test_no_rule_has_an_error(prometheus: Prometheus) -> None:
    def health() -> dict[str, str]:
        return {rule["name"]: rule["health"] for rule in prometheus.rules()}

    until(lambda: "unknown" not in health().values(), "every rule has been evaluated")
    errors = {rule["name"]: rule.get("lastError") for rule in prometheus.rules() if rule["health"] != "ok"}
    assert not errors, errors
    expected = {rule.get("alert") or rule["record"] for group in rule_groups(MADE) for rule in group["rules"]}
    assert health().keys() == expected, "Prometheus has all the rules and no others"


@pytest.mark.parametrize("name", recorded())
def test_every_recorded_series_has_data(prometheus: Prometheus, name: str) -> None:
    found = prometheus.query(f"{name}{MADE.selector()}")
    assert found, f"{name}: nothing is recorded from the series of a real server"
    assert all(math.isfinite(each.value) for each in found), f"{name}: {found}"
    for each in found:
        assert each.labels["model_name"] == model_name(), f"{name} says of which model it is"


@pytest.mark.parametrize("name", alert_rules())
def test_every_alert_reads_series_that_are_there(prometheus: Prometheus, name: str) -> None:
    expression = alert_rules()[name]["expr"]
    prometheus.query(expression)
    found = prometheus.query(without_thresholds(expression))
    if name in NEEDS_ANOTHER_EXPORTER:
        assert not found, f"{name} needs {NEEDS_ANOTHER_EXPORTER[name]}, which is not here: {found}"
        return
    assert len(found) == 1, f"{name} reads series that a real server does not export, or is no single page: {found}"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the dashboard library needs Python 3.11")
def test_every_panel_shows_something(prometheus: Prometheus) -> None:
    from components.dashboard import panels_now, panels_over_time  # noqa: PLC0415

    empty = [
        f"{panel.title}: {expression}"
        for panel in (*panels_now(MADE), *panels_over_time(MADE))
        for _, expression in panel.queries
        if not [each for each in prometheus.query(expression) if math.isfinite(each.value)]
    ]
    assert not empty, f"panels without data: {empty}"


def test_the_parts_of_the_first_token_add_up(prometheus: Prometheus, client: Client) -> None:
    """On the server's own counters, and on what is recorded from them."""
    before = parse(client.page(), "before")
    answers = at_once(2 * MAX_NUM_SEQS, lambda number: client.stream(prompt(number, 100), 4))
    found = difference({"server": before}, {"server": parse(client.page(), "after")})
    for family in (TTFT, QUEUE_TIME, PREFILL_TIME):
        assert found.timings[family].count == len(answers), f"{family} counts every request that has ended"
    assert found.rest is not None
    assert found.rest > 0, "the API server, the tokeniser and the event loop take time of their own"
    names = ("time_to_first_token", "request_queue_time", "request_prefill_time", "time_to_first_token_rest")
    total, *parts = (f"service:vllm_{name}_seconds:mean5m{MADE.selector()}" for name in names)
    assert abs(prometheus.value(f"{total} - {' - '.join(parts)}")) < 1e-9, "at any one moment the parts are the whole"


def test_no_more_series_are_kept_than_the_plan_says(prometheus: Prometheus) -> None:
    planned = series_of(MADE, arguments(), MAX_MODEL_LEN)
    kept = prometheus.value(f'count({{__name__=~"vllm:.+",service="{MADE.service}"}})')
    assert kept <= planned.kept, f"{kept:.0f} series are stored, the preview says {planned.kept}"
    assert not prometheus.query('{__name__=~".+_created"}'), "times of creation are dropped"
