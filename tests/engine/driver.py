"""Drives the real engine on a stack of its own: project folder, backend, namespace and GPU node for each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ruamel.yaml import YAML

from infra.config.stack_file import load_yaml
from sim.cluster import Cluster
from tests.stack_files import values

ROOT = Path(__file__).parents[2]
CONTEXT = "demo"
NODE_LABEL = "pulumi-vllm.test/node"
PATIENCE_SECONDS = 60

Object = dict[str, Any]

KEPT = ("Namespace", "PersistentVolume", "PersistentVolumeClaim")
ROLES: Mapping[str, int] = {
    "ConfigMap": 1,
    "DaemonSet": 1,
    "Deployment": 1,
    "Job": 1,
    "NetworkPolicy": 3,
    "PersistentVolumeClaim": 1,
    "PrometheusRule": 1,
    "Service": 1,
    "ServiceAccount": 1,
    "ServiceMonitor": 1,
}
"""How many objects of each kind a stack with one service has in its namespace, Secrets aside."""


@dataclass(frozen=True)
class Event:
    """One step of the engine: ``kind`` is ``start`` or ``end``, ``type`` and ``name`` are the URN's."""

    kind: str
    operation: str
    type: str
    name: str


@dataclass(frozen=True)
class Answer:
    """What a run of `pulumi` ended with, printed and logged."""

    code: int
    output: str
    events: tuple[Event, ...]

    @property
    def changes(self) -> tuple[Event, ...]:
        """The steps that changed something in the cluster, in the order in which they happened."""
        own = "pulumi:pulumi:Stack"
        return tuple(event for event in self.events if event.operation != "same" and event.type != own)

    def position(self, kind: str, resource_type: str, last: bool = False) -> int:
        """Where the first (or last) step of that kind of a resource of that type is among the changes."""
        found = [
            index
            for index, event in enumerate(self.changes)
            if event.kind == kind and event.type.endswith(f":{resource_type}")
        ]
        assert found, f"nothing happened to a {resource_type}: {self.changes}"
        return found[-1] if last else found[0]


