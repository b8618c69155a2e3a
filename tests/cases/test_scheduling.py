"""SCH and EKS: pods that no node takes, and nodes that never come."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cases.case import Case, errors
from tests.cases.rendered import one, pods, render, server
from tests.components.test_image_pre_pull import pod as pre_pull
from tests.components.test_vllm_server import pod as server_pod
from tests.components.test_vllm_server import recorded
from tests.infra.test_live_rules import cluster, found, node

TAINT = {"nodes.lab.taints": [{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}]}
PAIR = {
    "nodes.lab.nodes": 2,
    "nodes.lab.nodeNames": ["lab-0", "lab-1"],
    "services.qwen.replicas": 2,
    "services.qwen.cache": {"kind": "storageClass", "storageClass": "fast", "size": "20Gi"},
}
DRA = {"nodes.lab.allocation": "dra"}
TWIN = {
    "pool": "lab",
    "model": {"id": "Qwen/Qwen2.5-0.5B-Instruct"},
    "image": {"tag": "v0.31.0"},
    "engine": {"maxModelLen": 2048},
    "cache": {"kind": "storageClass", "storageClass": "fast", "size": "20Gi"},
}

CASES = [
    Case(
        "SCH-1",
        "replicas that need more cards than there are",
        {**PAIR, "services.qwen.replicas": 3},
        "error",
        "SCH-GPUS",
        "nodes.lab",
        "want 3",
        PAIR,
    ),
    Case(
        "SCH-1",
        "a surge that needs a spare card",
        {"services.qwen.rollout": {"type": "RollingUpdate"}},
        "error",
        "CFG-KEY",
        ".rollout",
        "always Recreate",
    ),
    Case(
        "SCH-1",
        "two services that reserve more RAM than a node has",
        {
            "nodes.lab.gpusPerNode": 2,
            "services.qwen.resources": {"memory": "20Gi", "memoryLimit": "20Gi"},
            "services.twin": {**TWIN, "resources": {"memory": "20Gi", "memoryLimit": "20Gi"}},
        },
        "error",
        "SCH-ROOM",
        "nodes.lab.memory",
        "stays Pending",
        {
            "nodes.lab.gpusPerNode": 2,
            "services.qwen.resources": {"memory": "10Gi", "memoryLimit": "20Gi"},
            "services.twin": {**TWIN, "resources": {"memory": "10Gi", "memoryLimit": "20Gi"}},
        },
    ),
    Case(
        "SCH-1",
        "a CPU limit below what is reserved",
        {"services.qwen.resources.cpu": "6"},
        "error",
        "CPU-ORDER",
        ".resources.cpuLimit",
        "less than the 6",
        {"services.qwen.resources.cpu": "4"},
    ),
    Case(
        "SCH-2",
        "a toleration of one value",
        {"services.qwen.tolerations": [{"key": "nvidia.com/gpu", "operator": "Equal", "value": "present"}]},
        "error",
        "CFG-KEY",
        ".tolerations",
        "nodes.POOL.taints",
        TAINT,
    ),
    Case("SCH-3", "no card at all", {"services.qwen.gpus": 0}, "error", "CFG-VALUE", ".gpus", "greater than 0"),
    Case(
        "SCH-3",
        "a variable that takes cards past Kubernetes",
        {"services.qwen.env": {"NVIDIA_VISIBLE_DEVICES": "all"}},
        "error",
        "SCH-3",
        ".env.NVIDIA_VISIBLE_DEVICES",
        "overrides the cards",
        {"services.qwen.env": {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}},
    ),
    Case(
        "SCH-6",
        "claims in a cluster that has none",
        {**DRA, "cluster.kubernetesVersion": "1.30"},
        "error",
        "SCH-6",
        "nodes.lab.allocation",
        "1.30",
        {**DRA, "cluster.kubernetesVersion": "1.34"},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_spoken_about_and_its_neighbour_passes(case: Case) -> None:
    case.check()


@pytest.mark.parametrize("changes", [{}, PAIR], ids=["one replica", "the neighbour, two of them"])
def test_sch_1_no_update_needs_a_spare_card(changes: dict[str, Any]) -> None:
    made = [item.inputs for item in recorded(changes).registrations if item.type.endswith(":Deployment")]
    assert len(made) == changes.get("services.qwen.replicas", 1), "one for each replica"
    for deployment in made:
        assert deployment["spec"]["strategy"] == {"type": "Recreate"}, "a surge would wait for a card for ever"
        assert deployment["spec"]["replicas"] == 1, "each replica has a Deployment of its own"


def test_sch_2_everything_on_a_tainted_node_tolerates_any_value(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    for kind, spec in pods(render(monkeypatch, TAINT)):
        assert spec["tolerations"] == expected, f"{kind} would miss nodes that were tainted with another value"
    for kind, spec in pods(render(monkeypatch)):
        assert not spec.get("tolerations"), f"{kind}: the neighbour, a pool without taints, tolerates nothing"


@pytest.mark.parametrize(
    ("changes", "runtime_class"),
    [
        ({"cluster.flavour": "k3s", "nodes.lab.runtimeClass": "nvidia"}, "nvidia"),
        ({"cluster.flavour": "microk8s", "nodes.lab.runtimeClass": "nvidia"}, "nvidia"),
        ({}, None),
    ],
    ids=["k3s", "microk8s", "the neighbour, kubeadm"],
)
def test_sch_3_the_server_has_the_runtime_and_the_pre_pull_has_not(
    changes: dict[str, Any], runtime_class: str | None
) -> None:
    flavour = changes.get("cluster.flavour", "kubeadm")
    assert server_pod(changes, flavour=flavour).get("runtimeClassName") == runtime_class, "the card must be visible"
    assert "runtimeClassName" not in pre_pull(changes), "holding an image needs no card"


def test_sch_3_a_runtime_class_that_is_not_there_is_an_error() -> None:
    k3s = {"cluster.flavour": "k3s"}
    refused = [each for each in found(cluster(), k3s) if each.rule == "LIVE-RUNTIME"]
    assert [each.level for each in refused] == ["error"], "the API server would refuse the pod"
    there = {"RuntimeClass": [{"metadata": {"name": "nvidia"}}]}
    neighbour = [each for each in found(cluster(**there), k3s) if each.rule == "LIVE-RUNTIME"]
    assert not neighbour, "the neighbour: the class is there"


@pytest.mark.parametrize(
    ("version", "api", "nested"),
    [
        ("1.32", "resource.k8s.io/v1beta1", False),
        ("1.33", "resource.k8s.io/v1beta2", True),
        ("1.34", "resource.k8s.io/v1", True),
        ("1.37", "resource.k8s.io/v1", True),
    ],
)
def test_sch_6_claims_are_in_the_version_that_is_served(version: str, api: str, nested: bool) -> None:
    minor = int(version.split(".")[1])
    recording = recorded(DRA, kubernetes_minor=minor)
    (template,) = [item for item in recording.registrations if item.type.endswith(":ResourceClaimTemplate")]
    assert template.inputs["apiVersion"] == api, f"{version} serves that one"
    (request,) = template.inputs["spec"]["spec"]["devices"]["requests"]
    assert ("exactly" in request) is nested, "from v1beta2 on the request is one level deeper"
    limits = server(recording)["resources"]["limits"]
    assert "nvidia.com/gpu" not in limits, "a card is claimed once"
    neighbour = recorded(kubernetes_minor=minor)
    assert server(neighbour)["resources"]["limits"]["nvidia.com/gpu"] == "1", "the neighbour: the device plugin"
    assert not [item for item in neighbour.registrations if item.type.endswith(":ResourceClaimTemplate")]


def test_sch_2_a_node_that_offers_no_card_is_an_error() -> None:
    refused = [each for each in found(cluster(Node=[node(cards=0)])) if each.rule == "LIVE-CARDS"]
    assert [each.level for each in refused] == ["error"], "the device plugin is not there: it tolerates no taint, maybe"
    assert not [each for each in found(cluster()) if each.rule == "LIVE-CARDS"], "the neighbour: one card, as declared"


def test_sch_1_the_lab_itself_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not errors({}), "the neighbour of all of these"
    assert one(render(monkeypatch), "Deployment"), "and it is deployed"
