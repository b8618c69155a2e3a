"""The same components on nodes without cards: nothing of NVIDIA's is rendered, and what CPUs need is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from components.image_pre_pull import ImagePrePull
from components.model_cache import ModelCache
from components.vllm_server import VllmServer
from tests.components.arguments import cache_args, pre_pull_args, server_args
from tests.recorder import Recording, record
from tests.stack_files import CPUS

MIRROR = {**CPUS, "services.qwen.cache.seed": {"endpoint": "http://hub.example.com:8900"}}


def server(changes: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return _pod(record(lambda: VllmServer("qwen", server_args(changes, **more))))


def pre_pull(changes: Mapping[str, Any]) -> dict[str, Any]:
    return _pod(record(lambda: ImagePrePull("qwen", pre_pull_args(changes))))


def seed(changes: Mapping[str, Any]) -> dict[str, Any]:
    return _pod(record(lambda: ModelCache("qwen", cache_args(changes))))


def _pod(recording: Recording) -> dict[str, Any]:
    specs: list[dict[str, Any]] = [
        each.inputs["spec"]["template"]["spec"]
        for each in recording.registrations
        if "template" in (each.inputs.get("spec") or {})
    ]
    assert len(specs) == 1, "each of these components makes one kind of pod"
    return specs[0]


def variables(pod: dict[str, Any], kind: str = "containers") -> dict[str, str]:
    (container,) = pod[kind]
    return {item["name"]: item.get("value") for item in container.get("env") or []}


@pytest.mark.parametrize("flavour", ["kubeadm", "k3s", "microk8s"])
def test_a_server_asks_for_no_card(flavour: str) -> None:
    pod = server(CPUS, flavour=flavour)
    said = json.dumps(pod).lower()
    for word in ("nvidia", "cuda", "flashinfer"):
        assert word not in said, f"{word}: a node without cards has nothing of the kind"
    assert "resourceClaims" not in pod, "and no device to claim"
    assert "nvidia.com/gpu" in json.dumps(server({}, flavour=flavour)), "the neighbour: a card"


def test_a_server_keeps_a_runtime_class_that_is_asked_for() -> None:
    pod = server({**CPUS, "nodes.lab.runtimeClass": "gvisor"}, flavour="k3s")
    assert pod["runtimeClassName"] == "gvisor", "a sandbox of one's own has nothing to do with cards"


def test_the_kv_cache_space_is_a_variable() -> None:
    assert variables(server(CPUS))["VLLM_CPU_KVCACHE_SPACE"] == "2", "whole GiB; there is no flag for it"
    command = server(CPUS)["containers"][0]["command"]
    assert not [word for word in command if "kv" in word], "and nothing of it in the command"
    unset = {**CPUS, "services.qwen.engine": {"maxModelLen": 4096, "gpuMemoryUtilization": 0.5}}
    assert "VLLM_CPU_KVCACHE_SPACE" not in variables(server(unset)), "the neighbour: the release decides"


def test_the_caches_are_where_they_are_on_cards() -> None:
    on_cpus, on_a_card = variables(server(CPUS)), variables(server({}))
    for name in ("HF_HOME", "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "HF_HUB_OFFLINE"):
        assert on_cpus[name] == on_a_card[name], f"{name}: CPUs compile too"
    mounts = server(CPUS)["containers"][0]["volumeMounts"]
    assert any(each.get("subPath") == "compile/v0.32.0-cpu-0" for each in mounts), "keyed by what it computes on"


@pytest.mark.parametrize(("made", "kind"), [(server, "initContainers"), (pre_pull, "containers"), (seed, "containers")])
def test_nobody_is_kept_from_a_card_that_is_not_there(made: Any, kind: str) -> None:
    assert "NVIDIA_VISIBLE_DEVICES" not in variables(made(CPUS), kind), "no runtime injects one"
    assert variables(made({}), kind)["NVIDIA_VISIBLE_DEVICES"] == "void", "the neighbour: a node with a card"


def test_the_download_goes_to_the_mirror_that_is_named() -> None:
    assert variables(seed(MIRROR))["HF_ENDPOINT"] == "http://hub.example.com:8900", "huggingface_hub reads it"
    assert "HF_ENDPOINT" not in variables(seed(CPUS)), "the neighbour: the hub itself"


def test_only_a_server_that_downloads_asks_the_mirror() -> None:
    assert "HF_ENDPOINT" not in variables(server(MIRROR)), "an offline server asks nobody"
    online = {**MIRROR, "services.qwen.offline": False}
    assert variables(server(online))["HF_ENDPOINT"] == "http://hub.example.com:8900", "else it would ask the hub"
