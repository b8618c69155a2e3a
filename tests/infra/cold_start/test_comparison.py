"""A measured start beside the plan: what is said of it, and what is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.cold_start import Evidence, Report, rates, reports_of, write
from infra.cold_start.comparison import WARN_SHARE
from infra.cold_start.measurement_file import document
from planner.plan import ServicePlan
from tests.infra.cold_start import starts as made
from tests.infra.cold_start.starts import L40S

OPEN = {
    "services.qwen.offline": False,
    "services.qwen.cache.seed": {"enabled": False},
    "nodes.l40s.imageDelivery": "none",
}
"""A server that pulls and downloads itself, as the one that was measured did."""


def report(evidence: Evidence, changes: dict[str, Any] | None = None, card_mib: int | None = None) -> Report:
    found = reports_of(made.plan(OPEN if changes is None else changes), evidence, card_mib)
    assert len(found) == 1, "one start"
    return found[0]


def rules(of: Report) -> dict[str, str]:
    return {finding.rule: finding.level for finding in of.findings}


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("nothing", (False, False, False, False)),
        ("image", (True, False, False, False)),
        ("weights", (True, True, True, False)),
        ("compile cache", (True, True, True, True)),
    ],
)
def test_the_plan_beside_it_is_that_of_the_caches_it_found(name: str, state: tuple[bool, ...]) -> None:
    found = report(made.measured(name))
    assert (found.state.image, found.state.weights, found.state.page_cache, found.state.compile_cache) == state
    planned = {row.name: row.planned for row in found.rows}
    assert planned["not explained"] is None, "nobody plans what nobody knows"
    assert planned["init engine"] == found.planned.init_engine_seconds
    parts = [row.planned or 0.0 for row in found.rows if row.part]
    assert sum(parts) == pytest.approx(found.planned.init_engine_seconds), "the parts of the sum, not a second time"


@pytest.mark.parametrize("name", L40S)
def test_a_start_as_planned_gives_no_warning(name: str) -> None:
    sizes = {"services.qwen.engine.cudagraphCaptureSizes": [1, 2, 4, 8, 16, 32, 64]} if name == "seven graphs" else {}
    evidence = made.measured(name)
    if sizes:
        logged = (evidence.log or "").replace(
            "'gpu_memory", "'cuda_graph_sizes': [1, 2, 4, 8, 16, 32, 64], 'gpu_memory"
        )
        evidence = replace(evidence, log=logged)
    levels = {finding.level for finding in report(evidence, {**OPEN, **sizes}).findings}
    assert levels <= {"info"}, "nothing is wrong with these five"


# The budget


def budget(share: float) -> Report:
    """A report whose window makes the measured start this share of it."""
    evidence = made.measured("weights")
    seconds = report(evidence).start.in_container_seconds
    assert seconds is not None
    return report(evidence, {**OPEN, "services.qwen.overrides.startupSeconds": round(seconds / share / 10) * 10})


def test_a_start_slower_than_its_budget_is_an_error() -> None:
    found = budget(1.3)
    assert rules(found)["START-BUDGET"] == "error", "the probe would have killed it"
    (finding,) = [one for one in found.findings if one.rule == "START-BUDGET"]
    assert str(found.budget_seconds) in finding.message, "both numbers are said"
    assert "import" in finding.remedy, "and the longest phase in the container"


def test_a_start_near_its_budget_is_a_warning() -> None:
    found = budget(0.8)
    assert found.start.in_container_seconds is not None
    assert WARN_SHARE < found.start.in_container_seconds / found.budget_seconds < 1
    assert rules(found)["START-BUDGET"] == "warn", "a slower day would be killed"


def test_a_start_well_inside_its_budget_says_nothing() -> None:
    assert "START-BUDGET" not in rules(budget(0.5)), "every ERROR has a neighbour that passes"


def test_a_start_that_was_killed_is_an_error_also_below_the_budget() -> None:
    killed = {"reason": "OOMKilled", "exitCode": 137, "startedAt": made.whole(2), "finishedAt": made.whole(30)}
    before = made.log(made.lines("0.11.0", L40S["weights"], 2)[:6])
    evidence = made.measured("weights", pod=made.pod(31, None, restarts=1, last=killed), log="", previous_log=before)
    first, second = reports_of(made.plan(OPEN), evidence)
    assert rules(first)["START-ENDED"] == "error", "a start that never came to its end was not fast"
    assert second.start.outcome == "starting"
    assert not {"error"} & set(rules(second).values()), "one that is under way is not judged yet"


# Caches, arguments, KV


def test_a_restart_that_compiles_is_named() -> None:
    assert rules(report(made.measured("weights")))["START-CACHE"] == "info", "right after a change, wrong on a restart"
    assert "START-CACHE" not in rules(report(made.measured("compile cache"))), "a hit is what is wanted"


def test_bytes_that_should_have_been_there_are_a_warning() -> None:
    found = rules(report(made.measured("nothing"), {}))
    assert (found.get("START-DOWNLOAD"), found.get("START-IMAGE")) == ("warn", "warn"), "the stack seeds and pre-pulls"
    assert not {"START-DOWNLOAD", "START-IMAGE"} & set(rules(report(made.measured("weights"), {}))), "it found both"


@pytest.mark.parametrize(
    ("tokens", "warns"), [("470,624", False), ("474,000", False), ("460,000", True), ("480,000", True)]
)
def test_kv_tokens_are_compared_within_one_percent(tokens: str, warns: bool) -> None:
    evidence = made.measured("weights")
    found = rules(report(replace(evidence, log=(evidence.log or "").replace("470,624", tokens))))
    assert ("START-KV" in found) is warns, "another process on the card would take them"


def test_a_start_that_hits_is_compared_with_the_plan_of_one_that_hits() -> None:
    changes = {**OPEN, "services.qwen.image.tag": "v0.31.0"}
    plan = made.plan(changes)
    compiling, cached = plan.memory.kv_tokens_compiling, plan.memory.kv_tokens_cached
    assert compiling < cached, "here the two differ, or this test shows nothing"
    for name, planned in (("weights", compiling), ("compile cache", cached)):
        assert report(made.measured(name, "0.31.0"), changes).kv_tokens_planned == planned, name


@pytest.mark.parametrize(("blocks", "says"), [("29414", False), ("8633", True)])
def test_the_metrics_page_must_say_the_same_tokens(blocks: str, says: bool) -> None:
    page = f'vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="{blocks}"}} 1.0\n'
    assert ("START-KV-METRICS" in rules(report(made.measured("weights", metrics=page)))) is says


@pytest.mark.parametrize(("mib", "warns"), [(None, False), (42_097, False), (30_000, True)])
def test_the_cards_memory_is_compared_when_given(mib: int | None, warns: bool) -> None:
    assert ("START-CARD" in rules(report(made.measured("weights"), card_mib=mib))) is warns


def test_lines_that_are_missing_are_named() -> None:
    evidence = made.measured("weights")
    text = "".join(f"{raw}\n" for raw in (evidence.log or "").splitlines() if "KV cache" not in raw)
    (finding,) = [one for one in report(replace(evidence, log=text)).findings if one.rule == "START-LINES"]
    assert "kvTokens" in finding.message, "a release that words a line anew must not go unnoticed"
    assert report(replace(evidence, log=text)).start.kv_tokens is None


# The measurement file


def measured_rates(evidence: Evidence, changes: dict[str, Any] | None = None) -> dict[str, float]:
    plan: ServicePlan = made.plan(OPEN if changes is None else changes)
    return {key: round(rate.value, 1) for key, rate in rates(plan, evidence, reports_of(plan, evidence)[-1]).items()}


def test_a_start_from_nothing_gives_the_rates_of_the_lines() -> None:
    found = measured_rates(made.measured("nothing"))
    assert (found["registryMbPerSecond"], found["hubMbPerSecond"]) == (56.6, 82.1), "12.45 GB and 15.23 GB"
    assert "diskMbPerSecond" not in found, "what was downloaded a moment ago is read from who knows where"


def test_a_read_from_the_page_cache_is_no_rate_of_the_disk() -> None:
    assert "diskMbPerSecond" not in measured_rates(made.measured("weights")), "15.2 GB in 2.2 s came from memory"


def test_a_read_from_the_volume_is() -> None:
    row = replace(L40S["weights"], read=14.76)
    evidence = made.measured("weights", log=made.log(made.lines("0.11.0", row, 2)))
    assert measured_rates(evidence)["diskMbPerSecond"] == 1031.9, "15,231,233,024 B in 14.76 s"


def test_what_the_pod_did_not_do_itself_is_taken_from_who_did() -> None:
    events = (made.present(1), made.pulled(100.0, -400, "qwen-pre-pull-xyz"))
    evidence = made.measured("weights", events=events, seed_log=made.seed_line(15_231_233_024, 200.0) + "\n")
    found = measured_rates(evidence, {})
    assert found["registryMbPerSecond"] == 124.5, "the pre-pull's event on the same node"
    assert found["hubMbPerSecond"] == 76.2, "the seed Job says bytes and seconds of the download alone"


def test_the_pull_of_another_node_is_not_this_nodes() -> None:
    other = made.pulled(100.0, -400, "qwen-pre-pull-xyz")
    other["source"] = {"host": "l40s-1"}
    assert "registryMbPerSecond" not in measured_rates(made.measured("weights", events=(made.present(1), other)))


def test_a_rate_that_was_not_measured_again_stays() -> None:
    plan, evidence = made.plan(OPEN), made.measured("compile cache")
    before = {"registryMbPerSecond": 56.6, "hubMbPerSecond": 82.1, "observed": {"sources": {"hubMbPerSecond": "row 1"}}}
    after = document(plan, evidence, reports_of(plan, evidence)[-1], before)
    assert (after["registryMbPerSecond"], after["hubMbPerSecond"]) == (56.6, 82.1), "a warm start measures neither"
    assert after["observed"]["sources"]["hubMbPerSecond"] == "row 1", "and where they are from stays with them"
    assert set(after) <= {"registryMbPerSecond", "hubMbPerSecond", "diskMbPerSecond", "processStartSeconds", "observed"}
    assert after["observed"]["pod"] == "qwen-0-abc-1"


def test_the_newest_start_that_came_to_its_end_is_written(tmp_path: Path) -> None:
    killed = {"reason": "Error", "exitCode": 137, "startedAt": made.whole(2), "finishedAt": made.whole(95)}
    whole, half = made.lines("0.11.0", L40S["weights"], 2), made.lines("0.11.0", L40S["weights"], 100)[:9]
    pod = made.pod(100, None, restarts=1, last=killed)
    evidence = made.measured("weights", pod=pod, previous_log=made.log(whole), log=made.log(half))
    plan = made.plan(OPEN)
    write(tmp_path / "lab.json", plan, evidence, reports_of(plan, evidence))
    observed = json.loads((tmp_path / "lab.json").read_text("utf-8"))["observed"]
    assert observed["initEngineSeconds"] == 35.21, "the one that is under way has no such figure yet"


def test_the_newer_of_two_starts_is_written(tmp_path: Path) -> None:
    ended = {"reason": "Error", "exitCode": 1, "startedAt": made.whole(2), "finishedAt": made.whole(95)}
    logs = [made.log(made.lines("0.11.0", L40S[name], at)) for name, at in (("weights", 2), ("compile cache", 100))]
    pod = made.pod(100, 150, restarts=1, last=ended)
    evidence = made.measured("weights", pod=pod, previous_log=logs[0], log=logs[1])
    plan = made.plan(OPEN)
    write(tmp_path / "lab.json", plan, evidence, reports_of(plan, evidence))
    assert json.loads((tmp_path / "lab.json").read_text("utf-8"))["observed"]["initEngineSeconds"] == 12.5
