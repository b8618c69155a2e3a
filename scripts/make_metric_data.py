"""Write planner/data/metrics/*.json from a dump of what each vLLM release exports on /metrics.

    python -m scripts.make_metric_data FACTS

FACTS is a folder with vllm-metrics.json: for each release the families that its own PrometheusStatLogger
registers, with labels, label values and buckets. Only what rules, dashboards and triggers need is kept.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "planner" / "data" / "metrics"

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


def text(document: dict[str, Any]) -> str:
    """JSON with one family in a line, so that a change of one family is a change of one line."""
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(entry)}" for name, entry in document["metrics"].items())
    head = {key: value for key, value in document.items() if key != "metrics"}
    return f'{json.dumps(head, indent=2)[:-2]},\n  "metrics": {{\n{lines}\n  }}\n}}\n'


def main(folder: Path) -> None:
    """Write one file for each release in the dump."""
    facts = json.loads((folder / "vllm-metrics.json").read_text(encoding="utf-8"))
    TARGET.mkdir(parents=True, exist_ok=True)
    for version in facts["versions"]:
        (TARGET / f"{version}.json").write_text(text(release(facts, version)), encoding="utf-8")
        print(f"{version}: {len(facts['versions'][version])} families")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
