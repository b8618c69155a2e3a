"""How a server is reached: by an address, or through a port-forward to the pods that its Service leads to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from kubernetes import client

from infra import live
from infra.live import Answer
from infra.port_forward import ForwardError, Pod, Request, ask_pod, send


class Fault(Exception):  # noqa: N818 - what a check found, and no error of the program
    """A check failed. ``remedy`` is what to do; empty where the diagnosis of the start says it."""

    def __init__(self, said: str, remedy: str = "") -> None:
        super().__init__(said)
        self.remedy = remedy


@dataclass(frozen=True)
class Way:
    """A server and the way to it. ``ask`` takes a request and the seconds that the server may be silent.

    Raises (``ask``):
        Fault: no answer.
    """

    name: str
    ask: Callable[[Request, float], Answer]


class Address(NamedTuple):
    """An address that a server is reachable at directly; ``path`` is in front of /health and /v1."""

    scheme: str
    host: str
    port: int | None
    path: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}{f':{self.port}' if self.port else ''}{self.path}"


def address_of(url: str) -> Address:
    """The address in a URL; `/v1` at its end, as OpenAI's clients want it, is left out.

    Raises:
        ValueError: it is none, or it holds a password.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("write http://HOST:PORT or https://HOST")
    if parts.username is not None or parts.password is not None:
        raise ValueError("no user and password in it: an argument is seen by everybody on this machine")
    return Address(parts.scheme, parts.hostname, parts.port, parts.path.rstrip("/").removesuffix("/v1"))


def to_address(address: Address) -> Way:
    """Directly. A redirect is an answer and is not followed: the API key would go where it leads."""
    kind = HTTPSConnection if address.scheme == "https" else HTTPConnection

    def ask(request: Request, seconds: float) -> Answer:
        connection = kind(address.host, address.port, timeout=seconds)
        moved = Request(f"{address.path}{request.path}", request.method, request.body, request.headers)
        try:
            return send(connection, moved)
        except (OSError, HTTPException) as error:
            raise Fault(f"{address}{request.path} cannot be read: {error or type(error).__name__}") from None
        finally:
            connection.close()

    return Way(str(address), ask)


def to_pod(api: client.ApiClient, pod: Pod) -> Way:
    """Through a port-forward, one for each request."""

    def ask(request: Request, seconds: float) -> Answer:
        try:
            return ask_pod(api, pod, request, seconds)
        except ForwardError as error:
            raise Fault(str(error)) from None

    return Way(f"pod {pod.name}", ask)


def ready_pods(api: client.ApiClient, namespace: str, service: str) -> list[Pod]:
    """The pods behind a Service that an EndpointSlice calls ready: the Service leads to these and to no others.

    Raises:
        Fault: no such Service, not allowed to look, or none is ready.
        infra.live.LiveError: the cluster cannot be reached.
    """
    read(api, f"/api/v1/namespaces/{namespace}/services/{service}", f"Service {namespace}/{service}")
    select = urlencode({"labelSelector": f"kubernetes.io/service-name={service}"})
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?{select}"
    slices = read(api, path, f"EndpointSlices of namespace {namespace}")["items"]
    found = {
        endpoint["targetRef"]["name"]: Pod(namespace, endpoint["targetRef"]["name"], int(ports[0]["port"]))
        for one in slices
        if (ports := one.get("ports") or [])
        for endpoint in one.get("endpoints") or []
        if _is_ready(endpoint) and (endpoint.get("targetRef") or {}).get("kind") == "Pod"
    }
    if not found:
        waiting = sum(len(one.get("endpoints") or []) for one in slices)
        raise Fault(
            f"no EndpointSlice of Service {namespace}/{service} holds a ready address ({waiting} that are not ready)"
        )
    return [found[name] for name in sorted(found)]


def _is_ready(endpoint: Mapping[str, Any]) -> bool:
    # "In general, this can be considered true when nil" (discovery.k8s.io/v1, EndpointConditions.ready).
    return (endpoint.get("conditions") or {}).get("ready") is not False


def read(api: client.ApiClient, path: str, what: str) -> dict[str, Any]:
    """One object, or a list of them.

    Raises:
        Fault: it is not there, or must not be read.
        infra.live.LiveError: the cluster cannot be reached.
    """
    answer = live.get(api, path)
    if answer.status == HTTPStatus.NOT_FOUND:
        raise Fault(f"there is no {what}", "deploy it first: pulumi up")
    if answer.status != HTTPStatus.OK:
        raise Fault(f"the cluster answers {answer.status} to a read of {what}", "grant get and list of it")
    return dict(json.loads(answer.body))
