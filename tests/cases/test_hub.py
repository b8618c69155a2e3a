"""HF and LORA: models that the hub does not give, or that are not there when the server is offline."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cases.case import Case
from tests.cases.rendered import one, render, server
from tests.cases.test_memory import model
from tests.recorder import Recording

TOKEN = frozenset({"hfToken"})
GATED = {"services.qwen.model.gated": True}
SEED_OFF = {"services.qwen.cache.seed": {"enabled": False}}
COMMIT = {"services.qwen.model.revision": "0" * 40}

CASES = [
    Case(
        "HF-1",
        "a gated model without a token",
        GATED,
        "error",
        "HF-1",
        ".model.gated",
        "vllm:hfToken",
        GATED,
        neighbour_secrets=TOKEN,
    ),
    Case(
        "HF-1",
        "a gated model whose weights are there already",
        GATED,
        "error",
        "HF-1",
        ".model.gated",
        "accept the licence",
        {**GATED, **SEED_OFF},
    ),
    Case(
        "HF-1",
        "a model that the catalogue knows to be gated",
        model("meta-llama/Llama-3.1-8B-Instruct", "l40s"),
        "warn",
        "HF-1",
        ".model.gated",
        "model.gated: true",
        model("meta-llama/Llama-3.1-8B-Instruct", "l40s"),
        neighbour_secrets=TOKEN,
    ),
    Case(
        "HF-3",
        "offline, and nothing sees to the files",
        SEED_OFF,
        "warn",
        "HF-3",
        ".cache.seed.enabled",
        "nothing checks",
        {},
    ),
    Case(
        "HF-3",
        "told to be offline behind the setting's back",
        {"services.qwen.offline": False, "services.qwen.env": {"HF_HUB_OFFLINE": "1"}},
        "error",
        "HF-3",
        ".env.HF_HUB_OFFLINE",
        "offline: true",
        {"services.qwen.offline": False},
    ),
    Case(
        "HF-3",
        "told to be online behind the setting's back",
        {"services.qwen.env": {"TRANSFORMERS_OFFLINE": "0"}},
        "error",
        "NAM-2",
        ".env.TRANSFORMERS_OFFLINE",
        "offline: false",
        {"services.qwen.env": {"TRANSFORMERS_OFFLINE": "1"}},
    ),
    Case(
        "HF-3",
        "a branch in place of a commit",
        {"services.qwen.model.revision": "main"},
        "warn",
        "PIN-MODEL",
        ".model.revision",
        "can change",
        COMMIT,
    ),
    Case(
        "HF-3",
        "a path in place of a model of the hub",
        {"services.qwen.model.path": "/data/x"},
        "error",
        "CFG-KEY",
        ".model.path",
        "no key here",
    ),
    Case(
        "LORA-1",
        "adapters with a rank",
        {"services.qwen.loraAdapters": [{"name": "a", "rank": 64}]},
        "error",
        "CFG-KEY",
        ".loraAdapters",
        "not offered",
    ),
    Case(
        "LORA-1",
        "a rank that is no number",
        {"services.qwen.engine.extraArgs": ["--enable-lora", "--max-lora-rank", "high"]},
        "error",
        "ARG-3",
        ".engine.extraArgs[2]",
        "--max-lora-rank",
        {"services.qwen.engine.extraArgs": ["--enable-lora", "--max-lora-rank", "32"]},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_spoken_about_and_its_neighbour_passes(case: Case) -> None:
    case.check()


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container["env"]}


def seeder(recording: Recording) -> dict[str, Any]:
    (container,) = one(recording, "Job")["spec"]["template"]["spec"]["containers"]
    return container


def test_hf_1_the_token_is_in_each_container_that_downloads_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = render(monkeypatch, {**GATED, "services.qwen.offline": False}, {"hfToken": "hf_hidden"})
    for container in (seeder(recording), server(recording)):
        reference = variables(container)["HF_TOKEN"]["secretKeyRef"]
        assert reference["key"] == "token", "from the Secret"
        assert not reference.get("optional"), "a Secret that is missing must be seen at once (skypilot#2634)"
    for item in recording.registrations:
        if not item.type.endswith(":Secret"):
            assert "hf_hidden" not in str(item.raw_inputs), f"{item.type} would show the token"
    neighbour = render(monkeypatch, GATED, {"hfToken": "hf_hidden"})
    assert "HF_TOKEN" not in variables(server(neighbour)), "the neighbour: an offline server needs none"
    assert "HF_TOKEN" in variables(seeder(neighbour)), "its download does"


def test_hf_3_the_server_is_offline_and_the_download_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = render(monkeypatch)
    assert variables(server(recording))["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in variables(seeder(recording)), "an offline download finds nothing"
    deployment = next(item for item in recording.registrations if item.type.endswith(":Deployment"))
    job = next(item for item in recording.registrations if item.type.endswith(":Job"))
    assert f"{job.type}::{job.name}" in recording.dependencies(deployment), "a start before the download is a failure"
    neighbour = render(monkeypatch, {"services.qwen.offline": False})
    assert "HF_HUB_OFFLINE" not in variables(server(neighbour)), "the neighbour: an online server"


def test_lora_1_without_adapters_nothing_is_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    command = server(render(monkeypatch))["command"]
    assert not [word for word in command if "lora" in word], "adapters cost memory; the neighbour that has none"
