"""What each release exports, and what becomes of names that it does not."""

from __future__ import annotations

import json

import pytest

from planner.metrics import (
    CUSTOM_BUCKETS,
    UnknownMetricError,
    exported_series,
    foreign_series,
    length_bucket_count,
    metrics_of,
    remedy,
    series_in,
    unknown_series,
    with_custom_buckets,
)
from planner.releases import known_releases, release_at

NEWEST = known_releases()[-1]
TTFT = "vllm:time_to_first_token_seconds"


@pytest.mark.parametrize("version", known_releases())
def test_counters_are_known_by_the_name_that_is_exported(version: str) -> None:
    metrics = metrics_of(release_at(version))
    for name, metric in metrics.families.items():
        if metric.kind == "counter":
            assert name.endswith("_total"), f"{name}: prometheus_client appends _total to every counter"
    assert metrics.family_of("vllm:prefix_cache_hits_total"), "the exported name"
    assert metrics.family_of("vllm:prefix_cache_hits") is None, "the name in vLLM's source is never exported"


@pytest.mark.parametrize("version", known_releases())
def test_a_histogram_is_read_by_its_samples(version: str) -> None:
    metrics = metrics_of(release_at(version))
    assert metrics.family_of(f"{TTFT}_bucket") is metrics.require(TTFT), "a bucket belongs to its family"
    assert metrics.family_of(TTFT) is None, "a classic histogram has no series of its plain name"
    assert metrics.require(TTFT).buckets[11:14] == (1.0, 2.5, 5.0), "there is no edge at 2 s"


@pytest.mark.parametrize(
    ("version", "name", "exists"),
    [
        ("0.11.0", "vllm:time_per_output_token_seconds", True),
        ("0.19.1", "vllm:time_per_output_token_seconds", False),
        ("0.11.0", "vllm:kv_block_reuse_gap_seconds", False),
        ("0.19.1", "vllm:kv_block_reuse_gap_seconds", True),
        ("0.19.1", "vllm:prompt_tokens_recomputed_total", True),
        ("0.31.0", "vllm:prompt_tokens_recomputed_total", False),
        ("0.31.0", "vllm:admission_rejections_total", False),
        ("0.33.0", "vllm:admission_rejections_total", True),
    ],
)
def test_names_come_and_go_with_releases(version: str, name: str, exists: bool) -> None:
    assert (name in metrics_of(release_at(version)).families) is exists, f"{name} in vLLM {version}"


def test_between_two_tables_only_what_both_have_is_certain() -> None:
    metrics = metrics_of(release_at("0.15.0"))
    assert "vllm:kv_block_reuse_gap_seconds" in metrics.uncertain, "0.11.0 lacks it, 0.19.1 has it"
    assert metrics.family_of("vllm:kv_block_reuse_gap_seconds_bucket") is None, "a rule on it might be silent"
    reasons = metrics.require("vllm:request_success_total").label_values["finished_reason"]
    assert reasons == ("stop", "length", "abort"), "error came with 0.19.1"
    assert metrics.require(TTFT).buckets == metrics_of(release_at("0.11.0")).require(TTFT).buckets, "both have them"


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"),
        ("vllm:num_requests_swapped", "drop it"),
        ("vllm:cpu_cache_usage_perc", "drop it"),
        ("vllm:tokens_total", "vllm:prompt_tokens_total"),
        ("vllm:time_in_queue_requests", "vllm:request_queue_time_seconds"),
        ("vllm:time_per_output_token_seconds", "vllm:inter_token_latency_seconds"),
        ("vllm:prefix_cache_hits", "vllm:prefix_cache_hits_total"),
        ("vllm:prompt_tokens_recomputed_total", "0.19.1"),
        ("vllm:never_was", "no known release"),
    ],
)
def test_a_name_that_is_gone_has_a_remedy(name: str, word: str) -> None:
    metrics = metrics_of(release_at(NEWEST))
    assert unknown_series(metrics, f"rate({name}[5m])") == (name,), f"vLLM {NEWEST} does not export it"
    assert word in remedy(metrics, name), "the remedy names what to use instead"


