"""A read-only look at the cluster before anything is registered.

The provider answers a preview without saying that the cluster cannot be reached, that an object is
somebody else's or that a class is missing; whoever reads the preview must know. This module is the
only source of these answers, and it never writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
SERVERS = f"/apis/apps/v1/deployments?labelSelector={naming.COMPONENT_LABEL}=server,{naming.STACK_LABEL}"
"""The servers of all stacks and namespaces: they hold cards wherever they are."""


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
    the cluster does not serve is absent. Of kinds with a namespace only the stack's own is seen, except
    for ``servers``: Deployments of every stack and namespace."""

    version: str
    objects: Mapping[str, Mapping[str, dict[str, Any]]]
    servers: Sequence[dict[str, Any]] = ()

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """The object, or ``None`` when there is none of that name."""
        return self.objects.get(kind, {}).get(name)


def look(cluster: ClusterSpec, api: client.ApiClient | None = None) -> LiveCluster:
    """Read what matters for a stack on ``cluster``; ``api`` is a client of it that is there already.

    Raises:
        LiveError: no such context, unreachable, or not allowed to look.
    """
    api = api or connect(cluster)
    version = str(_get(api, cluster, "/version")["gitVersion"])
    paths = {kind: _path(path, cluster) for kind, path in LISTS.items()}
    lists = {kind: _get(api, cluster, path, kind in NOT_EVERYWHERE) for kind, path in paths.items() if path}
    objects = {
        kind: {item["metadata"]["name"]: item for item in found["items"]} for kind, found in lists.items() if found
    }
    return LiveCluster(version, objects, _servers(api, cluster))


def _servers(api: client.ApiClient, cluster: ClusterSpec) -> list[dict[str, Any]]:
    """None where this identity may not look beyond its own namespace: it can deploy all the same."""
    answer = get(api, SERVERS, _called(cluster))
    if answer.status == HTTPStatus.FORBIDDEN:
        return []
    if answer.status != HTTPStatus.OK:
        raise _refused(cluster, SERVERS, answer.status)
    return list(json.loads(answer.body)["items"])


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
    return _call(api, "GET", path, cluster)


def ask(api: client.ApiClient, path: str, question: Mapping[str, Any], cluster: str = "the cluster") -> Answer:
    """The answer to a question that is put as an object, such as a SelfSubjectAccessReview. It is a create that stores
    nothing, and a dry run too, so that an identity that may do nothing else may ask.

    Raises:
        LiveError: as :func:`get`.
    """
    return _call(api, "POST", f"{path}?dryRun=All", cluster, question)


def _call(api: client.ApiClient, method: str, path: str, cluster: str, body: Mapping[str, Any] | None = None) -> Answer:
    # As client-go asks (rest/request.go: NewRequest): JSON, except for what is none, such as a log.
    headers = {"Accept": "application/json, */*", **({"Content-Type": "application/json"} if body else {})}
    try:
        request = api.param_serialize(method, path, auth_settings=["BearerToken"], header_params=headers, body=body)
        answer = api.call_api(*request, _request_timeout=TIMEOUT_SECONDS)
        return Answer(answer.status, answer.read())
    except (HTTPError, OSError, ApiException) as error:
        raise _unreachable(cluster, error) from error


def _get(api: client.ApiClient, cluster: ClusterSpec, path: str, may_be_absent: bool = False) -> dict[str, Any]:
    """The answer to a read; empty when there is no such path and there need not be."""
    answer = get(api, path, _called(cluster))
    if may_be_absent and answer.status == HTTPStatus.NOT_FOUND:
        return {}
    if answer.status != HTTPStatus.OK:
        raise _refused(cluster, path, answer.status)
    return dict(json.loads(answer.body))


def _called(cluster: ClusterSpec) -> str:
    return f"the cluster of context {cluster.context!r}"


def _unreachable(cluster: str, error: Exception) -> LiveError:
    reason = str(getattr(error, "reason", None) or error)
    message = f"{cluster} cannot be reached: {reason}"
    return _error("context", message, "start it, or check network and VPN; nothing was changed")


def _refused(cluster: ClusterSpec, path: str, status: int) -> LiveError:
    message = f"{_called(cluster)} answers {status} to a read of {path}"
    return _error("context", message, "log in again, or grant get and list of it to this identity")


def _error(field: str, message: str, remedy: str) -> LiveError:
    source = "https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/"
    return LiveError(Finding("error", f"vllm:cluster.{field}", message, remedy, f"LIVE-{field.upper()}", source))
