"""Objects as a cluster returns them, for tests of what is said about a live cluster: the lab of the shipped stack."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from components import naming
from infra.live import LISTS, NOT_EVERYWHERE, LiveCluster
from tests.stack_files import config

STACK = "lab-3060"
OURS = {naming.STACK_LABEL: STACK}
THEIRS = {naming.STACK_LABEL: "other", naming.COMPONENT_LABEL: "server"}
CLAIM, VOLUME = "vllm-model-0", "ai-infra-vllm-model-0"


def an_object(name: str, labels: Mapping[str, str] | None = None, **parts: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": dict(labels or {})}, **parts}


def node(
    name: str = "lab",
    cards: int = 1,
    ready: str = "True",
    labels: Mapping[str, str] | None = None,
    kubelet: str = "v1.37.2",
) -> dict[str, Any]:
    selector = config().nodes["lab"].selector
    status = {
        "conditions": [{"type": "Ready", "status": ready}],
        "allocatable": {"nvidia.com/gpu": str(cards)},
        "nodeInfo": {"kubeletVersion": kubelet},
    }
    return an_object(name, selector if labels is None else labels, status=status)


def claim(
    size: str = "20Gi", class_name: str = "", mode: str = "ReadWriteOnce", name: str = CLAIM, **labels: str
) -> dict[str, Any]:
    spec = {"storageClassName": class_name, "accessModes": [mode], "resources": {"requests": {"storage": size}}}
    return an_object(name, labels or OURS, spec=spec)


def volume(
    phase: str = "Bound", path: str = "/srv/ai-infra/vllm-model-cache", claim_name: str = CLAIM
) -> dict[str, Any]:
    spec = {"hostPath": {"path": path}, "claimRef": {"namespace": "ai-infra", "name": claim_name}}
    return an_object(VOLUME, OURS, spec=spec, status={"phase": phase})


def host(name: str, **more: str) -> dict[str, str]:
    return {**config().nodes["lab"].selector, "kubernetes.io/hostname": name, **more}


def device_class(name: str = "gpu.nvidia.com", **spec: Any) -> dict[str, Any]:
    cel = {"expression": "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"}
    return an_object(name, spec={"selectors": [{"cel": cel}], **spec})


def card_slice(
    name: str = "lab", types: tuple[str, ...] = ("gpu",), generation: int = 1, *, beta: bool = False
) -> dict[str, Any]:
    kinds = [{"attributes": {"type": {"string": kind}}} for kind in types]
    cards = [{"name": f"card-{number}", **({"basic": kind} if beta else kind)} for number, kind in enumerate(kinds)]
    pool = {"name": "lab", "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "lab", "pool": pool, "devices": cards}
    return an_object(f"{name}-slice", spec=spec)


def cards_by_dra(version: str = "v1.37.2", **parts: list[dict[str, Any]]) -> LiveCluster:
    there = {"Node": [node(cards=0)], "DeviceClass": [device_class()], "ResourceSlice": [card_slice()], **parts}
    return cluster(version, **there)


def without_dra(live: LiveCluster) -> LiveCluster:
    kept = {kind: there for kind, there in live.objects.items() if kind not in NOT_EVERYWHERE}
    return LiveCluster(live.version, kept)


def cluster(version: str = "v1.37.2", **objects: list[dict[str, Any]]) -> LiveCluster:
    there = {"Node": [node()], **objects}
    by_name = {kind: {item["metadata"]["name"]: item for item in there.get(kind, [])} for kind in LISTS}
    return LiveCluster(version, copy.deepcopy(by_name))


def our_server(name: str, selector: Mapping[str, str] | None = None, replicas: int = 1) -> dict[str, Any]:
    """A server of this stack as the cluster returns it."""
    container = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.31.0",
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    chosen = config().nodes["lab"].selector if selector is None else selector
    pod = {"nodeSelector": dict(chosen), "containers": [container]}
    labels = {**OURS, naming.COMPONENT_LABEL: "server"}
    return an_object(name, labels, spec={"replicas": replicas, "template": {"spec": pod}})


def foreign_service(*ports: dict[str, Any], labels: Mapping[str, str] | None = None) -> LiveCluster:
    """A cluster with a Service of the name that the stack wants for its own, on port 8000."""
    name = naming.service_name("qwen", config().services["qwen"])
    return cluster(Service=[an_object(name, labels, spec={"ports": [{"protocol": "TCP", **port} for port in ports]})])


def servers_of(namespace: str, *servers: dict[str, Any], **objects: list[dict[str, Any]]) -> LiveCluster:
    """A cluster in which these are all servers, of whatever stack."""
    there = [{**item, "metadata": {**item["metadata"], "namespace": namespace}} for item in servers]
    return replace(cluster(**objects), servers=there)
