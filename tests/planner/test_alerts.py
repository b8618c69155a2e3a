"""The rules of a service: in the names of its release, one value for each service, and with a way out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.alerts import ALERTS, Target, rule_groups, with_settings_for_alerts
from planner.metrics import UnknownMetricError, foreign_series, metrics_of, series_in
from planner.releases import known_releases, release_at
from planner.spec import ServiceSpec
from planner.spec.monitoring import AlertsSpec, alerts_of
from tests.monitoring.targets import monitoring, plan, target
from tests.stack_files import config

CORE = ("VLLMQueueBacklog", "VLLMTTFTSLOBreach", "VLLMKVCacheSaturated", "VLLMPrefixCacheCollapse")
EXTRAS = sorted(set(ALERTS) - {"queue_backlog", "ttft_slo_breach", "kv_cache_saturated", "prefix_cache_collapse"})
RUNBOOK = Path(__file__).parents[2] / "docs" / "runbook.md"


def camel(field: str) -> str:
    head, *rest = field.split("_")
    return head + "".join(word.title() for word in rest)


def everything(version: str) -> dict[str, Any]:
    """All extras that a release can have."""
    without = {"kv_cache_thrashing"} if version == "0.11.0" else set()
    return {camel(field): {"enabled": True} for field in EXTRAS if field not in without}


def rules_of(made: Target) -> Iterator[dict[str, Any]]:
    for group in rule_groups(made):
        yield from group["rules"]


def alerts_named(made: Target) -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules_of(made) if "alert" in rule}


@pytest.mark.parametrize("version", known_releases())
def test_every_series_that_a_rule_reads_exists_in_its_release(version: str) -> None:
    metrics = metrics_of(release_at(version))
    made = target(version, everything(version), {"nodes.lab.pricePerHour": 0.4})
    recorded = {rule["record"] for rule in rules_of(made) if "record" in rule}
    for rule in rules_of(made):
        for sample in series_in(rule["expr"]):
            assert metrics.family_of(sample), (
                f"{rule.get('alert') or rule['record']}: {sample} is not in vLLM {version}"
            )
        others = set(re.findall(r"(?<![\w:])(?:kube|kubelet|DCGM)\w+|(?<![\w:])up(?=\{)", rule["expr"]))
        assert others <= foreign_series().keys(), f"{rule}: a series of an exporter that is not listed"
        asked = set(re.findall(r"service:vllm_[\w:]+", str(rule.get("annotations"))))
        assert asked <= recorded, "a description asks only for what is recorded"


@pytest.mark.parametrize("version", known_releases())
def test_labels_and_edges_of_a_rule_exist_in_its_release(version: str) -> None:
    metrics = metrics_of(release_at(version))
    for rule in rules_of(target(version, everything(version))):
        for sample, edge in re.findall(r'(vllm:\w+_bucket)\{[^}]*le="([^"]+)"', rule["expr"]):
            family = metrics.family_of(sample)
            assert family, f"{sample} exists"
            assert edge in [str(each) for each in family.buckets], f"{sample} has no bucket le={edge!r}"
        for sample, reasons in re.findall(r'(vllm:\w+)\{[^}]*finished_reason=~"([^"]+)"', rule["expr"]):
            family = metrics.family_of(sample)
            assert family, f"{sample} exists"
            assert set(reasons.split("|")) <= set(family.label_values["finished_reason"]), f"{reasons} on {version}"


@pytest.mark.parametrize("version", known_releases())
def test_memory_is_never_read_as_load(version: str) -> None:
    """The card's memory follows the arguments and stays when the service is idle."""
    for rule in rules_of(target(version, everything(version))):
        assert not re.search(r"DCGM|memory_used|fb_used|nvidia", rule["expr"], re.IGNORECASE), rule


def test_four_alerts_are_on_and_the_others_are_asked_for() -> None:
    assert tuple(alerts_named(target("0.33.0"))) == CORE, "too many alerts numb people"
    assert set(alerts_named(target("0.33.0", everything("0.33.0")))) == set(ALERTS.values())
    for field, name in ALERTS.items():
        off = alerts_named(target("0.33.0", {camel(field): {"enabled": False}}))
        assert name not in off, f"{name} can be switched off"


