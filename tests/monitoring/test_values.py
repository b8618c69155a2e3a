"""What rules compute: recorded values, live values in a page, and the objective inside a bucket."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.alerts import rule_groups
from planner.metrics import metrics_of
from planner.releases import known_releases, release_at
from tests.monitoring.exposition import Stage, expectation, replica
from tests.monitoring.targets import LABELS, target
from tests.planner.test_alerts import everything

Check = Callable[..., None]
ALL_1_1_SECONDS = Stage(minutes=40, requests=2, first_token={1.1: 1.0}, running=3, waiting=1)
each_release = pytest.mark.parametrize("version", known_releases())


def pod(number: int = 0) -> dict[str, str]:
    return {**LABELS, "pod": f"qwen-{number}-6f-abc"}


def value(expression: str, minutes: float, labels: str, number: float) -> dict[str, Any]:
    sample = {"labels": labels, "value": number}
    return {"expr": expression, "eval_time": f"{minutes * 60:.0f}s", "exp_samples": [sample]}


def recorded(name: str, number: float, **more: str) -> dict[str, Any]:
    """That a recorded value of the service is ``number``, up to rounding."""
    where = ",".join(f'{label}="{text}"' for label, text in sorted({**LABELS, **more}.items()))
    return value(f"abs({name} / {number!r} - 1) < bool 1e-9", 25, f"{{{where}}}", 1)


@each_release
def test_promtool_accepts_every_rule_file(promtool: Path, tmp_path: Path, version: str) -> None:
    made = target(version, everything(version), {"nodes.lab.pricePerHour": 0.4})
    for number, asked in enumerate((made, target(version))):
        file = tmp_path / f"{number}.yaml"
        file.write_text(json.dumps({"groups": rule_groups(asked)}), encoding="utf-8")
        answer = subprocess.run(
            [promtool, "check", "rules", "--lint=all", "--lint-fatal", file],
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, f"{answer.stdout}{answer.stderr}"


def test_promtool_would_refuse_a_rule_that_is_wrong(promtool: Path, tmp_path: Path) -> None:
    groups = rule_groups(target("0.33.0"))
    groups[1]["rules"][0]["expr"] += ")"
    file = tmp_path / "wrong.yaml"
    file.write_text(json.dumps({"groups": groups}), encoding="utf-8")
    answer = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)
    assert answer.returncode != 0, "one bracket too many"


@each_release
def test_a_quantile_inside_a_bucket_is_an_invention_and_the_alert_does_not_use_it(check: Check, version: str) -> None:
    """Every request takes 1.1 s. The seed's expression pages, because there is no edge between 1 and 2.5 s."""
    made = target(version)
    bucket = "vllm:time_to_first_token_seconds_bucket"
    seed = f"histogram_quantile(0.95, sum by (le) (rate({bucket}[5m])))"
    share = f'sum(rate({bucket}{{le="2.5"}}[5m])) / sum(rate({bucket}{{le="+Inf"}}[5m]))'
    expressions = [
        value(f"round({seed}, 0.001)", 30, "{}", 2.425),
        value(f"{seed} > bool 2", 30, "{}", 1),
        value(share, 30, "{}", 1),
        expectation("VLLMTTFTSLOBreach", 30, []),
        expectation("VLLMTTFTSLOBreach", 39, []),
    ]
    check(rule_groups(made), replica(made.metrics, [ALL_1_1_SECONDS], pod()), expressions)


@each_release
def test_recorded_values_are_what_was_served(check: Check, version: str) -> None:
    """Two replicas with different loads: means are weighted by requests, and the parts of TTFT add up."""
    made = target(version, {}, {"nodes.lab.pricePerHour": 0.36}, replicas=2)
    one = Stage(minutes=30, requests=3, first_token={0.5: 1.0}, queue_seconds=0.2, prefill_seconds=0.2, kv_usage=0.25)
    two = Stage(minutes=30, requests=1, first_token={1.5: 1.0}, queue_seconds=1.0, prefill_seconds=0.4, kv_usage=0.5)
    series = [*replica(made.metrics, [one], pod(0)), *replica(made.metrics, [two], pod(1))]
    expected = {
        "service:vllm_time_to_first_token_seconds:mean5m": 0.75,
        "service:vllm_request_queue_time_seconds:mean5m": 0.4,
        "service:vllm_request_prefill_time_seconds:mean5m": 0.25,
        "service:vllm_time_to_first_token_rest_seconds:mean5m": 0.1,
        "service:vllm_inter_token_latency_seconds:mean5m": 0.02,
        "service:vllm_prefix_cache_hits:ratio10m": 0.6,
        "service:vllm_prompt_tokens:rate5m": 4 * 512,
        "service:vllm_generation_tokens:rate5m": 400,
        "service:vllm_kv_cache_tokens:used": 0.75 * made.kv_tokens,
        # Two replicas at 0.36 $ an hour are 0.0002 $ a second, for 2448 tokens.
        "service:vllm_cost_dollars_per_million_tokens:mean5m": 0.0002 / 2448 * 1e6,
    }
    check(rule_groups(made), series, [recorded(name, number) for name, number in expected.items()])


