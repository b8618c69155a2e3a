"""What a killed `pulumi up` leaves in the state, brought in order so that the next `up` can go on.

The engine writes each operation into the state as pending *before* it asks the provider for it, and
waits for that write (pulumi, pkg/backend/snapshot.go: doCreate, defaultServiceLoop). So whatever a
killed `up` may have made in the cluster is in that list, under the name that it has there: an
autoname is chosen before, too (pulumi-kubernetes, provider/pkg/provider/provider.go: Check). Nothing
else has to be searched for.

An object that exists is adopted rather than left to the next `up`. That would write it under another
field manager than the first one, and the next change of a field would be refused as a conflict of the
two; a newer provider refuses to create what exists; and an autonamed object would stay for ever.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

from kubernetes import client

from infra import live
from infra.config import read, stack_path
from infra.config.stack_file import PROJECT
from planner.spec import ClusterSpec

Action = Literal["adopted", "superseded", "repeated", "removed", "cleared"]
State = dict[str, Any]

PAUSE_SECONDS = 2
PAUSES = 300
"""Ten minutes: how long Pulumi itself waits for a deletion (pulumi-kubernetes, await.go: Deletion)."""

# The mark of a secret in a state (pulumi, sdk/go/common/resource/properties.go).
SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET_SIGNATURE = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105 - says that something is one


class RecoveryError(Exception):
    """The stack cannot be recovered now; nothing was changed. The message says why and what to do."""


@dataclass(frozen=True)
class KubernetesObject:
    """Where an object is; ``namespace`` is empty for an object of the whole cluster."""

    api_version: str
    kind: str
    namespace: str
    name: str

    @property
    def id(self) -> str:
        """The id that the provider gives it (pulumi-kubernetes, provider/pkg/provider/util.go: fqName)."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


LookUp = Callable[[KubernetesObject], State | None]
"""The live object as JSON, or ``None`` where the cluster has none. Raises where it cannot be asked."""


@dataclass(frozen=True)
class Outcome:
    """What became of one pending operation. ``operation`` is the engine's word: creating, updating, …"""

    operation: str
    urn: str
    action: Action
    reason: str

    def __str__(self) -> str:
        return f"{self.operation} {self.urn.split('::')[-1]}: {self.action}, {self.reason}"


def recover(
    stack: str, workdir: Path, report: Callable[[str], None], look_up: LookUp | None = None
) -> tuple[Outcome, ...]:
    """Release the lock of a dead `pulumi` and settle its pending operations; reports one line for each.

    ``workdir`` is the folder of Pulumi.yaml, ``look_up`` reads the cluster (default: the one that the
    stack file names). Does nothing, and returns an empty tuple, when nothing was interrupted.

    Raises:
        RecoveryError: the process that holds the lock may live, the cluster cannot be asked, an
            object stays in deletion, or `pulumi` failed.
    """
    _release_lock(stack, workdir, report)
    export = json.loads(_pulumi(workdir, "stack", "export", "--stack", stack))
    ask = waiting(look_up or cluster_look_up(stack), report)
    settled, outcomes = settle(export, ask)
    if outcomes:
        # Over a pipe, never a file: it holds what the live Secrets hold until the engine has encrypted it.
        _pulumi(workdir, "stack", "import", "--stack", stack, text=json.dumps(settled))
    for outcome in outcomes:
        report(str(outcome))
    return outcomes


# --- the lock -----------------------------------------------------------------------------------


def _release_lock(stack: str, workdir: Path, report: Callable[[str], None]) -> None:
    """Drop the locks of dead processes. Other backends than a folder guard themselves: see `pulumi cancel`."""
    folder = backend_folder(json.loads(_pulumi(workdir, "whoami", "--verbose", "--json"))["url"], workdir)
    if folder is None:
        return
    locks = lock_files(folder, stack)
    for lock in locks:
        require_dead(lock)
    for torn in torn_attributes(folder, stack):
        torn.unlink()
        report(f"{torn.name} was half written: removed, Pulumi could read nothing with it")
    if locks:
        _pulumi(workdir, "cancel", "--yes", "--stack", stack)
        report(f"lock of a `pulumi` that is gone: released ({len(locks)})")