def test_every_alert_says_what_is_wrong_and_where_to_read_on() -> None:
    headings = {
        line.removeprefix("## ").strip().lower() for line in RUNBOOK.read_text().splitlines() if line[:3] == "## "
    }
    for name, rule in alerts_named(target("0.33.0", everything("0.33.0"))).items():
        assert re.fullmatch(r"\d+[smh]", rule["for"]), f"{name} waits before it fires"
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}, f"{name} has a severity"
        assert rule["labels"]["service"] == "vllm-service", f"{name} names the service"
        notes = rule["annotations"]
        assert notes["summary"].startswith("ai-infra/vllm-service: "), f"{name}: the summary names the service"
        assert "$value" in notes["description"], f"{name}: the description has the live value"
        page, _, anchor = notes["runbook_url"].partition("#")
        assert page == "docs/runbook.md", f"{name}: the runbook of this repository unless the stack names another"
        assert anchor in headings, f"{name}: docs/runbook.md has no heading {anchor}"


def test_the_runbook_has_an_entry_for_each_alert_in_the_promised_order() -> None:
    text = RUNBOOK.read_text()
    for name in ALERTS.values():
        entry = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        parts = re.findall(r"^\*\*(.+?)\*\*", entry, re.MULTILINE)
        assert parts == ["What it means.", "What to look at first.", "What to change in the stack file."], (
            f"{name}: {parts}"
        )


def test_the_seeds_names_that_are_never_exported_are_not_used() -> None:
    expression = alerts_named(target("0.19.1"))["VLLMPrefixCacheCollapse"]["expr"]
    assert "vllm:prefix_cache_hits_total" in expression, "a counter is exported with _total"
    assert not re.search(r"prefix_cache_(hits|queries)\{", expression), "without it the alert would never fire"


def test_thresholds_come_from_the_stack_file_service_by_service() -> None:
    spec = monitoring(
        {
            "alerts": {"queueBacklog": {"waitingPerReplica": 20, "for": "1m"}},
            "services": {"qwen": {"queueBacklog": {"for": "90s"}, "prefixCacheCollapse": {"enabled": False}}},
        }
    )
    ours, others = alerts_of(spec, "qwen"), alerts_of(spec, "another")
    assert (ours.queue_backlog.waiting_per_replica, ours.queue_backlog.hold) == (20, "90s"), "the service's word wins"
    assert (others.queue_backlog.hold, others.prefix_cache_collapse.enabled) == ("1m", True), "and only its own"
    assert not ours.prefix_cache_collapse.enabled, "prompts of this service are short or unrelated"


def test_a_limit_for_the_whole_service_is_added_to_that_of_a_replica() -> None:
    plain = alerts_named(target("0.33.0"))["VLLMQueueBacklog"]["expr"]
    both = alerts_named(target("0.33.0", {"queueBacklog": {"waitingPerService": 30}}))["VLLMQueueBacklog"]["expr"]
    assert plain.endswith("> 10"), "the fullest replica"
    assert "pod" in plain, "the fullest replica"
    assert both.endswith(f"or {plain}"), "either"
    assert "> 30 or" in both, "either"


@pytest.mark.parametrize(("seconds", "edge"), [(2, "2.5"), (2.5, "2.5"), (2.6, "5.0"), (0.5, "0.5")])
def test_an_objective_is_evaluated_at_the_next_bucket_edge(seconds: float, edge: str) -> None:
    expression = alerts_named(target("0.31.0", {"ttftSloBreach": {"seconds": seconds}}))["VLLMTTFTSLOBreach"]["expr"]
    assert f'le="{edge}"' in expression, "between edges nothing is known"
    assert "histogram_quantile" not in expression, "an interpolated quantile would answer 2.425 s for 1.1 s"


def test_own_buckets_make_the_objective_exact() -> None:
    own = {"services.qwen.engine.extraArgs": ["--custom-histogram-buckets", '{"time_to_first_token": [1, 2, 4]}']}
    expression = alerts_named(target("0.33.0", {}, {"services.qwen.image.tag": "v0.33.0", **own}))["VLLMTTFTSLOBreach"]
    assert 'le="2.0"' in expression["expr"], "0.33.0 lets you choose the edges"


def test_an_objective_beyond_the_last_bucket_is_refused() -> None:
    with pytest.raises(UnknownMetricError, match="ends below 9999 s"):
        rule_groups(target("0.31.0", {"ttftSloBreach": {"seconds": 9999}}))
    assert rule_groups(target("0.31.0", {"ttftSloBreach": {"seconds": 2560}})), "the last edge can be used"


