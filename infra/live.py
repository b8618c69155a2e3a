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
}
"""Every kind that is looked at. What a preview's role must be allowed to list is exactly this."""


class LiveError(Exception):
    """The cluster cannot be looked at; ``finding`` says why and what to do."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


@dataclass(frozen=True)
class LiveCluster:
    """What is in the cluster: manifests by kind and name, as the API server returns them."""

    version: str
    objects: Mapping[str, Mapping[str, dict[str, Any]]]

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """The object, or ``None`` when there is none of that name."""
        return self.objects[kind].get(name)


def look(cluster: ClusterSpec) -> LiveCluster:
    """Read what matters for a stack on ``cluster``.

    Raises:
        LiveError: no such context, unreachable, or not allowed to look.
    """
    api = connect(cluster)
    version = str(_get(api, cluster, "/version")["gitVersion"])
    objects = {
        kind: {item["metadata"]["name"]: item for item in _get(api, cluster, path)["items"]}
        for kind, path in LISTS.items()
    }
    return LiveCluster(version, objects)


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


def _get(api: client.ApiClient, cluster: ClusterSpec, path: str) -> dict[str, Any]:
    path = path.format(namespace=cluster.namespace)
    try:
        answer = api.call_api(
            *api.param_serialize(
                "GET", path, auth_settings=["BearerToken"], header_params={"Accept": "application/json"}
            ),
            _request_timeout=TIMEOUT_SECONDS,
        )
        body = answer.read()
    except (HTTPError, OSError, ApiException) as error:
        raise _unreachable(cluster, error) from None
    if answer.status != HTTPStatus.OK:
        raise _refused(cluster, path, answer.status)
    return dict(json.loads(body))


def _unreachable(cluster: ClusterSpec, error: Exception) -> LiveError:
    reason = str(getattr(error, "reason", None) or error)
    message = f"the cluster of context {cluster.context!r} cannot be reached: {reason}"
    return _error("context", message, "start it, or check network and VPN; nothing was changed")


def _refused(cluster: ClusterSpec, path: str, status: int) -> LiveError:
    message = f"the cluster of context {cluster.context!r} answers {status} to a read of {path}"
    return _error("context", message, "log in again, or grant get and list of it to this identity")


def _error(field: str, message: str, remedy: str) -> LiveError:
    source = "https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/"
    return LiveError(Finding("error", f"vllm:cluster.{field}", message, remedy, f"LIVE-{field.upper()}", source))
