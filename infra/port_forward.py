"""One HTTP request to a pod, through a port-forward of the API server.

Not through the API server's proxy: the server's NetworkPolicy admits its clients only and keeps the API server
out where it is enforced, while a port-forward is opened inside the pod's own network namespace
(https://kubernetes.io/docs/reference/kubectl/generated/kubectl_port-forward/). Nor does the API server's audit log then
hold what is sent. It needs get and create of pods/portforward in the pod's namespace, nothing else (seen with
Kubernetes 1.37).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import NamedTuple

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import portforward

from infra.live import Answer


class ForwardError(Exception):
    """A pod cannot be asked; the message says which, why and what helps."""


class Pod(NamedTuple):
    """Where a pod listens."""

    namespace: str
    name: str
    port: int


@dataclass(frozen=True)
class Request:
    """What is asked for. ``headers`` may hold a key, so they are in no text of it."""

    path: str
    method: str = "GET"
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


def send(connection: HTTPConnection, request: Request) -> Answer:
    """The answer to one request on a connection that nobody uses afterwards.

    Raises:
        OSError, http.client.HTTPException: no answer.
    """
    headers = {**request.headers, "Connection": "close"}
    connection.request(request.method, request.path, body=request.body, headers=headers)
    answer = connection.getresponse()
    # The end of the body must come from its own length or chunks: a port-forward does not pass on that the server
    # has closed its side.
    return Answer(answer.status, answer.read())


def ask_pod(api: client.ApiClient, pod: Pod, request: Request, seconds: float) -> Answer:
    """What a pod answers; ``seconds`` is how long it may be silent.

    Raises:
        ForwardError: no port-forward, or no answer through it.
    """
    forward = None
    try:
        core = client.CoreV1Api(api)
        forward = portforward(core.connect_get_namespaced_pod_portforward, pod.name, pod.namespace, ports=str(pod.port))
        socket = forward.socket(pod.port)
        socket.settimeout(seconds)
        connection = HTTPConnection(pod.name)
        connection.sock = socket
        return send(connection, request)
    except ApiException as error:
        words = _refusal(str(error.reason))
        if "403" in words:
            words += f"; this identity needs get and create of pods/portforward in namespace {pod.namespace}"
        raise ForwardError(f"no port-forward to pod {pod.name}: {words}, or use --url") from None
    except (OSError, HTTPException) as error:
        said = (forward.error(pod.port) if forward is not None else None) or error
        raise ForwardError(f"{request.path} of pod {pod.name} cannot be read through a port-forward: {said}") from None
    finally:
        if forward is not None:
            forward.close()


def _refusal(reason: str) -> str:
    """What the API server says of a refused handshake: the client puts headers before its Status."""
    words, _, answer = reason.partition(" -+-+- ")
    status = answer.rpartition(" -+-+- ")[2]
    try:
        return f"{words}, {json.loads(status)['message']}"
    except (ValueError, KeyError, TypeError):
        return words