@pytest.mark.parametrize(("version", "switched"), [("0.11.0", None), ("0.19.1", True), ("0.33.0", True)])
def test_the_thrash_alert_switches_its_series_on_where_the_release_can(version: str, switched: bool | None) -> None:
    alerts = AlertsSpec.model_validate({"kvCacheThrashing": {"enabled": True}})
    service = config(changes={"services.qwen.image.tag": f"v{version}"}).services["qwen"]
    assert with_settings_for_alerts(service, alerts).engine.kv_cache_metrics is switched, f"vLLM {version}"
    assert with_settings_for_alerts(service, AlertsSpec()).engine.kv_cache_metrics is None, "nobody asked"
    if switched:
        planned = plan(version, monitoring({"alerts": {"kvCacheThrashing": {"enabled": True}}}))
        assert "--kv-cache-metrics" in planned.argv, "without it the two histograms do not exist"
    else:
        with pytest.raises(UnknownMetricError, match=r"0\.11\.0 exports no vllm:kv_block_reuse_gap_seconds_bucket"):
            rule_groups(target(version, {"kvCacheThrashing": {"enabled": True}}))


def test_no_collapse_without_a_prefix_cache() -> None:
    off = target("0.33.0", {}, {"services.qwen.engine.enablePrefixCaching": False})
    assert "VLLMPrefixCacheCollapse" not in alerts_named(off), "its counters do not move"
    on = target("0.33.0", {}, {"services.qwen.engine.enablePrefixCaching": True})
    assert "VLLMPrefixCacheCollapse" in alerts_named(on)


def test_a_server_that_starts_is_not_down() -> None:
    made = target("0.33.0", {"serverDown": {"enabled": True}})
    hold = alerts_named(made)["VLLMServerDown"]["for"]
    assert int(hold.removesuffix("s")) > made.startup_window_seconds, "an update stops the old server first"
    given = target("0.33.0", {"serverDown": {"enabled": True, "for": "3m"}})
    assert alerts_named(given)["VLLMServerDown"]["for"] == "3m", "unless the stack says otherwise"


OWN = {"alert": "LongPrompts", "summary": "long prompts", "runbookUrl": "https://wiki.example.com/long"}


def test_an_alert_of_your_own_is_made_and_its_series_are_checked() -> None:
    good = {**OWN, "expr": "rate(vllm:prompt_tokens_total[5m]) > 1000"}
    rule = alerts_named(target("0.33.0", {"own": [good]}))["LongPrompts"]
    assert rule["annotations"]["runbook_url"] == "https://wiki.example.com/long"
    bad = {**OWN, "expr": "vllm:gpu_cache_usage_perc > 0.9"}
    with pytest.raises(UnknownMetricError, match="vllm:kv_cache_usage_perc"):
        rule_groups(target("0.33.0", {"own": [bad]}))


def test_cost_is_recorded_only_where_a_price_is_known() -> None:
    def recorded(changes: dict[str, Any]) -> set[str]:
        return {rule["record"] for rule in rules_of(target("0.33.0", {}, changes)) if "record" in rule}

    cost = "service:vllm_cost_dollars_per_million_tokens:mean5m"
    assert cost not in recorded({}), "no price, no cost"
    assert cost in recorded({"nodes.lab.pricePerHour": 0.4})


def test_links_inside_the_runbook_lead_somewhere() -> None:
    text = RUNBOOK.read_text()
    headings = {heading.lower() for heading in re.findall(r"^## (\w+)$", text, re.MULTILINE)}
    links = set(re.findall(r"\]\(#(\w+)\)", text))
    assert links, "entries refer to each other"
    assert links <= headings, f"{links - headings} lead nowhere"


def test_fields_that_the_runbook_names_exist() -> None:
    text = re.sub(r"\s+", " ", RUNBOOK.read_text())
    schema = json.dumps(ServiceSpec.model_json_schema())
    for path in re.findall(r"`services\.KEY\.([\w.]+)", text):
        for word in path.split("."):
            assert f'"{word}":' in schema, f"services.KEY.{path} is no field of a stack file"
    alerts = json.dumps(AlertsSpec.model_json_schema())
    for path in re.findall(r"`monitoring\.(?:alerts|services\.KEY)\.([\w.]+)", text):
        for word in path.split("."):
            assert f'"{word}":' in alerts, f"monitoring.….{path} is no field of a stack file"
