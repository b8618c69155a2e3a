"""`vllm-infra` answers without the engine, and says every fault at once with exit code 1."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from infra import diagnosis, live
from infra.cli import app
from infra.diagnosis import Condition, StartFacts
from tests.stack_files import SHIPPED, STACKS


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("stack", SHIPPED)
def test_the_plan_of_a_shipped_stack_is_answered_in_full(stack: str) -> None:
    result = run("plan", "--stack", stack, "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.output)
    for name, service in answer["services"].items():
        for part, keys in {
            "memory": {"weightsGiB", "kvGiB", "kvTokens", "maxContext", "fits", "bandMiB"},
            "startup": {"phases", "coldSeconds", "warmSeconds", "budgetSeconds"},
        }.items():
            assert keys <= set(service[part]), f"{name}.{part} lacks {keys - set(service[part])}"
        assert {"nvidiaSmiMiB", "containerMiB"} & set(service["memory"]), "what will be taken, by what shows it"
        assert service["argv"][:2] == ["vllm", "serve"], "what will be run is part of the answer"
    assert {"level", "rule", "path", "message", "remedy", "source"} == set(answer["findings"][0])


def test_the_plan_is_readable() -> None:
    result = run("plan", "--stack", "lab-3060")
    for words in ("fits", "KV cache", "nvidia-smi", "budget", "downtime", "--max-model-len 2048"):
        assert words in result.output, f"a person looks for {words!r}"


def broken(tmp_path: Path) -> Path:
    text = (STACKS / "Pulumi.lab-3060.yaml").read_text("utf-8")
    for right, wrong in (("maxModelLen:", "maxModelLne:"), ("32Gi", "32GB"), ("pool: lab", "pool: labs")):
        assert right in text, f"the shipped stack no longer has {right!r}"
        text = text.replace(right, wrong)
    path = tmp_path / "Pulumi.mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_three_mistakes_are_three_clear_errors(tmp_path: Path) -> None:
    result = run("plan", str(broken(tmp_path)), "--json")
    assert result.exit_code == 1, "a stack file with mistakes cannot be planned"
    found = {finding["path"]: finding["remedy"] for finding in json.loads(result.output)["findings"]}
    assert found.keys() == {
        "vllm:services.qwen.engine.maxModelLne",
        "vllm:nodes.lab.memory",
        "vllm:services.qwen.pool",
    }, "three mistakes were made"
    assert "maxModelLen" in found["vllm:services.qwen.engine.maxModelLne"]
    assert "Traceback" not in result.output, "a mistake in a file is no crash"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "--stack", "lab-3061"], "stacks:"),
        (["plan"], "--stack"),
        (["plan", "no/such/file.yaml"], "cannot be read"),
        (["diagnose", "--stack", "lab-3060", "--service", "qwenn"], "services of lab-3060: qwen"),
    ],
    ids=["no such stack", "nothing named", "no such file", "no such service"],
)
def test_a_wrong_call_says_what_is_right(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code in {1, 2}, "it cannot succeed"
    assert words in result.output, result.output


def test_an_error_in_the_plan_is_exit_code_1(tmp_path: Path) -> None:
    text = (STACKS / "Pulumi.lab-3060.yaml").read_text("utf-8").replace("0.80", "0.40")
    path = tmp_path / "Pulumi.mine.yaml"
    path.write_text(text, encoding="utf-8")
    result = run("plan", str(path), "--json")
    assert result.exit_code == 1, "CI must be able to stop on it"
    errors = [finding for finding in json.loads(result.output)["findings"] if finding["level"] == "error"]
    assert [finding["rule"] for finding in errors] == ["MEM-1"], errors


@pytest.mark.parametrize("chosen", [[], ["--service", "qwen"]], ids=["every service", "one service"])
def test_a_failed_start_comes_with_keys_to_copy(monkeypatch: pytest.MonkeyPatch, chosen: list[str]) -> None:
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    condition = Condition("PodScheduled", "False", "Unschedulable", message)
    start = StartFacts("qwen", "Deployment/qwen-0", pod="qwen-0-5b5d", conditions=(condition,))
    monkeypatch.setattr(live, "connect", lambda _: None)
    monkeypatch.setattr(diagnosis, "read_facts", lambda *_: start)
    result = run("diagnose", "--stack", "lab-3060", *chosen)
    assert result.exit_code == 0, result.output
    for key in ("vllm:nodes.lab.gpusPerNode", "vllm:services.qwen.gpus"):
        assert key in result.output, f"{key} is how the stack file spells it"


def test_the_cards_are_listed_with_what_is_only_estimated() -> None:
    lines = {line.split()[0]: line for line in run("gpus").output.splitlines()[1:]}
    assert "11,908" in lines["rtx-3060-12gb"], "what CUDA can use decides what fits"
    assert "estimate" in lines["b200"], "a figure that nobody measured is marked"
    assert "estimate" not in lines["l40s"], "and one that somebody did is not"


def test_a_load_is_turned_into_replicas() -> None:
    result = run("capacity", "--stack", "lab-3060", "--requests-per-second", "100", "--measured", "18")
    assert result.exit_code == 0, result.output
    assert "8 for 100 requests/s" in result.output, "18 x 0.7 = 12.6; 100 / 12.6 = 7.9"


def test_a_load_of_tokens_has_a_price() -> None:
    load = ("--requests-per-second", "100", "--measured", "18", "--output-tokens", "200")
    result = run("capacity", "--stack", "l40s-pair-eks", *load)
    assert result.exit_code == 0, result.output
    found = re.search(r"\$([\d,.]+) per hour.*?\$([\d,.]+) per million generated tokens", result.output, re.DOTALL)
    assert found, result.output
    hourly, tokens = (float(number.replace(",", "")) for number in found.groups())
    assert tokens == pytest.approx(hourly / (100 * 200 * 3600) * 1e6, abs=0.01), "100 answers of 200 tokens a second"
    unpriced = run("capacity", "--stack", "lab-3060", *load)
    assert unpriced.exit_code == 0, unpriced.output
    assert "per million" not in unpriced.output, "without a price of the node nothing is invented"


def test_capacity_is_not_guessed() -> None:
    result = run("capacity", "--stack", "lab-3060", "--requests-per-second", "100")
    assert result.exit_code == 2, "nobody has measured what one replica serves"
    assert "must be measured" in result.output.replace("\n", " ").replace("│", ""), result.output
