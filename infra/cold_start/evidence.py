"""Everything that one start left behind, read at once: events expire after an hour, a log goes with its container.

The seconds of an image pull exist in an event and nowhere else. So what is read can be kept in a folder, with every
secret taken out, and measured from there again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from components import naming
from infra.diagnosis import Ask, Unread, masked
from infra.redaction import names_a_secret

CONTAINER = "vllm"
LOG_BYTES_READ = 5_000_000
"""From the beginning, where the start is; a server that has run for days logs far more than this."""
_PAGES = 20
_LIST_LIMIT = 500

Manifest = Mapping[str, Any]


class EvidenceError(Exception):
    """A folder that cannot be read as saved evidence, or must not be written to."""


@dataclass(frozen=True)
class Evidence:
    """What is known of the newest start of one replica. Manifests are as the API server returns them.

    ``pod`` is None when there is none; ``events`` are those of the pod, of the pods before it, of the pre-pull and of
    the seed Job. ``previous_log`` is of the container before the last restart, ``seed_log`` of the download,
    ``metrics`` the server's /metrics page, ``compile_cache`` the list of compile caches (`cache_keys.COMMAND`). A text
    is None when it was not read; ``unread`` says why.
    """

    service: str
    replica: int
    read_at: str
    pod: Manifest | None = None
    events: tuple[Manifest, ...] = ()
    log: str | None = None
    previous_log: str | None = None
    seed_log: str | None = None
    metrics: str | None = None
    compile_cache: str | None = None
    unread: tuple[str, ...] = field(default=())


TEXTS: Mapping[str, str] = {
    "log": "log.txt",
    "previous_log": "previous-log.txt",
    "seed_log": "seed-log.txt",
    "metrics": "metrics.txt",
    "compile_cache": "compile-cache.txt",
}
"""Names of the text files in a folder of saved evidence. `kubectl logs --timestamps` writes such logs as well."""


def gather(
    ask: Ask, namespace: str, service: str, replica: int, list_caches: Callable[[str], str] | None = None
) -> Evidence:
    """Read the pod of the newest ReplicaSet of a replica with its events, logs and metrics. Never raises.

    ``list_caches`` answers what the compile caches are that the server's container in a pod sees.
    """
    unread: list[str] = []
    core, apps = f"/api/v1/namespaces/{namespace}", f"/apis/apps/v1/namespaces/{namespace}"
    select = {"labelSelector": f"{naming.INSTANCE_LABEL}={service}"}
    replica_sets = _items(ask, f"{apps}/replicasets", select, unread)
    pods = _items(ask, f"{core}/pods", select, unread)
    events = _items(ask, f"{core}/events", {}, unread)
    pod = newest_pod(pods, replica_sets, naming.server_name(service, replica), unread)
    seed = max((item for item in pods if name_of(item).startswith(_seed(service, replica))), key=_created, default=None)

    def read(path: str, what: str) -> str | None:
        try:
            return masked(ask(path))
        except Unread as error:
            unread.append(f"{what}: {error}")
            return None

    def caches(item: Manifest) -> str | None:
        if list_caches is None:
            return None
        try:
            return list_caches(name_of(item))
        except Unread as error:
            unread.append(f"compile caches: {error}")
            return None

    def log(item: Manifest | None, container: str, previous: bool, what: str) -> str | None:
        if item is None:
            return None
        query = {"container": container, "timestamps": "true", "previous": str(previous).lower()}
        return read(f"{core}/pods/{name_of(item)}/log?{urlencode({**query, 'limitBytes': LOG_BYTES_READ})}", what)

    return Evidence(
        service=service,
        replica=replica,
        read_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        pod=without_secrets(pod) if pod else None,
        events=tuple(without_secrets(item) for item in events if is_concerned(item, service, replica)),
        log=log(pod, CONTAINER, False, "log"),
        previous_log=log(pod, CONTAINER, True, "log before the restart") if pod and restarts_of(pod) else None,
        seed_log=log(seed, _first_container(seed), False, "log of the seed Job"),
        metrics=read(_metrics_path(core, pod), "metrics") if pod and is_ready(pod) else None,
        compile_cache=caches(pod) if pod and is_ready(pod) else None,
        unread=tuple(unread),
    )


def newest_pod(
    pods: Sequence[Manifest], replica_sets: Sequence[Manifest], deployment: str, unread: list[str]
) -> Manifest | None:
    """The pod of the newest ReplicaSet: right after a change the Deployment's log is still the old pod's."""
    owned = [item for item in replica_sets if _is_owned_by(item, "Deployment", deployment)]
    newest = max(owned, key=_revision, default=None)
    if newest is None:
        unread.append(f"pod: no ReplicaSet of the Deployment {deployment}")
        return None
    alive = [
        item
        for item in pods
        if _is_owned_by(item, "ReplicaSet", name_of(newest)) and "deletionTimestamp" not in item["metadata"]
    ]
    if not alive:
        unread.append(f"pod: the newest ReplicaSet {name_of(newest)} has none yet")
    return max(alive, key=_created, default=None)


def is_concerned(event: Manifest, service: str, replica: int) -> bool:
    """Whether an event is about this replica: its pods, its Deployment, the pre-pull or its seed Job."""
    name = str(event["involvedObject"].get("name", ""))
    server = naming.server_name(service, replica)
    beginnings = (f"{server}-", f"{naming.pre_pull_name(service)}-", _seed(service, replica))
    return name == server or name.startswith(beginnings)


def save(evidence: Evidence, folder: Path) -> None:
    """Write everything into ``folder``, which must be new or empty: files of two starts must not be mixed.

    Raises:
        EvidenceError: the folder holds something, or cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise EvidenceError(f"{folder} is not empty; save each start in a folder of its own")
        about = {key: getattr(evidence, key) for key in ("service", "replica", "read_at", "unread")}
        _write(folder / "about.json", json.dumps(about, indent=2))
        if evidence.pod is not None:
            _write(folder / "pod.json", json.dumps(evidence.pod, indent=2))
        _write(folder / "events.json", json.dumps({"items": list(evidence.events)}, indent=2))
        for name, file in TEXTS.items():
            if (text := getattr(evidence, name)) is not None:
                _write(folder / file, text)
    except OSError as error:
        raise EvidenceError(f"{folder} cannot be written to: {error.strerror}") from None


