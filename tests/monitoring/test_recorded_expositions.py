"""The tables of metrics against pages that a real vLLM served (scripts/record_exposition.py)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

import pytest
from prometheus_client import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from planner.alerts import rule_groups
from planner.metrics import Metric, Metrics, exported_series, metrics_of, series_in
from planner.releases import release_at
from tests.monitoring.targets import target
from tests.planner.test_alerts import everything

FOLDER = Path(__file__).parent / "expositions"
RECORDED = {path.stem.removeprefix("vllm-"): path for path in sorted(FOLDER.glob("vllm-*.txt"))}
each_recording = pytest.mark.parametrize("version", RECORDED)
MAX_MODEL_LEN = 2048
"""Of the recorded servers."""


@cache
def page(version: str) -> Mapping[str, Family]:
    """The families of vLLM's by the name that their series have."""
    families = {}
    for family in text_string_to_metric_families(RECORDED[version].read_text(encoding="utf-8")):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if name.startswith("vllm:") and not name.endswith("_created"):
            families[name] = family
    return MappingProxyType(families)


def table(version: str) -> Metrics:
    return metrics_of(release_at(version))


def test_there_is_a_recording_of_a_release_that_has_no_table_of_its_own() -> None:
    assert RECORDED, "scripts/record_exposition.py writes them"
    assert "0.32.0" in RECORDED, "between two tables only what both have is promised: here is one that lies between"


@each_recording
def test_every_family_of_the_table_is_served(version: str) -> None:
    absent = {
        name
        for name, metric in table(version).families.items()
        if name not in page(version) and metric.needs in {None, "--kv-cache-metrics"}
    }
    assert not absent, f"vLLM {version} does not export what the table has; that it has no GPU is no reason"


@each_recording
def test_every_family_that_is_served_is_known(version: str) -> None:
    known = table(version)
    new = page(version).keys() - known.families.keys() - known.uncertain.keys()
    assert not new, f"vLLM {version} exports families that no rule could be written for: the tables lack them"


@each_recording
def test_kind_labels_and_buckets_are_those_of_the_table(version: str) -> None:
    for name, family in page(version).items():
        metric = table(version).families.get(name)
        if metric is not None:
            assert family.type == metric.kind, f"{name} is a {family.type}"
            _same_labels(family, metric)
            _same_buckets(family, metric)


def _same_labels(family: Family, metric: Metric) -> None:
    for sample in family.samples:
        if not sample.name.endswith("_created"):
            labels = sample.labels.keys() - {"le"}
            assert metric.labels <= labels, f"{sample.name} lacks {metric.labels - labels}"
    for label, values in metric.label_values.items():
        served = {sample.labels[label] for sample in family.samples if label in sample.labels}
        assert set(values) <= served, f"{metric.name} has no series with {label} of {set(values) - served}"


def _same_buckets(family: Family, metric: Metric) -> None:
    edges = {float(sample.labels["le"]) for sample in family.samples if sample.name.endswith("_bucket")}
    finite = edges - {float("inf")}
    if metric.length_buckets:
        assert max(finite) <= MAX_MODEL_LEN, f"{metric.name}: counts end at the context length"
    elif metric.kind == "histogram":
        assert set(metric.buckets) <= finite, f"{metric.name} lacks the edges {set(metric.buckets) - finite}"


@each_recording
def test_a_rule_reads_only_what_is_served(version: str) -> None:
    served = {sample.name for family in page(version).values() for sample in family.samples}
    made = target(version, everything(version))
    for rule in (rule for group in rule_groups(made) for rule in group["rules"]):
        missing = series_in(rule["expr"]) - served
        assert not missing, (
            f"{rule.get('alert') or rule['record']} reads {missing}, which vLLM {version} does not serve"
        )


@each_recording
def test_there_are_as_many_series_as_the_plan_counts(version: str) -> None:
    arguments = ("--kv-cache-metrics",) if version != "0.11.0" else ()
    planned = exported_series(table(version), arguments, MAX_MODEL_LEN)
    served: dict[str, int] = {}
    for family in page(version).values():
        for sample in family.samples:
            served[sample.name] = served.get(sample.name, 0) + 1
    for name, count in served.items():
        if name in planned and table(version).family_of(name) is not None:
            assert count == planned[name], f"{name}: {count} series are served, {planned[name]} are counted"


@each_recording
def test_the_recording_is_of_a_server_that_had_work(version: str) -> None:
    def total(name: str) -> float:
        return sum(
            sample.value for family in page(version).values() for sample in family.samples if sample.name == name
        )

    for name in ("vllm:prefix_cache_hits_total", "vllm:num_requests_waiting", "vllm:time_to_first_token_seconds_count"):
        assert total(name) > 0, f"{name}: a page on which nothing has happened proves little"
    ended = {
        sample.labels["finished_reason"]: sample.value
        for sample in page(version)["vllm:request_success_total"].samples
        if sample.name.endswith("_total")
    }
    assert ended["length"] > 0, "requests have ended"
    assert ended["abort"] == 0, "a client that goes away is in no finished_reason: the alert must not rely on it"
    begun = total("vllm:time_to_first_token_seconds_count") - total("vllm:num_requests_running")
    assert begun > sum(ended.values()), "the one that was abandoned had its first token and has no end"
