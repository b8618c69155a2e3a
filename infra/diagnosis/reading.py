"""Everything about one start, read from the cluster at once: its parts disappear at different times."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from kubernetes import client

from components import naming
from infra import live
from infra.diagnosis.facts import Condition, Container, Event, StartFacts, Termination

LOG_LINES_READ = 2000
"""An engine's traceback is followed by the API server's, some hundred lines, which only points back to it."""

Manifest = Mapping[str, Any]
Ask = Callable[[str], str]
"""The body that the API server answers to a GET of a path. Raises Unread."""


class Unread(Exception):  # noqa: N818 - no error of the program: a fact that is not to be had
    """Something cannot be read; the message says what and why."""


def read_facts(api_client: client.ApiClient, namespace: str, service_name: str, replica: int = 0) -> StartFacts:
    """Everything about the newest start of a replica; what cannot be read is in ``unread``. Never raises.

    The pod is that of the newest ReplicaSet of the replica's Deployment. When that one is ready, or
    absent, it is the pod of a seed Job or the pre-pull that has not come to its end.
    """
    return gather(lambda path: get(api_client, path), namespace, service_name, replica)


def gather(ask: Ask, namespace: str, service: str, replica: int = 0) -> StartFacts:
    """:func:`read_facts` with the way to ask as a function."""
    unread: list[str] = []
    select = urlencode({"labelSelector": f"{naming.INSTANCE_LABEL}={service}"})
    core, apps = f"/api/v1/namespaces/{namespace}", f"/apis/apps/v1/namespaces/{namespace}"
    deployments = _items(ask, f"{apps}/deployments?{select}", unread)
    replica_sets = _items(ask, f"{apps}/replicasets?{select}", unread)
    pods = [pod for pod in _items(ask, f"{core}/pods?{select}", unread) if _is_of(pod, replica)]
    events = _items(ask, f"{core}/events?limit=500", unread)
    deployment = next((item for item in deployments if _name(item) == naming.server_name(service, replica)), None)
    replica_set = max(_owned(replica_sets, deployment), key=_revision, default=None)
    pod = _pod(_owned(pods, replica_set), pods)
    facts = _status(service, deployment, replica_set, pod, [_name(item) for item in pods if _is_stopping(item)])
    facts = replace(facts, events=_events(events, _concerned(deployment, replica_set, pod)))
    return _with_log(ask, core, facts, unread)


def _is_of(pod: Manifest, replica: int) -> bool:
    """Whether a pod is of this replica's server, or of what all replicas wait for."""
    return bool(pod["metadata"]["labels"].get(naming.REPLICA_LABEL, str(replica)) == str(replica))


def _pod(of_server: Sequence[Manifest], pods: Sequence[Manifest]) -> Manifest | None:
    server = max((pod for pod in of_server if not _is_stopping(pod)), key=_created, default=None)
    newest: dict[str, Manifest] = {}
    for pod in sorted(
        (pod for pod in pods if pod["metadata"]["labels"].get(naming.COMPONENT_LABEL) != "server"), key=_created
    ):
        owner = _owner(pod)
        # A Job's earlier attempts say nothing once a later one is there; a DaemonSet's pods all count.
        newest[owner if owner.startswith("Job/") else _name(pod)] = pod
    candidates = [*([server] if server else []), *reversed(newest.values())]
    return next((pod for pod in candidates if not _is_fine(pod)), server)


def _is_fine(pod: Manifest) -> bool:
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
    return ready or pod["status"].get("phase") == "Succeeded"


def _is_stopping(item: Manifest) -> bool:
    return "deletionTimestamp" in item["metadata"]


def _status(
    service: str,
    deployment: Manifest | None,
    replica_set: Manifest | None,
    pod: Manifest | None,
    stopping: Sequence[str],
) -> StartFacts:
    status = pod["status"] if pod else {}
    conditions = [*status.get("conditions", []), *((deployment or {}).get("status", {}).get("conditions", []))]
    owner = f"Deployment/{_name(deployment)}" if deployment else ""
    if pod and not (replica_set and _is_owned_by(pod, replica_set)):
        owner = _owner(pod)
    return StartFacts(
        service=service,
        owner=owner,
        pod=_name(pod) if pod else "",
        phase=status.get("phase", ""),
        phase_reason=status.get("reason", ""),
        phase_message=status.get("message", ""),
        containers=(
            *(_container(item, init=True) for item in status.get("initContainerStatuses", [])),
            *(_container(item, init=False) for item in status.get("containerStatuses", [])),
        ),
        conditions=tuple(
            Condition(item["type"], item["status"], item.get("reason") or "", item.get("message") or "")
            for item in conditions
        ),
        stopping=tuple(stopping),
    )


