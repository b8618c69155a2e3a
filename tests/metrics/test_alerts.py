"""An alert that real load brings to firing, what its page says, and that it goes when the load does."""

from __future__ import annotations

import re

import pytest

from planner.alerts import TTFT, WAITING
from sim.traffic import Client, at_once, steady
from tests.metrics.prometheus import Alert, Prometheus, until
from tests.metrics.service import MAX_NUM_SEQS, target
from tests.metrics.words import prompt

pytestmark = pytest.mark.metrics
MADE = target()
CLIENTS = 6 * MAX_NUM_SEQS
"""More than run at once, by twice the ten that may wait."""
TOKENS = 400
"""Of one answer: five rounds of these make the last of the clients wait far longer than the objective of 2 s."""
RIGHT = {"VLLMQueueBacklog", "VLLMTTFTSLOBreach", "VLLMTTFTBudgetBurn"}
"""What must fire: requests wait, and for that reason their first token comes late."""
SAID = re.compile(r"queue (?P<queue>\S+), prefill (?P<prefill>\S+)\.")


@pytest.fixture(scope="module")
def pages(prometheus: Prometheus, client: Client) -> dict[str, Alert]:
    """The alerts that fire under a queue, as they are while it lasts."""

    def firing() -> dict[str, Alert]:
        return {alert.name: alert for alert in prometheus.alerts() if alert.state == "firing"}

    until(lambda: prometheus.query(MADE.series(WAITING)), "the server is read before the load")
    assert not firing(), "an idle server pages nobody"
    with steady(CLIENTS, lambda _: client.stream(prompt(3, 200), TOKENS)):
        return until(lambda: firing() if firing().keys() >= RIGHT else {}, f"{sorted(RIGHT)} fire")


def test_a_queue_pages_with_the_values_of_its_moment(pages: dict[str, Alert]) -> None:
    page = pages["VLLMQueueBacklog"]
    assert MADE.alerts.queue_backlog.waiting_per_replica < page.value <= CLIENTS - MAX_NUM_SEQS, (
        "what waits is what does not run"
    )
    assert page.annotations["description"].startswith(f"{page.value:g} requests wait (more than 10 at one replica)")
    said = SAID.search(page.annotations["description"])
    assert said, page.annotations["description"]
    assert said["queue"] != "not", "the mean queue time is known while requests end"
    assert said["prefill"] != "not", "so is the prefill's"


def test_a_page_names_its_service_and_its_runbook(pages: dict[str, Alert]) -> None:
    for name in sorted(RIGHT):
        page = pages[name]
        where = {"namespace": MADE.namespace, "service": MADE.service, "severity": page.labels["severity"]}
        assert where.items() <= page.labels.items(), page.labels
        assert page.annotations["summary"].startswith(f"{MADE.namespace}/{MADE.service}: "), page.annotations
        assert page.annotations["runbook_url"].endswith(f"#{name.lower()}"), page.annotations


def test_late_first_tokens_page_with_their_share(pages: dict[str, Alert]) -> None:
    page = pages["VLLMTTFTSLOBreach"]
    assert 0 <= page.value < MADE.alerts.ttft_slo_breach.quantile, "the share that came in time"
    assert "had their first token within 2.5 s; the objective is 0.95 within 2 s" in page.annotations["description"]


def test_nothing_else_fires(pages: dict[str, Alert], prometheus: Prometheus) -> None:
    assert pages.keys() == RIGHT, "every alert is switched on; a queue is no full KV cache and no hung engine"
    names = [alert.name for alert in prometheus.alerts() if alert.state == "firing"]
    assert len(names) == len(set(names)), f"one page for each fault, not one for each series: {names}"


def test_alerts_go_when_the_load_does(pages: dict[str, Alert], prometheus: Prometheus, client: Client) -> None:
    assert pages, "they fired"
    until(lambda: not prometheus.firing("VLLMQueueBacklog"), "nobody waits any more")

    def has_its_objective_again() -> bool:
        at_once(MAX_NUM_SEQS, lambda _: client.stream(prompt(3, 200), 1))
        return not prometheus.firing("VLLMTTFTSLOBreach")

    until(has_its_objective_again, "nineteen of twenty requests are answered in time again")
    share = MADE.within(TTFT, MADE.edge(TTFT, MADE.alerts.ttft_slo_breach.seconds))
    assert prometheus.value(share) >= MADE.alerts.ttft_slo_breach.quantile, "that is why"
    assert prometheus.ever_fired() == RIGHT, "nor did anything else fire in between"