@dataclass
class Stack:
    """A stack of the program under test in the simulated cluster ``cluster``."""

    cluster: Cluster
    folder: Path
    name: str
    variables: dict[str, str] = field(default_factory=dict)
    """Variables of the environment that differ from the cluster's."""
    shipped: str = "demo"
    """The stack whose file ours begins with."""

    # --- the stack file

    @property
    def file(self) -> Path:
        """The stack file."""
        return self.folder / "stacks" / f"Pulumi.{self.name}.yaml"

    @property
    def node(self) -> str:
        """The GPU node that only this stack's pool selects."""
        return f"gpu-{self.name}"

    def write(self, changes: Mapping[str, Any] | None = None) -> None:
        """Write the stack file: the shipped demo on our node and namespace with ``changes`` (dotted path → value)."""
        content = load_yaml(self.file if self.file.exists() else ROOT / "stacks" / f"Pulumi.{self.shipped}.yaml")
        secrets = {key: value for key, value in content["config"].items() if set(value) == {"secure"}}
        sections = {f"vllm:{key}": value for key, value in self.sections(changes).items()}
        YAML().dump({**content, "config": {**sections, **secrets}}, self.file)

    def sections(self, changes: Mapping[str, Any] | None = None) -> Object:
        """The sections that `write` writes."""
        return values(self.shipped, {"cluster.namespace": self.name, **self.place(), **(changes or {})})

    def place(self) -> Object:
        """What puts the stack on a node of its own."""
        return {"nodes.lab.selector": {NODE_LABEL: self.name}}

    def set_secret(self, key: str, value: str) -> None:
        """`pulumi config set --secret`, the way that the guide says."""
        answer = self.run("config", "set", "--secret", f"vllm:{key}", value)
        assert answer.code == 0, answer.output

    # --- the engine

    def environment(self) -> dict[str, str]:
        """The cluster's environment, with a backend of our own."""
        backend = self.folder / "backend"
        return {
            **os.environ,
            **self.cluster.environment(),
            "PULUMI_BACKEND_URL": backend.as_uri(),
            # Makes --event-log known (pulumi, pkg/cmd/pulumi/operations/up.go).
            "PULUMI_DEBUG_COMMANDS": "true",
            **self.variables,
        }

    def run(self, *arguments: str) -> Answer:
        """Run `pulumi`; what it prints is kept in the folder `logs`."""
        command = ["pulumi", *arguments, "--stack", self.name, "--non-interactive", "--color=never"]
        finished = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.next_log("txt").write_text(finished.stdout)
        return Answer(finished.returncode, finished.stdout, ())

    def logged(self, *arguments: str) -> Answer:
        """Run an operation with an event log."""
        log = self.next_log("json")
        answer = self.run(*arguments, f"--event-log={log}")
        return Answer(answer.code, answer.output, tuple(read_events(log)))

    def up(self, *, fails: bool = False) -> Answer:
        """`pulumi up`; unless ``fails``, it must succeed."""
        answer = self.logged("up", "--yes", "--skip-preview")
        assert fails == (answer.code != 0), answer.output
        return answer

    def preview(self, *arguments: str, fails: bool = False) -> Answer:
        """`pulumi preview`; unless ``fails``, it must succeed."""
        answer = self.logged("preview", *arguments)
        assert fails == (answer.code != 0), answer.output
        return answer

    def destroy(self) -> Answer:
        """`pulumi destroy`, plain."""
        answer = self.logged("destroy", "--yes", "--skip-preview")
        assert answer.code == 0, answer.output
        return answer

    def killed_up(self, after: int, *, plugins_too: bool) -> int:
        """Start `pulumi up` and send SIGKILL to its process group once ``after`` steps are in the event log.

        The engine puts its plugins into process groups of their own. ``plugins_too`` ends them in the
        same moment, as a power cut does; otherwise they may finish the request that they are at.

        Returns:
            The exit code; -9 when the signal came before the end.
        """
        log = self.next_log("json")
        command = ["pulumi", "up", "--yes", "--skip-preview", "--stack", self.name, "--non-interactive"]
        with self.next_log("txt").open("w") as output:
            process = subprocess.Popen(
                [*command, f"--event-log={log}"],
                cwd=self.folder,
                env=self.environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                while process.poll() is None and sum(1 for _ in read_events(log)) < after:
                    time.sleep(0.002)
            finally:
                plugins = members(process.pid)
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                if plugins_too:
                    end(plugins)
            code = process.wait()
        self._orphans += plugins
        return code

    def end_orphans(self) -> None:
        """End the plugins that a killed `pulumi` left behind."""
        end(self._orphans)

    def export(self) -> Object:
        """`pulumi stack export`."""
        return dict(json.loads(self.run("stack", "export").output)["deployment"])

    def next_log(self, suffix: str) -> Path:
        """A new file in the folder `logs`."""
        folder = self.folder / "logs"
        return folder / f"{len(list(folder.iterdir())):03}.{suffix}"

    # --- the cluster

    def get(self, kind: str, name: str) -> Object:
        """One object; it must be there."""
        return dict(json.loads(self.cluster.kubectl("get", kind, name, "-n", self.name, "-o", "json")))

    def find(self, kind: str, selector: str = "") -> list[Object]:
        """The objects of a kind in our namespace; of a kind without namespaces, all of them."""
        answer = self.cluster.kubectl("get", kind, "-n", self.name, f"--selector={selector}", "-o", "json")
        return list(json.loads(answer)["items"])

    def server_pod(self) -> Object:
        """The one pod of the server."""
        pods = self.find("pod", "app.kubernetes.io/component=server")
        assert len(pods) == 1, f"one replica, one pod: {[pod['metadata']['name'] for pod in pods]}"
        return pods[0]

    def give_gpus(self, count: int) -> None:
        """Make our node one with ``count`` GPUs."""
        patch = json.dumps({"status": {part: {"nvidia.com/gpu": str(count)} for part in ("capacity", "allocatable")}})
        self.cluster.kubectl("patch", "node", self.node, "--subresource=status", "--type=merge", "--patch", patch)

    def secrets(self, key: str) -> list[Object]:
        """The Secrets that hold ``key``."""
        return [secret for secret in self.find("secret") if key in secret.get("data", {})]

    def kept(self) -> dict[str, str]:
        """The UIDs of what outlives the stack, as far as it is there: namespace, volume, claim."""
        items = json.loads(self.cluster.kubectl("get", ",".join(KEPT), "-A", "-o", "json"))["items"]
        return {
            f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["uid"] for one in items if self._is_ours(one)
        }

    def _is_ours(self, thing: Object) -> bool:
        if thing["kind"] == "Namespace":
            return bool(thing["metadata"]["name"] == self.name)
        if thing["kind"] == "PersistentVolume":
            return _claim_namespace(thing) == self.name
        if thing["kind"] == "StorageClass":
            # Another stack's name may begin with ours.
            return bool(thing["metadata"]["name"] == f"{self.name}-qwen-cache")
        return bool(thing["metadata"]["namespace"] == self.name)

    def versions(self) -> dict[str, str]:
        """Kind/name → resourceVersion of everything that is ours or could be, in the namespace and outside."""
        kinds = ",".join([*ROLES, "Secret", "Pod"])
        answer = self.cluster.kubectl("get", kinds, "-n", self.name, "-o", "json")
        outside = self.cluster.kubectl("get", "namespace,pv,storageclass", "-o", "json")
        objects = [
            *json.loads(answer)["items"],
            *(one for one in json.loads(outside)["items"] if self._is_ours(one)),
        ]
        versions = {f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["resourceVersion"] for one in objects}
        # Comes by itself, some moment after its namespace.
        versions.pop("ConfigMap/kube-root-ca.crt", None)
        return versions

    def wait(self, what: str, condition: str) -> None:
        """`kubectl wait` in our namespace."""
        patience = f"--timeout={PATIENCE_SECONDS}s"
        self.cluster.kubectl("wait", what, f"--for={condition}", patience, "-n", self.name)

    @contextmanager
    def watched_pods(self, selector: str) -> Iterator[Callable[[], list[tuple[str, str]]]]:
        """Watch pods; the function that is handed out returns (ADDED or DELETED, pod) so far, in order."""
        log = self.next_log("watch")
        form = 'jsonpath={.type} {.object.metadata.name}{"\\n"}'
        command = [
            "kubectl",
            "get",
            "pods",
            "-n",
            self.name,
            "--selector",
            selector,
            "--watch",
            "--output-watch-events",
        ]
        with log.open("w") as output:
            process = subprocess.Popen([*command, "-o", form], env=self.environment(), stdout=output)

        def seen() -> list[tuple[str, str]]:
            pairs = (line.split() for line in log.read_text().splitlines())
            return [(kind, pod) for kind, pod in pairs if kind in {"ADDED", "DELETED"}]

        try:
            until(seen, "the watch begins with the pods that there are")
            yield seen
        finally:
            process.terminate()
            process.wait()

    def __post_init__(self) -> None:
        self._orphans: list[int] = []

    def prepare(self) -> None:
        """Make folder, backend, stack and node."""
        for name in ("stacks", "backend", "logs"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "Pulumi.yaml").write_text((ROOT / "Pulumi.yaml").read_text())
        (self.folder / "infra").symlink_to(ROOT / "infra")
        # For a language host that reads runtime.options.virtualenv.
        (self.folder / ".venv").symlink_to(sys.prefix)
        self.write()
        self.make_node()
        answer = self.run("stack", "init")
        assert answer.code == 0, answer.output

    def make_node(self) -> None:
        """Make the node that `place` selects."""
        self.cluster.apply(gpu_node(self.node, self.name))
        self.cluster.kubectl("wait", f"node/{self.node}", "--for=condition=Ready", f"--timeout={PATIENCE_SECONDS}s")

    def clear(self) -> None:
        """Remove from the cluster whatever is left of the stack."""
        self.end_orphans()
        for volume in self.find("pv"):
            if _claim_namespace(volume) == self.name:
                self.cluster.kubectl("delete", "pv", volume["metadata"]["name"], "--wait=false")
        for thing in (f"namespace/{self.name}", f"node/{self.node}"):
            self.cluster.kubectl("delete", thing, "--ignore-not-found", "--wait=false")


MadeStack = TypeVar("MadeStack", bound=Stack)


@contextmanager
def prepared_stacks(make: Callable[[str], MadeStack]) -> Iterator[Callable[[str], MadeStack]]:
    """A function that makes and prepares a stack by its name; what it made is cleared when the block ends."""
    made: list[MadeStack] = []

    def new(name: str) -> MadeStack:
        stack = make(name)
        made.append(stack)
        stack.prepare()
        return stack

    yield new
    for stack in made:
        stack.clear()


def _claim_namespace(volume: Object) -> str | None:
    namespace: str | None = volume["spec"].get("claimRef", {}).get("namespace")
    return namespace


def gpu_node(name: str, stack: str) -> Object:
    """The lab's node under another name, found by ``NODE_LABEL`` only."""
    node = dict(YAML(typ="safe", pure=True).load(ROOT / "sim" / "nodes" / "lab.yaml"))
    labels = {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "kubernetes.io/hostname": name}
    node["metadata"] = {**node["metadata"], "name": name, "labels": {**labels, NODE_LABEL: stack}}
    addresses = [{"address": "127.0.0.1", "type": "InternalIP"}, {"address": name, "type": "Hostname"}]
    node["status"] = {**node["status"], "addresses": addresses}
    return node


@contextmanager
def acting_as(identity: str, stack: Stack, namespace: str = "pulumi-previews") -> Iterator[Path]:
    """Inside, the stack's engine and look-up are that ServiceAccount; its kubeconfig."""
    token = stack.cluster.kubectl("create", "token", identity, "--namespace", namespace).strip()
    own = dict(YAML(typ="safe", pure=True).load(stack.cluster.kubeconfig))
    content = {
        **own,
        "users": [{"name": identity, "user": {"token": token}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": own["clusters"][0]["name"], "user": identity}}],
        "current-context": CONTEXT,
    }
    file = stack.folder / "kubeconfig-of-another"
    file.write_text(json.dumps(content))
    stack.variables["KUBECONFIG"] = str(file)
    try:
        yield file
    finally:
        del stack.variables["KUBECONFIG"]


def read_events(log: Path) -> Iterator[Event]:
    """The steps in an event log, which may still be written (pulumi, sdk/go/common/apitype/events.go)."""
    kinds = {"resourcePreEvent": "start", "resOutputsEvent": "end", "resOpFailedEvent": "failed"}
    for line in log.read_text().splitlines() if log.exists() else ():
        try:
            event = json.loads(line)
        except ValueError:
            return
        for key, kind in kinds.items():
            if key in event:
                metadata = event[key]["metadata"]
                resource_type, name = metadata["urn"].split("::")[-2:]
                yield Event(kind, metadata["op"], resource_type.split("$")[-1], name)


def members(session: int) -> list[int]:
    """The processes of a session, its leader aside."""
    folders = [folder for folder in Path("/proc").iterdir() if folder.name.isdigit() and int(folder.name) != session]
    return [int(folder.name) for folder in folders if _session(folder) == session]


def _session(folder: Path) -> int | None:
    try:
        # proc(5): after the name in parentheses come state, parent, process group, session.
        return int((folder / "stat").read_text().rpartition(")")[2].split()[3])
    except OSError:
        return None


def end(processes: list[int]) -> None:
    """Send SIGKILL to processes that may have ended by themselves."""
    while processes:
        with suppress(ProcessLookupError):
            os.kill(processes.pop(), signal.SIGKILL)


def until(condition: Callable[[], object], reason: str) -> None:
    """Wait until ``condition`` holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS} s: {reason}"
        time.sleep(0.1)
