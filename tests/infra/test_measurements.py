"""What was measured takes the place of what was assumed, and never of what a person wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from infra.config import ConfigError, read
from tests.stack_files import values

MEASURED = {"registryMbPerSecond": 20.5, "hubMbPerSecond": 9, "diskMbPerSecond": 700, "observed": {"pod": "qwen-0-x"}}


def stack(tmp_path: Path, rates: dict[str, float] | None, content: str | None) -> Path:
    sections = values(changes={"nodes.lab.rates": rates, "nodes.lab.measurements": "lab.json"})
    path = tmp_path / "Pulumi.lab.yaml"
    with path.open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump({"config": {f"vllm:{key}": value for key, value in sections.items()}}, file)
    if content is not None:
        (tmp_path / "lab.json").write_text(content, encoding="utf-8")
    return path


def test_measured_rates_are_planned_with(tmp_path: Path) -> None:
    config, _ = read(stack(tmp_path, None, json.dumps(MEASURED)))
    rates = config.nodes["lab"].rates
    measured = (rates.registry_mb_per_second, rates.hub_mb_per_second, rates.disk_mb_per_second)
    assert measured == (20.5, 9, 700), "each measured rate counts; what else is in the file is for people"


def test_a_rate_in_the_stack_file_wins(tmp_path: Path) -> None:
    config, _ = read(stack(tmp_path, {"hubMbPerSecond": 50}, json.dumps(MEASURED)))
    rates = config.nodes["lab"].rates
    assert (rates.hub_mb_per_second, rates.disk_mb_per_second) == (50, 700), "a person's word is the last one"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("{", "no JSON"),
        ("[]", "no JSON object"),
        ('{"hubMbPerSecond": 0}', "hubMbPerSecond must be above 0"),
        ('{"diskMbPerSecond": "fast"}', "diskMbPerSecond must be above 0"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_fault_beside_others(tmp_path: Path, content: str | None, words: str) -> None:
    path = stack(tmp_path, None, content)
    path.write_text(path.read_text("utf-8").replace("maxModelLen", "maxModelLne"), encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        read(path)
    found: dict[str, Any] = {finding.path: finding.message for finding in refused.value.findings}
    assert words in found["vllm:nodes.lab.measurements"], found
    assert "vllm:services.qwen.engine.maxModelLne" in found, "other faults are said at the same time"