def _container(status: Manifest, *, init: bool) -> Container:
    state, last = status.get("state", {}), status.get("lastState", {})
    waiting = state.get("waiting", {})
    return Container(
        name=status["name"],
        init=init,
        running="running" in state,
        ready=status.get("ready", False),
        restarts=status.get("restartCount", 0),
        waiting=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        ended=_termination(state.get("terminated")),
        last=_termination(last.get("terminated")),
    )


def _termination(state: Manifest | None) -> Termination | None:
    return Termination(state.get("reason", ""), state["exitCode"], state.get("message", "")) if state else None


def _concerned(deployment: Manifest | None, replica_set: Manifest | None, pod: Manifest | None) -> set[str]:
    """KIND/NAME of everything whose events belong to this start: the owners, the pod, its claims."""
    named = {
        f"{kind}/{_name(item)}"
        for kind, item in (("Deployment", deployment), ("ReplicaSet", replica_set), ("Pod", pod))
        if item
    }
    volumes = pod["spec"].get("volumes", []) if pod else []
    claims = {
        f"PersistentVolumeClaim/{volume['persistentVolumeClaim']['claimName']}"
        for volume in volumes
        if "persistentVolumeClaim" in volume
    }
    return named | claims | ({_owner(pod)} if pod else set())


def _events(items: Sequence[Manifest], concerned: set[str]) -> tuple[Event, ...]:
    """The events about those objects, oldest first. Old and new API spell time and count differently."""
    events = [
        Event(
            of=f"{item['involvedObject'].get('kind')}/{item['involvedObject'].get('name')}",
            reason=item.get("reason") or "",
            message=item.get("message") or "",
            type=item.get("type") or "Normal",
            when=item.get("lastTimestamp")
            or (item.get("series") or {}).get("lastObservedTime")
            or item.get("eventTime")
            or "",
            count=item.get("count") or (item.get("series") or {}).get("count") or 1,
        )
        for item in items
    ]
    return tuple(
        sorted((event for event in events if event.of in concerned), key=lambda event: event.when.removesuffix("Z"))
    )


def _with_log(ask: Ask, core: str, facts: StartFacts, unread: list[str]) -> StartFacts:
    """Add the log of the container that tells most: one that failed, else one that runs."""
    containers = [
        *(c for c in facts.containers if c.failure),
        *(c for c in facts.containers if c.running and not c.init),
    ]
    if not containers:
        return replace(facts, unread=tuple(unread))
    told = containers[0]
    previous = told.ended is None and told.last is not None
    options = {"container": told.name, "tailLines": LOG_LINES_READ, "previous": str(previous).lower()}
    try:
        log = tuple(ask(f"{core}/pods/{facts.pod}/log?{urlencode(options)}").splitlines())
    except Unread as error:
        unread.append(f"log of {told.name}: {error}")
        log = ()
    return replace(facts, log=log, log_of=told.name, log_is_previous=previous, unread=tuple(unread))


def _items(ask: Ask, path: str, unread: list[str]) -> list[Manifest]:
    try:
        return list(json.loads(ask(path))["items"])
    except Unread as error:
        unread.append(f"{path.split('?', maxsplit=1)[0].rsplit('/', maxsplit=1)[-1]}: {error}")
        return []


def _name(item: Manifest) -> str:
    return str(item["metadata"]["name"])


def _created(item: Manifest) -> str:
    return str(item["metadata"].get("creationTimestamp", ""))


def _revision(replica_set: Manifest) -> int:
    return int(replica_set["metadata"].get("annotations", {}).get("deployment.kubernetes.io/revision", 0))


def _owner(item: Manifest) -> str:
    owners = item["metadata"].get("ownerReferences", [])
    return f"{owners[0]['kind']}/{owners[0]['name']}" if owners else ""


def _is_owned_by(item: Manifest, owner: Manifest) -> bool:
    return any(one["uid"] == owner["metadata"]["uid"] for one in item["metadata"].get("ownerReferences", []))


def _owned(items: Sequence[Manifest], owner: Manifest | None) -> list[Manifest]:
    return [item for item in items if owner and _is_owned_by(item, owner)]


def get(api: client.ApiClient, path: str) -> str:
    """The body that the API server answers to a GET of ``path``. Raises Unread with its own words."""
    try:
        answer = live.get(api, path)
    except live.LiveError as error:
        raise Unread(f"the cluster does not answer ({error.__cause__})") from None
    if answer.status != HTTPStatus.OK:
        raise Unread(f"HTTP {answer.status} {_message(answer.body)}".strip())
    return answer.body.decode(errors="replace")


def _message(body: bytes) -> str:
    """What the API server says about a refusal, in the Status that it answers with."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return ""