def backend_folder(url: str, workdir: Path) -> Path | None:
    """The folder behind a ``file://`` backend, else ``None`` (pulumi, pkg/backend/diy/backend.go: massageBlobPath)."""
    if not url.startswith("file://"):
        return None
    return workdir / Path(url.removeprefix("file://").split("?")[0]).expanduser()


def lock_files(folder: Path, stack: str) -> list[Path]:
    """The locks of a stack, of the project layout and of the older one (pulumi, pkg/backend/diy/store.go)."""
    name, locks = stack.rsplit("/", maxsplit=1)[-1], folder / ".pulumi" / "locks"
    return sorted(
        file for parent in (locks / "organization" / PROJECT / name, locks / name) for file in parent.glob("*.json")
    )


def torn_attributes(folder: Path, stack: str) -> list[Path]:
    """The attribute files of a stack that a killed write left empty or cut off.

    A checkpoint is replaced in one step, but the file with its attributes before that is written in place
    (gocloud.dev, blob/fileblob/attrs.go: setAttrs). Pulumi then fails with "failed to load checkpoint: EOF",
    in every command. Without such a file it takes defaults, and the checkpoint is the one before the write.
    """
    name, root = stack.rsplit("/", maxsplit=1)[-1], folder / ".pulumi"
    patterns = (f"stacks/{PROJECT}/{name}.json*.attrs", f"**/{PROJECT}/{name}/*.attrs")
    return sorted(file for pattern in patterns for file in root.glob(pattern) if not _is_json(file))


def _is_json(file: Path) -> bool:
    try:
        json.loads(file.read_bytes())
    except ValueError:
        return False
    return True