def load(folder: Path, service: str, replica: int) -> Evidence:
    """What `--save` wrote, or what a person saved with kubectl under the same names; any file may be missing.

    Raises:
        EvidenceError: no such folder, nothing of a start in it, another service's, or a file that is no JSON.
    """
    if not folder.is_dir():
        raise EvidenceError(f"{folder} is no folder")
    texts = {name: _text(folder / file) for name, file in TEXTS.items()}
    pod, events, about = (_json(folder / f"{name}.json") for name in ("pod", "events", "about"))
    if pod is None and events is None and not any(texts.values()):
        raise EvidenceError(f"{folder} holds none of pod.json, events.json, {', '.join(TEXTS.values())}")
    said = (about or {}).get("service", service), (about or {}).get("replica", replica)
    if said != (service, replica):
        raise EvidenceError(f"{folder} is of {said[0]}, replica {said[1]}, not of {service}, replica {replica}")
    pods = [pod] if pod and "items" not in pod else list((pod or {}).get("items", []))
    chosen = max((item for item in pods if "deletionTimestamp" not in item["metadata"]), key=_created, default=None)
    gone = [f"{file}: not in the folder" for file, there in (("pod.json", pod), ("events.json", events)) if not there]
    return Evidence(
        service=service,
        replica=replica,
        read_at=str((about or {}).get("read_at", "")),
        pod=without_secrets(chosen) if chosen else None,
        events=tuple(
            without_secrets(item) for item in (events or {}).get("items", []) if is_concerned(item, service, replica)
        ),
        unread=(*(about or {}).get("unread", ()), *gone),
        **{name: masked(text) if text is not None else None for name, text in texts.items()},
    )


def without_secrets(document: Any) -> Any:
    """A manifest with every secret in its texts hidden, also the value of a variable that is named like one."""
    if isinstance(document, str):
        return masked(document)
    if isinstance(document, list | tuple):
        return [without_secrets(item) for item in document]
    if not isinstance(document, Mapping):
        return document
    hidden = {key: without_secrets(value) for key, value in document.items() if key != "managedFields"}
    if isinstance(document.get("value"), str) and names_a_secret(str(document.get("name", ""))):
        hidden["value"] = "***"
    return hidden


def name_of(item: Manifest) -> str:
    return str(item["metadata"]["name"])


def container_status(pod: Manifest) -> Manifest:
    """The status of the server's container; empty while there is none."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    return next((status for status in statuses if status["name"] == CONTAINER), {})


def restarts_of(pod: Manifest) -> int:
    return int(container_status(pod).get("restartCount", 0))


def condition(pod: Manifest, kind: str) -> Manifest:
    """The condition of this type when it holds; empty otherwise."""
    conditions = pod.get("status", {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == kind and one["status"] == "True"), {})


def is_ready(pod: Manifest) -> bool:
    return bool(condition(pod, "Ready"))


def _seed(service: str, replica: int) -> str:
    return f"{service}-seed-{replica}-"


def _metrics_path(core: str, pod: Manifest) -> str:
    containers = pod.get("spec", {}).get("containers") or [{}]
    server = next((one for one in containers if one.get("name") == CONTAINER), containers[0])
    port = next((one["containerPort"] for one in server.get("ports") or []), 8000)
    return f"{core}/pods/{name_of(pod)}:{port}/proxy/metrics"


def _items(ask: Callable[[str], str], path: str, query: Mapping[str, str], unread: list[str]) -> list[Manifest]:
    """Every object of a list, page by page; those that came before a page that cannot be read."""
    items: list[Manifest] = []
    more: Mapping[str, Any] = {}
    for _ in range(_PAGES):
        try:
            page = json.loads(ask(f"{path}?{urlencode({**query, 'limit': _LIST_LIMIT, **more})}"))
        except Unread as error:
            unread.append(f"{path.rsplit('/', maxsplit=1)[-1]}: {error}")
            break
        items += page["items"]
        following = (page.get("metadata") or {}).get("continue")
        if not following:
            break
        more = {"continue": following}
    return items


def _is_owned_by(item: Manifest, kind: str, name: str) -> bool:
    owners = item["metadata"].get("ownerReferences") or []
    return any(owner["kind"] == kind and owner["name"] == name for owner in owners)


def _created(item: Manifest) -> str:
    return str(item["metadata"].get("creationTimestamp", ""))


def _revision(replica_set: Manifest) -> int:
    return int((replica_set["metadata"].get("annotations") or {}).get("deployment.kubernetes.io/revision", 0))


def _first_container(pod: Manifest | None) -> str:
    return str(pod["spec"]["containers"][0]["name"]) if pod else ""


def _write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EvidenceError(f"{file} cannot be read: {error.strerror}") from None


def _json(file: Path) -> dict[str, Any] | None:
    text = _text(file)
    if text is None:
        return None
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise EvidenceError(f"{file} is no JSON of one object: write it with `kubectl get -o json`")
    return document
