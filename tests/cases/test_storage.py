"""STO: claims that two pods want, disks that are too small, folders that nobody may write."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cases.case import Case
from tests.cases.rendered import one, pods, render, server
from tests.cases.test_memory import model
from tests.components.test_vllm_server import recorded

CACHE = "services.qwen.cache"
SHARED = {"kind": "existingClaim", "claimName": "models", "accessMode": "ReadWriteOnce"}
DYNAMIC = {"kind": "storageClass", "storageClass": "fast", "size": "20Gi"}
PAIR = {"nodes.lab.nodes": 2, "nodes.lab.nodeNames": ["lab-0", "lab-1"], "services.qwen.replicas": 2}
USER = {"services.qwen.security": {"runAsUser": 10001}}
BIG = "Qwen/Qwen2.5-32B-Instruct"
TWIN = {
    "pool": "lab",
    "model": {"id": "Qwen/Qwen2.5-0.5B-Instruct"},
    "image": {"tag": "v0.11.0"},
    "engine": {"maxModelLen": 2048},
    "cache": {"kind": "hostPath", "path": "/srv/ai-infra/vllm-model-cache", "size": "20Gi"},
    "resources": {"memory": "4Gi", "memoryLimit": "8Gi"},
}
TWO_CARDS = {"nodes.lab.gpusPerNode": 2, "services.qwen.image.tag": "v0.11.0"}

CASES = [
    Case(
        "STO-1",
        "two replicas on two nodes share a ReadWriteOnce claim",
        {**PAIR, CACHE: SHARED},
        "error",
        "STO-1",
        ".cache.accessMode",
        "ReadWriteMany",
        {**PAIR, CACHE: {**SHARED, "accessMode": "ReadWriteMany"}},
    ),
    Case(
        "STO-1",
        "the same, beside a claim for each",
        {**PAIR, CACHE: SHARED},
        "error",
        "STO-1",
        ".cache.accessMode",
        "a claim of its own",
        {**PAIR, CACHE: DYNAMIC},
    ),
    Case(
        "STO-1",
        "a folder of one node for two nodes",
        {"nodes.lab.nodes": 2},
        "error",
        "STO-HOSTPATH",
        ".cache.node",
        "2 nodes",
        {"nodes.lab.nodes": 2, f"{CACHE}.node": "lab-1"},
    ),
    Case(
        "STO-2",
        "61 GiB of weights in 50Gi",
        model(BIG, "h200", **{CACHE: {**DYNAMIC, "size": "50Gi"}}),
        "error",
        "STO-2",
        ".cache.size",
        "at least 71Gi",
        model(BIG, "h200", **{CACHE: {**DYNAMIC, "size": "71Gi"}}),
    ),
    Case(
        "STO-2",
        "a node's disk that two images do not fit on",
        {"nodes.lab.disk": "20Gi"},
        "warn",
        "STO-2",
        "nodes.lab.disk",
        "two unpacked images",
        {"nodes.lab.disk": "200Gi"},
    ),
    Case(
        "STO-2",
        "a cache that goes with the pod",
        {CACHE: {"kind": "emptyDir"}},
        "error",
        "CFG-VALUE",
        ".cache",
        "hostPath",
        {CACHE: DYNAMIC},
    ),
    Case(
        "STO-4",
        "a user and a folder of root",
        USER,
        "error",
        "STO-4",
        ".cache.owner",
        "chown",
        {**USER, f"{CACHE}.owner": 10001},
    ),
    Case("STO-4", "a user and a claim", USER, "error", "STO-4", ".cache.owner", "10001", {**USER, CACHE: DYNAMIC}),
    Case(
        "STO-4",
        "a cache that cannot be written",
        {f"{CACHE}.readOnly": True},
        "error",
        "CFG-KEY",
        ".cache.readOnly",
        "no key here",
    ),
    Case(
        "STO-5",
        "two services with one folder, before torch 2.10",
        {**TWO_CARDS, "services.twin": TWIN},
        "warn",
        "STO-5",
        "services.twin.cache",
        "services.qwen",
        {**TWO_CARDS, "services.twin": {**TWIN, "cache": {**TWIN["cache"], "path": "/srv/ai-infra/twin"}}},
    ),
    Case(
        "STO-5",
        "the same from torch 2.10 on",
        {**TWO_CARDS, "services.qwen.image.tag": "v0.31.0", "services.twin": {**TWIN, "image": {"tag": "v0.31.0"}}},
        "info",
        "STO-5",
        "services.twin.cache",
        "atomic",
        {**TWO_CARDS, "services.twin": {**TWIN, "image": {"tag": "v0.31.0"}}},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_spoken_about_and_its_neighbour_passes(case: Case) -> None:
    case.check()


def test_sto_2_every_write_outside_the_claim_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, spec in pods(render(monkeypatch)):
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            resources = container["resources"]
            assert "ephemeral-storage" in resources["requests"], f"{kind}: the scheduler must count it"
            assert "ephemeral-storage" in resources["limits"], f"{kind}: it could evict its neighbours (LLMKube#1452)"
        limits = [volume["emptyDir"].get("sizeLimit") for volume in spec.get("volumes", []) if "emptyDir" in volume]
        assert all(limits), f"{kind}: an emptyDir without a limit fills the node"


def test_sto_4_a_named_user_can_write_all_that_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = render(monkeypatch, {**USER, f"{CACHE}.owner": 10001})
    container = server(recording)
    mounts = tuple(mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly"))
    values = {item["name"]: item.get("value", "") for item in container["env"]}
    for name in (
        "HOME",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "TRITON_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "VLLM_CACHE_ROOT",
        "VLLM_CONFIG_ROOT",
    ):
        assert values[name].startswith(mounts), f"{name}={values[name]} cannot be written (llm-d#1430)"
    assert values["USER"], "getpwuid fails for a user that the image does not know (kserve#5666)"
    assert "/tmp" in mounts, "the root file system is read-only"  # noqa: S108 - a mount of its own
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_sto_4_a_claim_is_handed_to_the_users_group_and_a_folder_is_not() -> None:
    (deployment,) = recorded({**USER, CACHE: DYNAMIC}).all("kubernetes:apps/v1:Deployment")
    security = deployment.inputs["spec"]["template"]["spec"]["securityContext"]
    assert (security["fsGroup"], security["fsGroupChangePolicy"]) == (10001, "OnRootMismatch")
    (neighbour,) = recorded({**USER, f"{CACHE}.owner": 10001}).all("kubernetes:apps/v1:Deployment")
    assert "fsGroup" not in neighbour.inputs["spec"]["template"]["spec"]["securityContext"], "it would have no effect"


def compile_paths(changes: dict[str, Any]) -> list[str]:
    return [
        mount["subPath"]
        for item in recorded(changes).all("kubernetes:apps/v1:Deployment")
        for mount in item.inputs["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
        if mount["mountPath"] == "/models/compile"
    ]


def test_sto_5_each_engine_has_a_compile_cache_of_its_own() -> None:
    shared = {**PAIR, CACHE: {**SHARED, "accessMode": "ReadWriteMany"}, "services.qwen.image.tag": "v0.11.0"}
    assert len(set(compile_paths(shared))) == 2, "two engines write it at the same time (SkyRL#2138)"
    (before,), (after,) = compile_paths({}), compile_paths({"services.qwen.image.tag": "v0.33.0"})
    assert before != after, "an upgrade must not load what another build wrote"
    (again,) = compile_paths({"services.qwen.engine.maxModelLen": 1024})
    assert again == before, "the neighbour: another setting finds the same folder, vLLM keys it itself"


def test_sto_1_the_server_mounts_the_claim_that_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = render(monkeypatch)
    claim = one(recording, "PersistentVolumeClaim")["metadata"]["name"]
    for kind in ("Deployment", "Job"):
        volumes = one(recording, kind)["spec"]["template"]["spec"]["volumes"]
        (cache,) = [volume for volume in volumes if volume["name"] == "cache"]
        assert cache["persistentVolumeClaim"]["claimName"] == claim, f"{kind}: by name, neighbours of one node"