def test_nothing_is_recorded_about_requests_that_there_are_not(check: Check) -> None:
    made = target("0.33.0")
    name = "service:vllm_time_to_first_token_seconds:mean5m"
    nothing = {"expr": name, "eval_time": "20m", "exp_samples": []}
    check(rule_groups(made), replica(made.metrics, [Stage(minutes=30)], pod()), [nothing])


def test_requests_are_recorded_by_how_they_ended(check: Check) -> None:
    made = target("0.33.0")
    stage = Stage(minutes=30, requests=2, ended={"stop": 0.75, "length": 0.25})
    rate = 'service:vllm_request_success:rate5m{finished_reason="length"}'
    expected = recorded(rate, 0.5, finished_reason="length")
    check(rule_groups(made), replica(made.metrics, [stage], pod()), [expected])


QUEUE_CURE = "Queue: replicas up, services.qwen.engine.maxModelLen down, maxNumSeqs up."
SPLIT = "Mean of the last five minutes: queue 1.25s, prefill 300ms."
PAGES = {
    "VLLMQueueBacklog": (
        f"12 requests wait (more than 10 at one replica) for 2m. {SPLIT} Look first whether the wait is the queue or "
        f"the prefill: the cures are opposite. {QUEUE_CURE}"
    ),
    "VLLMTTFTSLOBreach": (
        "Only 50% of the requests had their first token within 2.5 s; the objective is 0.95 within 2 s. "
        f"{SPLIT} {QUEUE_CURE} Prefill: maxNumBatchedTokens up, or find out why the prefix hit rate fell."
    ),
    "VLLMKVCacheSaturated": (
        "97.5% of the KV cache of the fullest engine is in use; at 100 % running requests are pre-empted and computed "
        "again. The planned cache holds 69,344 tokens. Fewer sequences at once (services.qwen.engine.maxNumSeqs down), "
        "shorter contexts (maxModelLen), kvCacheDtype fp8, or replicas up."
    ),
    "VLLMPrefixCacheCollapse": (
        "12.5% of the prompt tokens came from the prefix cache. Usually somebody changed the prompt template, so that "
        "prompts no longer begin alike: nothing breaks, and every answer costs two to three times as much. Only full "
        "blocks are reused; for short or unrelated prompts switch this off with "
        "monitoring.services.qwen.prefixCacheCollapse.enabled: false."
    ),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_carries_the_values_of_its_moment(check: Check, name: str) -> None:
    made = target("0.33.0", kv_tokens=69_344)
    slow = Stage(
        minutes=40,
        requests=2,
        first_token={0.2: 0.5, 3.0: 0.5},
        queue_seconds=1.25,
        prefill_seconds=0.3,
        waiting=12,
        kv_usage=0.975,
        hit_rate=0.125,
    )
    rules = {rule["alert"]: rule for group in rule_groups(made) for rule in group["rules"] if "alert" in rule}
    annotations = {**rules[name]["annotations"], "description": PAGES[name]}
    alert = {"exp_labels": {**LABELS, **rules[name]["labels"]}, "exp_annotations": annotations}
    expected = {"eval_time": "39m", "alertname": name, "exp_alerts": [alert]}
    check(rule_groups(made), replica(made.metrics, [slow], pod()), alerts=[expected])


@each_release
def test_an_idle_service_has_a_quantile_of_its_queue_and_no_page(check: Check, version: str) -> None:
    """The lowest bucket of queue and prefill is 0.3 s, which is why no rule takes a quantile of them."""
    made = target(version)
    assert metrics_of(release_at(version)).require("vllm:request_queue_time_seconds").buckets[0] == 0.3
    stage = Stage(minutes=30, requests=0.5, queue_seconds=0.0001)
    quantile = "histogram_quantile(0.95, sum by (le) (rate(vllm:request_queue_time_seconds_bucket[5m])))"
    expressions = [value(f"round({quantile}, 0.001)", 20, "{}", 0.285), expectation("VLLMQueueBacklog", 20, [])]
    check(rule_groups(made), replica(made.metrics, [stage], pod()), expressions)
