"""Rates that were measured take the place of the assumed ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.findings import Finding
from planner.spec import RatesSpec

RATES = tuple(str(field.alias) for field in RatesSpec.model_fields.values())


def with_measurements(values: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], list[Finding]]:
    """The sections with each pool's `measurements` file read, and what is wrong with such a file.

    A path is relative to ``folder``, where the stack file is. A rate that the stack file itself gives
    wins over a measured one.
    """
    nodes = values.get("nodes")
    if not isinstance(nodes, dict):
        return dict(values), []
    pools: dict[str, Any] = {}
    findings: list[Finding] = []
    for name, pool in nodes.items():
        file = pool.get("measurements") if isinstance(pool, dict) else None
        pools[name] = pool
        if isinstance(file, str):
            measured, fault = _measured(folder / file)
            if fault:
                remedy = "write it with `vllm-infra cold-start --write`, or take the line out"
                findings.append(Finding("error", f"vllm:nodes.{name}.measurements", fault, remedy, "CFG-MEASURED"))
            elif isinstance(pool.get("rates", {}), dict):
                pools[name] = {**pool, "rates": {**measured, **pool.get("rates", {})}}
    return {**values, "nodes": pools}, findings


def _measured(path: Path) -> tuple[dict[str, float], str]:
    """The rates in a file, and what is wrong with it (empty when nothing is)."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except OSError as error:
        return {}, f"{path.name} cannot be read: {error.strerror}"
    except ValueError as error:
        return {}, f"{path.name} is no JSON: {error}"
    if not isinstance(content, dict):
        return {}, f"{path.name} is no JSON object"
    rates = {key: content[key] for key in RATES if key in content}
    wrong = [key for key, rate in rates.items() if not isinstance(rate, int | float) or rate <= 0]
    return rates, f"{path.name}: {', '.join(wrong)} must be above 0, MB/s" if wrong else ""