@pytest.mark.parametrize("version", known_releases())
def test_what_a_remedy_names_is_exported(version: str) -> None:
    metrics = metrics_of(release_at(version))
    gone = ("vllm:gpu_cache_usage_perc", "vllm:gpu_prefix_cache_hits_total", "vllm:tokens_total")
    for name in gone:
        named = series_in(remedy(metrics, name).partition(" (")[0])
        assert named, f"the remedy of {name} names a series"
        assert not [each for each in named if metrics.family_of(each) is None], (
            f"{name}: the cure is there on {version}"
        )


def test_asking_for_what_is_not_exported_is_an_error() -> None:
    with pytest.raises(UnknownMetricError, match=r"vLLM 0\.11\.0 exports no vllm:kv_block_reuse_gap_seconds"):
        metrics_of(release_at("0.11.0")).require("vllm:kv_block_reuse_gap_seconds")


def test_series_are_found_in_an_expression() -> None:
    expression = 'sum by (le) (rate(vllm:a_total{x="y"}[5m])) / service:vllm_b:mean5m + up * vllm:c'
    assert series_in(expression) == {"vllm:a_total", "vllm:c"}, "recorded names and other exporters' are not vLLM's"


@pytest.mark.parametrize(
    ("longest", "count"),
    [(1, 1), (2, 2), (4, 2), (5, 3), (10, 4), (2048, 11), (4096, 11), (32768, 14)],
)
def test_buckets_of_lengths_end_at_the_context(longest: int, count: int) -> None:
    assert length_bucket_count(longest) == count, "1, 2, 5, 10 … up to the context length"


def test_series_are_counted_as_they_are_exported() -> None:
    metrics = metrics_of(release_at("0.11.0"))
    plain, with_lora = (exported_series(metrics, arguments, 4096) for arguments in ([], ["--enable-lora"]))
    assert plain[f"{TTFT}_bucket"] == 23, "22 edges and +Inf"
    assert plain["vllm:request_success_total"] == 3, "one for each reason, made at the start"
    assert plain["vllm:request_prompt_tokens_bucket"] == 12, "1, 2, 5 … 2000 and +Inf"
    assert plain["vllm:prompt_tokens_created"] == 1, "the time of creation drops _total"
    assert "vllm:num_requests_running_created" not in plain, "gauges have none"
    assert with_lora.keys() - plain.keys() == {"vllm:lora_requests_info"}, "it needs --enable-lora"


def test_between_two_tables_what_one_of_them_has_is_counted() -> None:
    counts = exported_series(metrics_of(release_at("0.32.0")), [], 4096)
    name = "vllm:admission_rejections_total"
    assert counts[name] == 2, "0.33.0 has it, 0.31.0 does not, 0.32.0 was seen to: a plan must not promise too few"
    assert name not in exported_series(metrics_of(release_at("0.31.0")), [], 4096), "its own table lacks it"


@pytest.mark.parametrize(
    "arguments",
    [
        [CUSTOM_BUCKETS, json.dumps({"time_to_first_token": [2.0, 1.0, 4.0]})],
        [f"{CUSTOM_BUCKETS}={json.dumps({'time_to_first_token': [1, 2, 4]})}"],
    ],
)
def test_own_buckets_replace_a_releases(arguments: list[str]) -> None:
    metrics = with_custom_buckets(metrics_of(release_at("0.33.0")), arguments)
    assert metrics.require(TTFT).edge_at(2) == 2.0, "the objective is an edge now"
    assert metrics.require("vllm:inter_token_latency_seconds").edge_at(0.1) == 0.1, "the others stay"


def test_a_broken_list_of_buckets_changes_nothing() -> None:
    metrics = metrics_of(release_at("0.33.0"))
    for text in ("{", "[1, 2]", ""):
        assert with_custom_buckets(metrics, [CUSTOM_BUCKETS, text]).families == metrics.families, "said elsewhere"


def test_foreign_series_name_their_exporter() -> None:
    assert foreign_series()["kube_pod_container_status_restarts_total"] == "kube-state-metrics"
    assert not [name for name in foreign_series() if name.startswith("vllm:")], "vLLM's own come from its table"
