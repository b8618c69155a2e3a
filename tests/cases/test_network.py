"""NET and SEC: shared memory, peers that dial themselves, routes without a key, secrets that do not arrive."""

from __future__ import annotations

from typing import Any

import pytest

from components.secrets import credential
from components.vllm_server import VllmServer
from tests.cases.case import Case
from tests.cases.rendered import one, render, server
from tests.cases.test_memory import model
from tests.components.arguments import server_args
from tests.recorder import Recording, record

RESOURCES = "services.qwen.resources"
EXPOSURE = "services.qwen.exposure"
TRANSFER = "services.qwen.engine.kvTransferConfig"
TWO = model("Qwen/Qwen2.5-7B-Instruct-AWQ", "l40s", 2)
KEY = frozenset({"apiKey"})
OUTSIDE = {EXPOSURE: {"type": "LoadBalancer", "allowFrom": {"cidrs": ["203.0.113.0/24"]}}}
WORLD = {EXPOSURE: {"type": "LoadBalancer", "allowFrom": {"cidrs": ["0.0.0.0/0"]}}}
DOOR = {"services.qwen.env": {"VLLM_SERVER_DEV_MODE": "1"}}
ACCEPTED = {
    **DOOR,
    "services.qwen.security": {"acceptedBackDoors": ["VLLM_SERVER_DEV_MODE"]},
    EXPOSURE: {"allowFrom": {"namespaces": ["training"]}},
}

