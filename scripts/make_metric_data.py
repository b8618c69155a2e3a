"""Write planner/data/metrics/*.json from a dump of what each vLLM release exports on /metrics.

    python -m scripts.make_metric_data FACTS

FACTS is a folder with vllm-metrics.json: for each release the families that its own PrometheusStatLogger
registers, with labels, label values and buckets. Only what rules, dashboards and triggers need is kept.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from scripts.data_files import write_releases

LENGTH_BUCKETS = "1-2-5"
"""Stands for the buckets of token counts: 1, 2, 5, 10 … up to the context length (build_1_2_5_buckets)."""


def needed_argument(condition: str) -> str | None:
    """The argument without which the family is not exported: "only with --enable-lora; …" is --enable-lora."""
    match = re.match(r"(?:only with )?(--[a-z-]+)", condition)
    return match.group(1) if match else None


def compact_metric(metric: dict[str, Any]) -> dict[str, Any]:
    """One family without what follows from its type."""
    compact: dict[str, Any] = {"type": metric["type"], "labels": metric["labels"]}
    needed = needed_argument(metric.get("condition", ""))
    if needed:
        compact["needs"] = needed
    if "label_values" in metric:
        compact["labelValues"] = metric["label_values"]
    if metric.get("buckets"):
        capped = "request_prompt_tokens" in metric.get("note", "") or "1-2-5" in metric.get("note", "")
        finite = [float(edge) for edge in metric["buckets"] if edge != "+Inf"]
        compact["buckets"] = LENGTH_BUCKETS if capped else finite
    return compact


def release(facts: dict[str, Any], version: str) -> dict[str, Any]:
    """What planner/data/metrics holds of one release."""
    metrics = {metric["name"]: compact_metric(metric) for metric in facts["versions"][version]}
    # Its labels are the attributes of CacheConfig; their list is kept apart in the dump.
    metrics["vllm:cache_config_info"]["labels"] = facts["cache_config_info_labels"][version]
    return {
        "version": version,
        "source": f"vllm/v1/metrics/loggers.py of vllm {version}, as prometheus_client exposes it",
        "metrics": dict(sorted(metrics.items())),
    }


if __name__ == "__main__":
    write_releases(Path(sys.argv[1]) / "vllm-metrics.json", "metrics", "metrics", release)