def require_dead(lock: Path) -> None:
    """Raise RecoveryError unless the process that wrote ``lock`` has surely ended.

    The file holds pid, username, hostname and timestamp (pulumi, pkg/backend/diy/lock.go).
    """
    try:
        content = json.loads(lock.read_text())
        pid, host, since = int(content["pid"]), str(content["hostname"]), str(content["timestamp"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecoveryError(f"the lock {lock} cannot be read ({error}): delete it when no `pulumi` runs") from None
    if host != socket.gethostname():
        raise RecoveryError(
            f"the stack is locked by process {pid} on {host} since {since}, and this is {socket.gethostname()}: run "
            "`vllm-infra recover` there, or `pulumi cancel` when you know that it has ended"
        )
    if is_pulumi(pid):
        raise RecoveryError(
            f"`pulumi` still works on this stack (process {pid}, since {since}): wait until it has ended, or end it "
            f"with `kill -INT {pid}`, which lets it finish what it is doing"
        )


def is_pulumi(pid: int) -> bool:
    """Whether the process ``pid`` lives and is a `pulumi`; a number is given again after its process ended."""
    status = Path(f"/proc/{pid}/status")
    if Path("/proc/self/status").exists():
        with suppress(OSError):
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
            # A zombie has ended; only its parent has not noticed.
            return fields["Name"].startswith("pulumi") and not fields["State"].startswith(("Z", "X"))
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


# --- the state ----------------------------------------------------------------------------------


def settle(export: State, look_up: LookUp) -> tuple[State, tuple[Outcome, ...]]:
    """A copy of an exported deployment without pending operations, and what became of each.

    The shape is that of `pulumi stack export` (pulumi, sdk/go/common/apitype/core.go: UntypedDeployment,
    DeploymentV3, OperationV2). Secrets in it stay encrypted; what a live Secret adds is marked as one.
    """
    settled: State = json.loads(json.dumps(export))
    deployment = settled.get("deployment") or {}
    operations = deployment.pop("pending_operations", None) or []
    resources = deployment.setdefault("resources", [])
    return settled, tuple(_settle(operation, resources, look_up) for operation in operations)


def _settle(operation: State, resources: list[State], look_up: LookUp) -> Outcome:
    kind, resource = operation["type"], operation["resource"]
    place = kubernetes_object(resource)
    if place is None:
        action, reason = _plain("the next `up` does it again")
    elif kind == "creating":
        action, reason = _settle_creation(place, resource, resources, look_up)
    elif kind == "updating":
        action, reason = _settle_update(resource["urn"], resources)
    elif kind == "deleting":
        action, reason = _settle_deletion(place, resource["urn"], resources, look_up)
    else:
        action, reason = _plain("it changed nothing in the cluster")
    return Outcome(kind, resource["urn"], action, reason)


def _plain(reason: str) -> tuple[Action, str]:
    return "cleared", reason


def kubernetes_object(resource: State) -> KubernetesObject | None:
    """The object behind a resource of the state, or ``None`` for a component or a provider."""
    inputs = resource.get("inputs") or {}
    metadata = inputs.get("metadata")
    if not resource.get("custom") or not resource["type"].startswith("kubernetes:") or not isinstance(metadata, dict):
        return None
    name = metadata.get("name")
    if not isinstance(name, str) or not {"apiVersion", "kind"} <= inputs.keys():
        return None
    return KubernetesObject(inputs["apiVersion"], inputs["kind"], metadata.get("namespace") or "", name)


def _settle_creation(
    place: KubernetesObject, resource: State, resources: list[State], look_up: LookUp
) -> tuple[Action, str]:
    known = _entry(resources, resource["urn"])
    if known and known.get("id") == place.id and not known.get("pendingReplacement"):
        # A creation stays pending through later runs (pulumi, pkg/backend/snapshot.go: Snap).
        return _plain(f"{place} has been in the state since")
    live_object = look_up(place)
    manager = field_manager(live_object) if live_object else None
    if live_object is None:
        return _plain(f"{place} is not in the cluster")
    if manager is None:
        # Nor would one be adopted that had no field of its own to apply: nothing of it can be in conflict.
        return _plain(f"the {place} in the cluster has no field that Pulumi applied")
    adopted = adopted_entry(place, resource, live_object, manager)
    if known is None:
        resources.append(adopted)
    elif known.get("pendingReplacement"):
        resources[resources.index(known)] = adopted
    else:
        # Whatever depends on it had not been started, so nothing uses it and the next `up` may delete it.
        resources.append({**adopted, "delete": True})
        return "superseded", f"the next `up` deletes {place}: the state holds another one for it, {known.get('id')}"
    return "adopted", f"{place} exists"


def _settle_update(urn: str, resources: list[State]) -> tuple[Action, str]:
    """Let the next `up` write the object even where the program says again what it said before."""
    entry = _entry(resources, urn)
    if entry is None:
        return _plain("it is in the state no more")
    entry["initErrors"] = ["interrupted while updating"]
    return "repeated", "the next `up` writes it again"


def _settle_deletion(place: KubernetesObject, urn: str, resources: list[State], look_up: LookUp) -> tuple[Action, str]:
    entry = _entry(resources, urn)
    if entry is None or entry.get("id") != place.id or entry.get("pendingReplacement"):
        return _plain("the next `up` deletes what is left of it")
    if look_up(place) is not None:
        return _plain(f"{place} is still there")
    # "Deleted, not yet created again": what the engine writes when a deletion has ended. The entry
    # keeps its place, since others may refer to it, and the next `up` creates it or forgets it.
    entry["pendingReplacement"] = True
    return "removed", f"{place} is gone"


def _entry(resources: list[State], urn: str) -> State | None:
    """The resource of that URN that counts, not one that only waits for its deletion."""
    return next((entry for entry in resources if entry["urn"] == urn and not entry.get("delete")), None)


def field_manager(live_object: State) -> str | None:
    """Under which name the provider applied an object last; ``None`` where it never did.

    The engine does not record it before the create has ended (pulumi-kubernetes, provider/pkg/provider/
    provider.go: fieldManagerName), so the object is the only one that knows.
    """
    applied = [
        (str(entry.get("time", "")), str(entry["manager"]))
        for entry in live_object["metadata"].get("managedFields", [])
        if entry.get("operation") == "Apply" and str(entry.get("manager", "")).startswith("pulumi-")
    ]
    return max(applied)[1] if applied else None


def adopted_entry(place: KubernetesObject, resource: State, live_object: State, manager: str) -> State:
    """The state entry of an object that a create had made (pulumi-kubernetes, provider.go: checkpointObject).

    ``initErrors`` makes the next `up` write it once more and wait until it is ready, as after a create
    that failed to become ready.
    """
    inputs = resource["inputs"]
    outputs = {key: _guarded(key, value, inputs) for key, value in live_object.items()}
    return {
        **resource,
        "id": place.id,
        "outputs": {
            **outputs,
            "__inputs": inputs,
            "__initialApiVersion": place.api_version,
            "__fieldManager": manager,
        },
        "initErrors": ["interrupted while creating"],
    }


def _guarded(key: str, value: Any, inputs: State) -> Any:
    """``value`` as a secret where it may repeat one: a Secret's data, or a field whose input has one inside."""
    if (inputs["kind"] == "Secret" and key == "data") or any(_secrets(inputs.get(key))):
        return {SIGNATURE: SECRET_SIGNATURE, "plaintext": json.dumps(value)}
    return value


def _secrets(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        if value.get(SIGNATURE) == SECRET_SIGNATURE:
            yield value
        for inner in value.values():
            yield from _secrets(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _secrets(inner)


# --- the cluster --------------------------------------------------------------------------------


def waiting(look_up: LookUp, report: Callable[[str], None], pause: Callable[[float], None] = time.sleep) -> LookUp:
    """``look_up`` that waits for an object in deletion: neither "it exists" nor "it is gone" would stay true."""

    def settled(place: KubernetesObject) -> State | None:
        for attempt in range(PAUSES):
            live_object = look_up(place)
            if live_object is None or not live_object["metadata"].get("deletionTimestamp"):
                return live_object
            if attempt == 0:
                report(f"{place} is being deleted: waiting")
            pause(PAUSE_SECONDS)
        raise RecoveryError(
            f"{place} is still being deleted after {PAUSES * PAUSE_SECONDS} s: see its finalizers and what it waits "
            "for, then run this again"
        )

    return settled


def cluster_look_up(stack: str) -> LookUp:
    """A look-up in the cluster that the stack file names; it connects when it is first asked."""
    connections: list[tuple[ClusterSpec, client.ApiClient]] = []

    def look_up(place: KubernetesObject) -> State | None:
        if not connections:
            cluster = read(stack_path(stack.rsplit("/", maxsplit=1)[-1]))[0].cluster
            connections.append((cluster, _connect(cluster)))
        cluster, api = connections[0]
        return read_object(api, place, cluster.context)

    return look_up


def _connect(cluster: ClusterSpec) -> client.ApiClient:
    try:
        return live.connect(cluster)
    except live.LiveError as error:
        raise RecoveryError(f"{error.finding.message}: {error.finding.remedy}") from None


def read_object(api: client.ApiClient, place: KubernetesObject, context: str) -> State | None:
    """The object as the API server returns it, or ``None`` where object, namespace or kind do not exist.

    Raises:
        RecoveryError: unreachable or refused, which is never taken for "does not exist".
    """
    root = f"/apis/{place.api_version}" if "/" in place.api_version else f"/api/{place.api_version}"
    kinds = _get(api, root, context)
    plural = next((item["name"] for item in (kinds or {}).get("resources", []) if _is_kind(item, place.kind)), None)
    if plural is None:
        return None
    scope = f"/namespaces/{place.namespace}" if place.namespace else ""
    return _get(api, f"{root}{scope}/{plural}/{place.name}", context)


def _is_kind(item: State, kind: str) -> bool:
    return bool(item["kind"] == kind and "/" not in item["name"])


def _get(api: client.ApiClient, path: str, context: str) -> State | None:
    try:
        answer = live.get(api, path)
    except live.LiveError as error:
        raise RecoveryError(
            f"the cluster of context {context!r} cannot be asked ({error.__cause__}): nothing was changed"
        ) from None
    if answer.status == HTTPStatus.NOT_FOUND:
        return None
    if answer.status != HTTPStatus.OK:
        raise RecoveryError(
            f"the cluster of context {context!r} answers {answer.status} to a read of {path}: nothing was changed"
        )
    return dict(json.loads(answer.body))


def _pulumi(workdir: Path, *arguments: str, text: str | None = None) -> str:
    """Run `pulumi`, the one that the user has, and return what it prints."""
    command = ["pulumi", *arguments, "--non-interactive"]
    try:
        answer = subprocess.run(command, cwd=workdir, input=text, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RecoveryError('`pulumi` is not on PATH: install it, or run `eval "$(python -m sim env)"`') from None
    if answer.returncode != 0:
        reason = answer.stderr.strip() or answer.stdout.strip()
        raise RecoveryError(f"`pulumi {' '.join(arguments)}` failed: {reason}")
    return answer.stdout
