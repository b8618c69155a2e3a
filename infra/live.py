"""A read-only look at the cluster before anything is registered.

The provider answers a preview without saying that the cluster cannot be reached, that an object is
somebody else's or that a class is missing; whoever reads the preview must know. This module is the
only source of these answers, and it never writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException, list_kube_config_contexts, new_client_from_config
from urllib3.exceptions import HTTPError

from components import naming
from planner.findings import Finding
from planner.spec import ClusterSpec

TIMEOUT_SECONDS = 10
LISTS: Mapping[str, str] = {
    "Node": "/api/v1/nodes",
    "Namespace": "/api/v1/namespaces",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "RuntimeClass": "/apis/node.k8s.io/v1/runtimeclasses",
    "PersistentVolumeClaim": "/api/v1/namespaces/{namespace}/persistentvolumeclaims",
    "Service": "/api/v1/namespaces/{namespace}/services",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies",
    "Deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "DaemonSet": "/apis/apps/v1/namespaces/{namespace}/daemonsets",
    "Job": "/apis/batch/v1/namespaces/{namespace}/jobs",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "ServiceMonitor": "/apis/monitoring.coreos.com/v1/namespaces/{namespace}/servicemonitors",
    "PrometheusRule": "/apis/monitoring.coreos.com/v1/namespaces/{namespace}/prometheusrules",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets",
    "DeviceClass": "/apis/resource.k8s.io/{dra}/deviceclasses",
    "ResourceSlice": "/apis/resource.k8s.io/{dra}/resourceslices",
}
"""Every kind that is looked at. What a preview's role must be allowed to list is exactly this."""
NOT_EVERYWHERE = frozenset({"DeviceClass", "ResourceSlice", "ServiceMonitor", "PrometheusRule"})
"""Kinds that a cluster may lack: they are then absent from `LiveCluster.objects`."""


class LiveError(Exception):
    """The cluster cannot be looked at; ``finding`` says why and what to do."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


@dataclass(frozen=True)
class Answer:
    """What the API server answers: the HTTP status, and the body as it came."""

    status: int
    body: bytes


@dataclass(frozen=True)
class LiveCluster:
    """What is in the cluster: manifests by kind and name, as the API server returns them. A kind that
    the cluster does not serve is absent."""

    version: str
    objects: Mapping[str, Mapping[str, dict[str, Any]]]

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """The object, or ``None`` when there is none of that name."""
        return self.objects.get(kind, {}).get(name)


def look(cluster: ClusterSpec) -> LiveCluster:
    """Read what matters for a stack on ``cluster``.

    Raises:
        LiveError: no such context, unreachable, or not allowed to look.
    """
    api = connect(cluster)
    version = str(_get(api, cluster, "/version")["gitVersion"])
    paths = {kind: _path(path, cluster) for kind, path in LISTS.items()}
    lists = {kind: _get(api, cluster, path, kind in NOT_EVERYWHERE) for kind, path in paths.items() if path}
    objects = {
        kind: {item["metadata"]["name"]: item for item in found["items"]} for kind, found in lists.items() if found
    }
    return LiveCluster(version, objects)


def _path(path: str, cluster: ClusterSpec) -> str | None:
    """Where a kind is listed; ``None`` when the declared version of Kubernetes cannot serve it."""
    dra = naming.dra_version(int(cluster.kubernetes_version.split(".")[1]))
    return None if dra is None and "{dra}" in path else path.format(namespace=cluster.namespace, dra=dra)


def connect(cluster: ClusterSpec) -> client.ApiClient:
    """A client of exactly the context that the stack names.

    Raises:
        LiveError: no kubeconfig, or no such context in it.
    """
    where = cluster.kubeconfig or "KUBECONFIG or ~/.kube/config"
    try:
        contexts, current = list_kube_config_contexts(cluster.kubeconfig)
    except (ConfigException, OSError) as error:
        raise _error("context", f"{where} cannot be used: {error}", "set KUBECONFIG to the cluster's file") from None
    names = sorted(context["name"] for context in contexts)
    if cluster.context not in names:
        message = (
            f"the stack expects {cluster.context!r}, and {where} has {', '.join(names)} (current: {current['name']})"
        )
        remedy = (
            f"get that cluster's kubeconfig, or `kubectl config rename-context {current['name']} {cluster.context}`"
        )
        raise _error("context", message, f"{remedy} if it is the same cluster")
    return new_client_from_config(cluster.kubeconfig, context=cluster.context)


def get(api: client.ApiClient, path: str, cluster: str = "the cluster") -> Answer:
    """The API server's answer to a GET of ``path``, whatever its status. ``cluster`` is what an error calls it.

    Raises:
        LiveError: unreachable, or silent for TIMEOUT_SECONDS at every try; its cause is the client's own error.
    """
    # As client-go asks (rest/request.go: NewRequest): JSON, except for what is none, such as a log.
    headers = {"Accept": "application/json, */*"}
    try:
        request = api.param_serialize("GET", path, auth_settings=["BearerToken"], header_params=headers)
        answer = api.call_api(*request, _request_timeout=TIMEOUT_SECONDS)
        return Answer(answer.status, answer.read())
    except (HTTPError, OSError, ApiException) as error:
        raise _unreachable(cluster, error) from error


def _get(api: client.ApiClient, cluster: ClusterSpec, path: str, may_be_absent: bool = False) -> dict[str, Any]:
    """The answer to a read; empty when there is no such path and there need not be."""
    answer = get(api, path, f"the cluster of context {cluster.context!r}")
    if may_be_absent and answer.status == HTTPStatus.NOT_FOUND:
        return {}
    if answer.status != HTTPStatus.OK:
        raise _refused(cluster, path, answer.status)
    return dict(json.loads(answer.body))


def _unreachable(cluster: str, error: Exception) -> LiveError:
    reason = str(getattr(error, "reason", None) or error)
    message = f"{cluster} cannot be reached: {reason}"
    return _error("context", message, "start it, or check network and VPN; nothing was changed")


def _refused(cluster: ClusterSpec, path: str, status: int) -> LiveError:
    message = f"the cluster of context {cluster.context!r} answers {status} to a read of {path}"
    return _error("context", message, "log in again, or grant get and list of it to this identity")


def _error(field: str, message: str, remedy: str) -> LiveError:
    source = "https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/"
    return LiveError(Finding("error", f"vllm:cluster.{field}", message, remedy, f"LIVE-{field.upper()}", source))
