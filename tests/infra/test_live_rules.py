"""What only the cluster tells, on fabricated clusters: each refusal beside a neighbour that must pass."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from components import naming
from infra.live import LISTS, LiveCluster
from infra.preflight import check_live
from planner.findings import Finding
from tests.stack_files import config

STACK = "lab-3060"
OURS = {naming.STACK_LABEL: STACK}
CLAIM, VOLUME = "vllm-model-0", "ai-infra-vllm-model-0"
DYNAMIC = {
    "services.qwen.cache": {"kind": "storageClass", "storageClass": "fast", "size": "20Gi", "claimName": "vllm-model"}
}


def an_object(name: str, labels: Mapping[str, str] | None = None, **parts: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": dict(labels or {})}, **parts}


def node(
    name: str = "lab", cards: int = 1, ready: str = "True", labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    selector = config().nodes["lab"].selector
    status = {"conditions": [{"type": "Ready", "status": ready}], "allocatable": {"nvidia.com/gpu": str(cards)}}
    return an_object(name, selector if labels is None else labels, status=status)


def claim(size: str = "20Gi", class_name: str = "", mode: str = "ReadWriteOnce", **labels: str) -> dict[str, Any]:
    spec = {"storageClassName": class_name, "accessModes": [mode], "resources": {"requests": {"storage": size}}}
    return an_object(CLAIM, labels or OURS, spec=spec)


def volume(
    phase: str = "Bound", path: str = "/srv/ai-infra/vllm-model-cache", claim_name: str = CLAIM
) -> dict[str, Any]:
    spec = {"hostPath": {"path": path}, "claimRef": {"namespace": "ai-infra", "name": claim_name}}
    return an_object(VOLUME, OURS, spec=spec, status={"phase": phase})


def cluster(version: str = "v1.37.2", **objects: list[dict[str, Any]]) -> LiveCluster:
    there = {"Node": [node()], **objects}
    by_name = {kind: {item["metadata"]["name"]: item for item in there.get(kind, [])} for kind in LISTS}
    return LiveCluster(version, copy.deepcopy(by_name))


def found(live: LiveCluster, changes: Mapping[str, Any] | None = None) -> list[Finding]:
    return list(check_live(config(changes=changes), STACK, live))


EXPANDABLE = {"StorageClass": [an_object("fast", allowVolumeExpansion=True)]}
RIGID = {"StorageClass": [an_object("fast")]}
GROWN = {"services.qwen.cache": {**DYNAMIC["services.qwen.cache"], "size": "40Gi"}}
SHRUNK = {"services.qwen.cache": {**DYNAMIC["services.qwen.cache"], "size": "10Gi"}}
SHARED = {"services.qwen.cache": {**DYNAMIC["services.qwen.cache"], "accessMode": "ReadWriteMany"}}
K3S = {"cluster.flavour": "k3s"}

# what is in the cluster, changes of the stack, (level, path, words) or None where nothing may be said
CASES: dict[str, tuple[LiveCluster, dict[str, Any], tuple[str, str, str] | None]] = {
    "nothing there yet": (cluster(), {}, None),
    "a foreign namespace": (
        cluster(Namespace=[an_object("ai-infra")]),
        {},
        ("error", "cluster.namespace", "cluster.adopt: [Namespace/ai-infra]"),
    ),
    "a namespace that may be taken over": (
        cluster(Namespace=[an_object("ai-infra")]),
        {"cluster.adopt": ["Namespace/ai-infra"]},
        None,
    ),
    "our own namespace": (cluster(Namespace=[an_object("ai-infra", OURS)]), {}, None),
    "the namespace of another stack": (
        cluster(Namespace=[an_object("ai-infra", {naming.STACK_LABEL: "other"})]),
        {},
        ("error", "cluster.namespace", "belongs to the stack 'other'"),
    ),
    "a namespace that is going": (
        cluster(Namespace=[an_object("ai-infra", OURS, status={"phase": "Terminating"})]),
        {},
        ("error", "cluster.namespace", "being deleted"),
    ),
    "a foreign claim": (
        cluster(PersistentVolumeClaim=[claim(other="x")]),
        {},
        ("error", "services.qwen.cache.claimName", "cluster.adopt: [PersistentVolumeClaim/vllm-model-0]"),
    ),
    "a foreign Service": (
        cluster(Service=[an_object("vllm-service")]),
        {},
        ("error", "services.qwen.exposure.serviceName", "cluster.adopt: [Service/vllm-service]"),
    ),
    "a foreign Deployment": (
        cluster(Deployment=[an_object("qwen-0")]),
        {},
        ("error", "services.qwen", "choose another name"),
    ),
    "our kept claim and volume": (cluster(PersistentVolumeClaim=[claim()], PersistentVolume=[volume()]), {}, None),
    "a released volume": (
        cluster(PersistentVolume=[volume("Released")]),
        {},
        ("error", "services.qwen.cache", "kubectl patch pv ai-infra-vllm-model-0"),
    ),
    "a volume of another folder": (
        cluster(PersistentVolume=[volume(path="/elsewhere")]),
        {},
        ("error", "services.qwen.cache.path", "/elsewhere"),
    ),
    "a volume of another claim": (
        cluster(PersistentVolume=[volume(claim_name="theirs")]),
        {},
        ("error", "services.qwen.cache.claimName", "ai-infra/theirs"),
    ),
    "a static claim that should grow": (
        cluster(PersistentVolumeClaim=[claim(size="10Gi")]),
        {},
        ("error", "services.qwen.cache.size", "no quota"),
    ),
    "a claim that should grow in an expandable class": (
        cluster(PersistentVolumeClaim=[claim(class_name="fast")], **EXPANDABLE),
        GROWN,
        None,
    ),
    "a claim that should grow in a rigid class": (
        cluster(PersistentVolumeClaim=[claim(class_name="fast")], **RIGID),
        GROWN,
        ("error", "services.qwen.cache.size", "allowVolumeExpansion"),
    ),
    "a claim that should shrink": (
        cluster(PersistentVolumeClaim=[claim(class_name="fast")], **EXPANDABLE),
        SHRUNK,
        ("error", "services.qwen.cache.size", "never shrinks"),
    ),
    "the same size in another spelling": (
        cluster(PersistentVolumeClaim=[claim(size="20480Mi", class_name="fast")], **EXPANDABLE),
        DYNAMIC,
        None,
    ),
    "another storage class": (
        cluster(PersistentVolumeClaim=[claim(class_name="slow")], **EXPANDABLE),
        DYNAMIC,
        ("error", "services.qwen.cache.storageClass", "second claim"),
    ),
    "from a folder to a class": (
        cluster(PersistentVolumeClaim=[claim()], **EXPANDABLE),
        DYNAMIC,
        ("error", "services.qwen.cache.kind", "keeps its class"),
    ),
    "another access mode": (
        cluster(PersistentVolumeClaim=[claim(class_name="fast")], **EXPANDABLE),
        SHARED,
        ("error", "services.qwen.cache.accessMode", "keeps its mode"),
    ),
    "an existing claim that is not there": (
        cluster(),
        {"services.qwen.cache": {"kind": "existingClaim", "claimName": "models"}},
        ("error", "services.qwen.cache.claimName", "no claim 'models'"),
    ),
    "an existing claim": (
        cluster(PersistentVolumeClaim=[an_object("models", spec={})]),
        {"services.qwen.cache": {"kind": "existingClaim", "claimName": "models"}},
        None,
    ),
    "a class that is not there": (cluster(), DYNAMIC, ("error", "services.qwen.cache.storageClass", "classes: none")),
    "no node of the pool": (
        cluster(Node=[node(labels={})]),
        {},
        ("error", "nodes.lab.selector", "nvidia.com/gpu.present=true"),
    ),
    "a node without its card": (cluster(Node=[node(cards=0)]), {}, ("error", "nodes.lab", "offer 0")),
    "fewer cards than declared": (
        cluster(Node=[node()]),
        {"nodes.lab.nodes": 2, "services.qwen.cache.node": "lab"},
        ("warn", "nodes.lab", "offer 1"),
    ),
    "time-sliced copies of one card": (cluster(Node=[node(cards=4)]), {}, ("warn", "nodes.lab", "time-sl")),
    "a node that is down": (cluster(Node=[node(ready="Unknown")]), {}, ("warn", "nodes.lab", "prePull.await: false")),
    "no RuntimeClass on k3s": (cluster(), K3S, ("error", "nodes.lab.runtimeClass", "no RuntimeClass 'nvidia'")),
    "the RuntimeClass on k3s": (cluster(RuntimeClass=[an_object("nvidia")]), K3S, None),
    "an older cluster than declared": (cluster("v1.36.1"), {}, ("warn", "cluster.kubernetesVersion", '"1.36"')),
}


@pytest.mark.parametrize(("live", "changes", "expected"), CASES.values(), ids=CASES.keys())
def test_the_cluster_is_compared_with_the_stack(
    live: LiveCluster, changes: dict[str, Any], expected: tuple[str, str, str] | None
) -> None:
    findings = found(live, changes)
    if expected is None:
        assert not findings, f"this runs, and was not let through: {findings}"
        return
    level, path, words = expected
    assert [(item.level, item.path) for item in findings] == [(level, f"vllm:{path}")], findings
    assert words in f"{findings[0].message} {findings[0].remedy}", f"{findings[0]} does not say {words!r}"