CASES = [
    Case(
        "NET-1",
        "64 MiB for two GPUs",
        {**TWO, RESOURCES: {"memoryLimit": "64Gi", "sharedMemory": "64Mi"}},
        "error",
        "NET-1",
        ".resources.sharedMemory",
        "8Gi",
        {**TWO, RESOURCES: {"memoryLimit": "64Gi", "sharedMemory": "8Gi"}},
    ),
    Case(
        "NET-1",
        "2 GiB for two GPUs",
        {**TWO, RESOURCES: {"memoryLimit": "64Gi", "sharedMemory": "2Gi"}},
        "warn",
        "NET-1",
        ".resources.sharedMemory",
        "2 GPUs",
        {RESOURCES: {"memoryLimit": "24Gi", "sharedMemory": "2Gi"}},
    ),
    *(
        Case(
            "NET-3",
            f"half of a pair, {role}",
            {TRANSFER: {"kv_connector": "NixlConnector", "kv_role": role}},
            "error",
            "NET-3",
            ".engine.kvTransferConfig",
            "not offered yet",
            {TRANSFER: {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}},
        )
        for role in ("kv_producer", "kv_consumer")
    ),
    *(
        Case(
            "NET-3",
            f"peers are told to dial {host}",
            {"services.qwen.env": {"VLLM_NIXL_SIDE_CHANNEL_HOST": host}},
            "error",
            "NET-3",
            ".env.VLLM_NIXL_SIDE_CHANNEL_HOST",
            "dial themselves",
            {"services.qwen.env": {"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.7"}},
        )
        for host in ("localhost", "127.0.0.1", "0.0.0.0")  # noqa: S104 - what is refused
    ),
    Case(
        "NET-3",
        "prefill and decode",
        {"services.qwen.prefill": {"tensorParallelSize": 2}},
        "error",
        "CFG-KEY",
        ".prefill",
        "not offered",
    ),
    Case(
        "SEC-1",
        "a key, and everybody can come",
        {EXPOSURE: {"type": "LoadBalancer"}},
        "error",
        "SEC-1",
        ".exposure.allowFrom.cidrs",
        "/metrics",
        OUTSIDE,
        KEY,
        KEY,
    ),
    Case(
        "SEC-1",
        "named clients that are the whole world, without a key",
        WORLD,
        "error",
        "SEC-1",
        ".exposure.allowFrom.cidrs",
        "everybody",
        WORLD,
        neighbour_secrets=KEY,
    ),
    Case(
        "SEC-1",
        "named clients that are the whole world, with a key",
        WORLD,
        "warn",
        "SEC-1",
        ".exposure.allowFrom.cidrs",
        "/invocations",
        OUTSIDE,
        KEY,
        KEY,
    ),
    Case(
        "SEC-1",
        "a policy that nobody enforces",
        {**OUTSIDE, "cluster.enforcesNetworkPolicy": False},
        "error",
        "SEC-1",
        ".exposure.type",
        "nobody keeps other addresses out",
        {**OUTSIDE, "cluster.enforcesNetworkPolicy": True},
    ),
    Case("SEC-1", "no key at all", {}, "info", "SEC-KEY", ".exposure", "vllm:apiKey", {}, neighbour_secrets=KEY),
    Case(
        "SEC-1",
        "a variable that adds routes without a key",
        DOOR,
        "error",
        "SEC-DEV",
        ".env.VLLM_SERVER_DEV_MODE",
        "acceptedBackDoors",
        ACCEPTED,
    ),
    Case(
        "SEC-3",
        "a Secret that is rotated behind the server's back",
        {"services.qwen.existingSecret": "hf"},
        "error",
        "CFG-KEY",
        ".existingSecret",
        "rolls the server",
    ),
    Case(
        "SEC-3",
        "a secret in the clear",
        {"services.qwen.env": {"HF_TOKEN": "hf_0123456789abcdefghijklmn"}},
        "error",
        "SEC-ENV",
        ".env.HF_TOKEN",
        "vllm:hfToken",
        {"services.qwen.env": {"HF_HUB_DISABLE_TELEMETRY": "1"}},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_spoken_about_and_its_neighbour_passes(case: Case) -> None:
    case.check()


def with_key(value: str = "sk-hidden") -> Recording:
    def program() -> None:
        key = credential("api-key", "ai-infra", {}, {"key": value}, None)
        VllmServer("qwen", server_args(api_key=key))

    return record(program)


@pytest.mark.parametrize("changes", [{}, {RESOURCES: {"memoryLimit": "24Gi"}}], ids=["small", "large"])
def test_net_1_shared_memory_is_mounted_where_the_engine_is(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    container = server(render(monkeypatch, changes))
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert mounts["/dev/shm"] == "shm", "64 MiB is what a container has by itself"  # noqa: S108 - the mount


def test_sec_1_the_policy_names_clients_and_probes_need_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {EXPOSURE: {"type": "LoadBalancer", "allowFrom": {"namespaces": ["apps"], "cidrs": ["203.0.113.0/24"]}}}
    recording = render(monkeypatch, changes)
    policies = [item.inputs for item in recording.registrations if item.type.endswith(":NetworkPolicy")]
    (policy,) = [each for each in policies if each["metadata"]["name"] == "qwen"]
    (rule,) = policy["spec"]["ingress"]
    peers = [sorted(peer) for peer in rule["from"]]
    assert peers == [["podSelector"], ["namespaceSelector"], ["ipBlock"]], "nobody but who is named"
    container = server(recording)
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert not container[name]["httpGet"]["path"].startswith("/v1"), f"{name}: /v1 asks for the key"


def test_sec_3_another_key_rolls_the_server_and_the_same_does_not() -> None:
    secret = with_key().one("kubernetes:core/v1:Secret")
    assert secret.inputs["immutable"] is True, "a content that changes in place reaches no running server"
    assert "name" not in secret.raw_inputs["metadata"], "another content is another name, which the template refers to"
    (variable,) = [item for item in server(with_key())["env"] if item["name"] == "VLLM_API_KEY"]
    assert variable["valueFrom"]["secretKeyRef"]["name"] == "api-key-generated", "by the generated name"
    first, again = one(with_key(), "Deployment"), one(with_key(), "Deployment")
    assert first == again, "the neighbour: nothing changed, nothing rolls"
