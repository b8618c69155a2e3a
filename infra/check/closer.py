"""What a check reads beyond a preview: it may take longer, and may go without what this identity must not see."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlencode

from kubernetes import client

from components import naming
from infra import live
from infra.config import StackConfig
from infra.live import LISTS, LiveCluster
from infra.preflight.dra import minor, nodes_of
from infra.preflight.live import wanted

CLUSTER_POLICIES = "/apis/nvidia.com/v1/clusterpolicies"
"""The GPU Operator's own object (https://github.com/NVIDIA/gpu-operator, api/nvidia/v1)."""
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
ALIVE = "status.phase!=Succeeded,status.phase!=Failed"

Manifest = Mapping[str, Any]


class Right(NamedTuple):
    """Something that `up` does; ``namespace`` is empty for what has none."""

    verb: str
    group: str
    resource: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


@dataclass(frozen=True)
class Unknown:
    """Something that cannot be read, and why."""

    why: str


@dataclass(frozen=True)
class Closer:
    """What was read: pods that run on the pools' nodes, resource claims (DRA), the GPU Operator's policies (``None``:
    the cluster does not know the kind), and the rights of this identity that `up` needs."""

    pods: Sequence[Manifest] | Unknown = ()
    claims: Sequence[Manifest] | Unknown | None = ()
    policies: Sequence[Manifest] | Unknown | None = None
    rights: Mapping[Right, bool] | Unknown | None = None


def look_closer(api: client.ApiClient, config: StackConfig, secrets: frozenset[str], cluster: LiveCluster) -> Closer:
    """Read it all.

    Raises:
        infra.live.LiveError: the cluster cannot be reached.
    """
    pools = [pool for pool in config.nodes.values() if pool.kind == "gpu"]
    nodes = sorted({name for pool in pools for name in nodes_of(cluster, pool)})
    dra = naming.dra_version(minor(config.cluster.kubernetes_version))
    claims = f"/apis/resource.k8s.io/{dra}/resourceclaims"
    return Closer(
        pods=_pods(api, nodes),
        claims=_items(api, claims) if any(pool.allocation == "dra" for pool in pools) else (),
        policies=_items(api, CLUSTER_POLICIES) if pools else None,
        rights=_rights(api, rights_needed(config, secrets, cluster)),
    )


def _pods(api: client.ApiClient, nodes: Iterable[str]) -> Sequence[Manifest] | Unknown:
    """By node: a cluster has many other pods."""
    found: list[Manifest] = []
    for node in nodes:
        pods = _items(api, f"/api/v1/pods?{urlencode({'fieldSelector': f'spec.nodeName={node},{ALIVE}'})}")
        if pods is None or isinstance(pods, Unknown):
            return pods or Unknown("the cluster lists no pods")
        found += pods
    return found


def _items(api: client.ApiClient, path: str) -> Sequence[Manifest] | Unknown | None:
    answer = live.get(api, path)
    if answer.status == HTTPStatus.NOT_FOUND:
        return None
    if answer.status != HTTPStatus.OK:
        return Unknown(f"the cluster answers {answer.status} to a read of {path.partition('?')[0]}")
    return list(json.loads(answer.body)["items"])


def rights_needed(config: StackConfig, secrets: frozenset[str], cluster: LiveCluster) -> tuple[Right, ...]:
    """What `up` does with the objects of a stack: an apply of what is not there is a create and a patch, everything is
    read back, and what leaves the stack is deleted (namespace, claims and volumes never are)."""
    rights: dict[Right, None] = {}
    for kind, name, _ in wanted(config):
        group, resource, namespaced = resource_of(LISTS[kind])
        there = cluster.get(kind, name) is not None
        kept = kind in {"Namespace", "PersistentVolume", "PersistentVolumeClaim", "StorageClass"}
        verbs = ["get", "patch", *([] if there else ["create"]), *([] if kept else ["delete"])]
        rights |= dict.fromkeys(_each(config, verbs, group, resource, namespaced))
    if secrets:
        rights |= dict.fromkeys(_each(config, ["get", "patch", "create", "delete"], "", "secrets", True))
    if any(pool.allocation == "dra" for pool in config.nodes.values()):
        templates = ("resource.k8s.io", "resourceclaimtemplates", True)
        rights |= dict.fromkeys(_each(config, ["get", "patch", "create", "delete"], *templates))
    # How the provider sees that a Deployment is up (pulumi-kubernetes, provider/pkg/await/deployment.go).
    for group, resource in (("", "pods"), ("apps", "replicasets"), ("", "events")):
        rights |= dict.fromkeys(_each(config, ["list", "watch"], group, resource, True))
    return tuple(rights)


def resource_of(path: str) -> tuple[str, str, bool]:
    """API group, resource, and whether it has a namespace, of the path of a list."""
    parts = path.strip("/").split("/")
    return (parts[1] if parts[0] == "apis" else "", parts[-1], "{namespace}" in parts)


def _each(config: StackConfig, verbs: Iterable[str], group: str, resource: str, namespaced: bool) -> Iterator[Right]:
    for verb in verbs:
        yield Right(verb, group, resource, config.cluster.namespace if namespaced else "")


def _rights(api: client.ApiClient, needed: Sequence[Right]) -> Mapping[Right, bool] | Unknown:
    """Ask for everything at once first: who administers a cluster is not asked fifty times."""
    everything = _allowed(api, Right("*", "*", "*", ""))
    if isinstance(everything, Unknown):
        return everything
    found: dict[Right, bool] = {}
    for right in needed:
        allowed = everything or _allowed(api, right)
        if isinstance(allowed, Unknown):
            return allowed
        found[right] = allowed
    return found


def _allowed(api: client.ApiClient, right: Right) -> bool | Unknown:
    question = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": right._asdict()},
    }
    answer = live.ask(api, REVIEWS, question)
    if answer.status != HTTPStatus.CREATED:
        return Unknown(f"the cluster answers {answer.status} to a SelfSubjectAccessReview")
    return bool(json.loads(answer.body)["status"].get("allowed"))
