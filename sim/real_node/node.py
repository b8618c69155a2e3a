"""The real node's life: up, down, and what is between."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sim import processes, tools
from sim.real_node import fixed_places, kernel, requirements, settings
from sim.real_node.content import Content
from sim.real_node.requirements import NodeError

if TYPE_CHECKING:
    from sim.cluster import Cluster

DAEMONS = ("containerd", "kubelet", "kube-proxy")
_OWNER = settings.RUNTIME / "owner.json"
_START = 10.0
"""Seconds until a daemon's process is there; seen on two busy cores: 1."""
_PATIENCE = 120.0
"""Seconds until a daemon does its work; seen on two busy cores: 20."""


class RealNode:
    """The node ``real-node`` of ``cluster``, on this machine.

    Executed for real: images (from local archives, :meth:`import_image`), containers with their limits and
    users, probes, volumes, logs, exec, port-forward, Services (from the host and from pods), NodePorts.
    Not there: a cluster DNS (a pod has the machine's resolv.conf, so a Service has an address and no
    name), the API server from inside a pod, NetworkPolicy (nothing enforces it), GPUs.

    Images outlive the node, in the cache folder; everything else ends with :meth:`down`.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._folders = settings.Folders(
            cluster.state / "node", tools.cache_folder().parent / "real-node" / "containerd"
        )
        self._content = Content(self._folders)

    def up(self) -> bool:
        """Start the node unless it runs, and wait until it is Ready. Builds missing tools.

        Returns:
            Whether anything had to be started.

        Raises:
            NodeError: this machine cannot run it, another cluster's runs, or it did not become Ready; the
                message holds the last lines of what failed.
            ToolError: a tool is missing and cannot be built.
        """
        self._require_machine()
        executables = tools.ensure(tool.name for tool in tools.NODE_TOOLS)
        with _one_at_a_time():
            self._take()
            started = not self.is_running()
            before = self._heartbeat() if started else ""
            if started:
                self._make_files(executables)
                ended = "containerd" not in self.processes() and not kernel.processes(settings.PODS_CGROUP)
                self._start_containerd()
                if ended:
                    self._forget_containers()
                self._content.import_pause(executables["pause"])
                self._start_agents()
            self._wait_until_ready(before)
        return started

    def down(self) -> bool:
        """Stop the node and remove all it made, however it ended; images stay. Pods are not asked to end.

        Returns:
            Whether there was anything to stop.
        """
        if not self._is_ours():
            return False
        self._require_machine()
        with _one_at_a_time():
            for name, pid in self.processes().items():
                if name != "containerd":
                    kernel.end(pid)
            if "containerd" in self.processes():
                kernel.kill(settings.PODS_CGROUP)
                self._content.remove_containers()
            _clean(self._folders.state)
            self._forget_object()
            shutil.rmtree(self._folders.state, ignore_errors=True)
        return True

    def kill(self, containers: bool = True) -> None:
        """What a power failure does: nothing is asked to end, and what a reboot clears is gone.

        ``containers=False`` kills the daemons only; containers go on, as when containerd and kubelet crash.

        Raises:
            NodeError: the node is not this cluster's.
        """
        self._require_ours()
        with _one_at_a_time():
            if containers:
                _clean(self._folders.state)
                self._mark_owner()
            else:
                for pid in self.processes().values():
                    kernel.end(pid)

    def start(self) -> None:
        """After :meth:`kill`: start the daemons again, and wait until the node is Ready.

        Raises:
            NodeError: the node is not this cluster's, or did not become Ready.
        """
        self._require_ours()
        with _one_at_a_time():
            before = self._heartbeat()
            kernel.make(self._services())
            self._start_containerd()
            self._start_agents()
            self._wait_until_ready(before)

    def is_running(self) -> bool:
        """Whether the node belongs to this cluster, and every daemon runs."""
        return self._is_ours() and set(self.processes()) == set(DAEMONS)

    def processes(self) -> dict[str, int]:
        """The daemons that run: name → process id."""
        return {name: pid for name, pid in processes.running(self._folders.bin).items() if name in DAEMONS}

    def import_image(self, archive: Path, reference: str) -> bool:
        """Make the image in ``archive`` (:mod:`sim.images`) known as ``reference``, unless it is already.

        Returns:
            Whether there was anything to do; for another name of an image that is there, it is little.

        Raises:
            NodeError: containerd does not run, or refuses the archive.
        """
        return self._content.import_image(archive, reference)

    def ctr(self, *arguments: str) -> str:
        """Run containerd's own client in the namespace that kubelet uses, and return what it prints."""
        return self._content.ctr(*arguments)

    # --- whose node it is

    def _require_machine(self) -> None:
        problem = requirements.problem(sys.platform, os.geteuid())
        if problem:
            raise NodeError(problem)

    def _is_ours(self) -> bool:
        return _owner() == str(self._cluster.state)

    def _require_ours(self) -> None:
        if not self._is_ours():
            raise NodeError(f"the cluster {self._cluster.name} has no real node: `up` makes one")

    def _take(self) -> None:
        """Make the node this cluster's, and the kernel ready for it."""
        owner = _owner()
        if owner is not None and not self._is_ours():
            if kernel.processes():
                raise NodeError(
                    f"the real node of this machine belongs to the cluster with the state {owner}: "
                    f"`python -m sim node down --name {Path(owner).name}` stops it"
                )
            _clean(Path(owner) / "node")
        if kernel.foreign_kube_proxy() or fixed_places.foreign_kubelet():
            raise NodeError(
                "another node of Kubernetes runs on this machine (its kubelet answers, or its kube-proxy has rules in "
                "nftables): two would disturb each other. Stop it, or use its cluster"
            )
        services = self._services()
        kernel.require_free_addresses(services)
        self._mark_owner()
        kernel.make(services)

    def _mark_owner(self) -> None:
        settings.RUNTIME.mkdir(parents=True, exist_ok=True, mode=0o711)
        _OWNER.write_text(json.dumps({"state": str(self._cluster.state)}))

    def _services(self) -> str:
        return self._cluster.kubectl("get", "servicecidr", "kubernetes", "--output=jsonpath={.spec.cidrs[0]}")

    # --- the daemons

    def _make_files(self, executables: dict[str, Path]) -> None:
        folders = self._folders
        for folder in (folders.state, folders.bin, folders.logs, folders.network, folders.content):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, executable in executables.items():
            link = folders.bin / name
            link.unlink(missing_ok=True)
            link.symlink_to(executable)
        self._write(
            "kubeconfig",
            self._cluster.kubectl(
                "config", "view", "--raw", "--flatten", "--minify", f"--context={self._cluster.context}"
            ),
        )
        self._write("containerd.toml", settings.containerd(folders))
        self._write("cni/network.conflist", settings.network())
        self._write("kubelet.yaml", settings.kubelet(folders, self._cluster.certificates / "ca.crt"))
        self._write("kube-proxy.yaml", settings.kube_proxy(folders))

    def _write(self, name: str, content: str) -> None:
        file = self._folders.state / name
        file.write_text(content)
        file.chmod(0o600)

    def _start_containerd(self) -> None:
        if "containerd" not in self.processes():
            self._start("containerd", f"--config={self._folders.state / 'containerd.toml'}")
        self._wait_for("containerd", self._content.answers)

    def _start_agents(self) -> None:
        state, running = self._folders.state, self.processes()
        labels = ",".join(f"{key}={value}" for key, value in settings.LABELS.items())
        if "kubelet" not in running:
            kernel.bind(state / "kubelet", settings.KUBELET)
            self._start(
                "kubelet",
                f"--config={state / 'kubelet.yaml'}",
                f"--kubeconfig={self._folders.kubeconfig}",
                f"--root-dir={settings.KUBELET}",
                f"--cert-dir={settings.KUBELET / 'pki'}",
                f"--hostname-override={settings.NAME}",
                f"--node-ip={settings.GATEWAY}",
                f"--node-labels={labels}",
            )
        if "kube-proxy" not in running:
            self._start("kube-proxy", f"--config={state / 'kube-proxy.yaml'}")

    def _start(self, name: str, *arguments: str) -> None:
        # A plugin of CNI calls others by name.
        variables = {"PATH": f"{self._folders.bin}:{os.environ.get('PATH', os.defpath)}"}
        kernel.start([str(self._folders.bin / name), *arguments], self._folders.logs / f"{name}.log", variables)
        deadline = time.monotonic() + _START
        # Until then it is the shell that becomes it. One that ends at once is found out by whoever waits for it.
        while name not in self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)

    def _wait_until_ready(self, before: str) -> None:
        """Ready by a heartbeat after ``before``: for a while, a node that went away still counts as Ready."""
        self._wait_for("kubelet", lambda: self._heartbeat() not in {"", before} and self._is_ready())
        self._wait_for("kube-proxy", kernel.has_service_rules)

    def _is_ready(self) -> bool:
        condition = '{.status.conditions[?(@.type=="Ready")].status}'
        return self._of_node("node", condition) == "True"

    def _heartbeat(self) -> str:
        """When kubelet last renewed its lease; empty if it never did."""
        return self._of_node("lease", "{.spec.renewTime}")

    def _of_node(self, kind: str, path: str) -> str:
        return self._cluster.kubectl(
            "get", kind, settings.NAME, "--namespace=kube-node-lease", "--ignore-not-found", f"--output=jsonpath={path}"
        )

    def _wait_for(self, name: str, is_there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not is_there():
            if name not in self.processes() or time.monotonic() > deadline:
                log = self._folders.logs / f"{name}.log"
                lines = log.read_text(errors="replace").strip().splitlines()[-5:] if log.is_file() else []
                end = "\n".join(line[:400] for line in lines)
                raise NodeError(f"{name} of the real node did not start; its log is {log}\n{end}")
            time.sleep(0.2)

    def _forget_containers(self) -> None:
        """The database outlives the node, and with it the containers of one that was not taken down."""
        if self._content.remove_containers():
            kernel.end(self.processes()["containerd"])
            self._content.remove_records()
            self._start_containerd()

    # --- removal

    def _forget_object(self) -> None:
        """Without its node, a pod would wait for a kubelet for ever."""
        if self._cluster.is_running():
            of_node = f"--field-selector=spec.nodeName={settings.NAME}"
            self._cluster.kubectl("delete", "node", settings.NAME, "--ignore-not-found")
            self._cluster.kubectl("delete", "pods", "--all-namespaces", of_node, "--grace-period=0", "--force")


def _clean(state: Path) -> None:
    """Remove what the node with its files in ``state`` has made elsewhere."""
    kernel.remove([state])
    fixed_places.remove(state / "pods")


def _owner() -> str | None:
    """The state folder of the cluster whose node runs here, or was left behind."""
    try:
        return str(json.loads(_OWNER.read_text())["state"])
    except FileNotFoundError:
        return None


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    lock = tools.cache_folder().parent / "real-node.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with tools.only_one(lock):
        yield
