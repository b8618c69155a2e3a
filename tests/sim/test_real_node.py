"""The real node, executed: containers, probes, Services, a reboot, and nothing left behind.

About three minutes on two cores once the tools are built. It is the only one of its kind on a machine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sim import stand_in
from sim.cluster import Cluster
from sim.real_node import NodeError, RealNode, requirements, settings

Object = dict[str, Any]
IMAGE = "pulumi-vllm.local/stand-in:v1"
OTHER_NAME = "docker.io/vllm/stand-in:v2"
_PROBLEM = requirements.problem(sys.platform, os.geteuid())
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("real-node"),
    pytest.mark.skipif(_PROBLEM is not None, reason=str(_PROBLEM)),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster("real-node-test", tmp_path_factory.mktemp("state") / "real-node-test")
    made.up()
    yield made
    made.down()


@pytest.fixture(scope="module")
def node(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """The node with the stand-in's image."""
    made = RealNode(cluster)
    made.up()
    archive = tmp_path_factory.mktemp("image") / "stand-in.tar"
    stand_in.write_image(archive, IMAGE)
    made.import_image(archive, IMAGE)
    yield made
    made.down()


def _probe(**times: int) -> Object:
    return {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 1, **times}


def _pod(name: str, **variables: str) -> Object:
    """A server with the three probes of a vLLM container, on the real node."""
    container = {
        "name": "server",
        "image": IMAGE,
        "args": ["serve", "model", "--port", "8000"],
        "env": [{"name": f"STAND_IN_{key}", "value": value} for key, value in variables.items()],
        "startupProbe": _probe(failureThreshold=60),
        "readinessProbe": _probe(),
        "livenessProbe": _probe(failureThreshold=3),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"nodeSelector": {"kubernetes.io/hostname": settings.NAME}, "containers": [container]},
    }


def _service(name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8000}]},
    }


@pytest.fixture
def run(cluster: Cluster, node: RealNode) -> Iterator[Callable[..., str]]:  # noqa: ARG001 (it must be up)
    """Make a pod and its Service, wait until it is Ready, and return the Service's address."""
    made: list[str] = []

    def start(name: str, **variables: str) -> str:
        made.append(name)
        cluster.apply(_pod(name, **variables), _service(name))
        cluster.kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=120s")
        return cluster.kubectl("get", "service", name, "--output=jsonpath={.spec.clusterIP}")

    yield start
    for name in made:
        cluster.kubectl("delete", "pod,service", name, "--ignore-not-found", "--grace-period=1", "--timeout=120s")


def _get(url: str) -> Any:
    """A rule of kube-proxy for a pod that is Ready follows in a moment."""
    for _ in range(30):
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 (http, from here)
                return json.load(answer)
        except OSError:
            time.sleep(1)
    raise AssertionError(f"{url} does not answer")


def test_the_node_is_one_of_the_cluster(cluster: Cluster, node: RealNode) -> None:
    assert node.up() is False, "it runs already"
    found = json.loads(cluster.kubectl("get", "node", settings.NAME, "--output=json"))
    labels = found["metadata"]["labels"]
    assert labels["kubernetes.io/hostname"] == settings.NAME, "a stack pins its pool by this label"
    assert labels["pulumi-vllm.local/kind"] == "cpu", "and finds out what kind of node it is"
    assert found["status"]["capacity"]["cpu"] == str(os.cpu_count()), "kubelet counts this machine's processors"
    assert "nvidia.com/gpu" not in found["status"]["capacity"], "it has no GPU"


def test_a_container_is_started_probed_and_reached(cluster: Cluster, run: Callable[..., str], tmp_path: Path) -> None:
    address = run("probed", READY_AFTER="3s")
    (status,) = json.loads(cluster.kubectl("get", "pod", "probed", "--output=json"))["status"]["containerStatuses"]
    assert (status["ready"], status["restartCount"]) == (True, 0), "the startup probe waited for the slow start"
    events = cluster.kubectl("get", "events", "--field-selector=involvedObject.name=probed")
    assert "Startup probe failed" in events, "it was refused while nothing listened"
    assert "Application startup complete" in cluster.kubectl("logs", "probed"), "kubectl logs"
    assert "stand-in" in cluster.kubectl("exec", "probed", "--", "vllm", "get", "http://127.0.0.1:8000/v1/models"), (
        "kubectl exec"
    )
    with _port_forward(cluster, "probed", tmp_path / "forward.log") as port:
        assert _get(f"http://127.0.0.1:{port}/v1/models")["object"] == "list", "kubectl port-forward"
    assert _get(f"http://{address}/v1/models")["data"][0]["id"] == "stand-in", "the Service, from the host"


def test_a_pod_reaches_services_its_own_included(cluster: Cluster, run: Callable[..., str]) -> None:
    servers = {name: run(name) for name in ("left", "right")}
    for address in servers.values():
        _get(f"http://{address}/v1/models")
        answer = cluster.kubectl("exec", "left", "--", "vllm", "get", f"http://{address}/v1/models")
        assert "stand-in" in answer, "through kube-proxy's rules, to the other pod and back to itself"


def test_a_hanging_server_is_killed_by_the_liveness_probe_and_a_slow_one_without_startup_probe_too(
    cluster: Cluster, run: Callable[..., str]
) -> None:
    pod = _pod("hasty", READY_AFTER="600s", IGNORE_TERM="1")
    (container,) = pod["spec"]["containers"]
    del container["startupProbe"]
    pod["spec"]["terminationGracePeriodSeconds"] = 1
    run("patient")
    try:
        cluster.apply(pod)
        restarted = "--for=jsonpath={.status.containerStatuses[0].restartCount}=1"
        cluster.kubectl("wait", "pod/hasty", restarted, "--timeout=120s")
        (status,) = json.loads(cluster.kubectl("get", "pod", "hasty", "--output=json"))["status"]["containerStatuses"]
        assert status["lastState"]["terminated"]["exitCode"] == 137, "it ignored SIGTERM, so it was killed"
        assert "failed liveness probe" in cluster.kubectl("get", "events", "--field-selector=reason=Killing"), "why"
    finally:
        cluster.kubectl("delete", "pod", "hasty", "--grace-period=1")
    ready = cluster.kubectl("get", "pod", "patient", "--output=jsonpath={.status.containerStatuses[0].restartCount}")
    assert ready == "0", "the same liveness probe leaves a server alone that answers"


@pytest.mark.parametrize("containers", [True, False], ids=["power failure", "daemons crash"])
def test_a_pod_comes_back_after_a_reboot(
    cluster: Cluster, node: RealNode, run: Callable[..., str], containers: bool
) -> None:
    address = run("survivor")
    before = cluster.kubectl("get", "pod", "survivor", "--output=jsonpath={.status.containerStatuses[0].containerID}")
    node.kill(containers=containers)
    assert node.processes() == {}, "nothing of it runs"
    node.start()
    if containers:
        restarted = "--for=jsonpath={.status.containerStatuses[0].restartCount}=1"
        cluster.kubectl("wait", "pod/survivor", restarted, "--timeout=120s")
    cluster.kubectl("wait", "pod/survivor", "--for=condition=Ready", "--timeout=120s")
    assert _get(f"http://{address}/v1/models")["object"] == "list", "the Service leads to it again"
    after = cluster.kubectl("get", "pod", "survivor", "--output=jsonpath={.status.containerStatuses[0].containerID}")
    assert (after == before) is not containers, "containers end with the machine, and outlive the daemons"


def test_an_image_is_imported_once(node: RealNode, tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    stand_in.write_image(archive, IMAGE)
    assert node.import_image(archive, IMAGE) is False, "the same image is there"
    assert node.import_image(archive, OTHER_NAME) is True, "the other name is new"
    other = stand_in.write_image(archive, IMAGE, {"STAND_IN_READY_AFTER": "1s"})
    assert node.import_image(archive, OTHER_NAME) is True, "another image takes that name over"
    assert other in node.ctr("images", "list", f"name=={OTHER_NAME}"), "and is what a pod gets that asks for it"
    original = stand_in.write_image(archive, IMAGE)
    assert node.import_image(archive, IMAGE) is True, "the archive's own name went to the other image too"
    assert original in node.ctr("images", "list", f"name=={IMAGE}"), "and is back"


def test_a_machine_has_one_real_node(cluster: Cluster, node: RealNode, tmp_path: Path) -> None:
    other = RealNode(Cluster("other", tmp_path / "other"))
    with pytest.raises(NodeError, match=f"belongs to the cluster with the state {cluster.state}.*node down"):
        other.up()
    for action in (other.kill, other.start):
        with pytest.raises(NodeError, match="has no real node"):
            action()
    assert other.down() is False, "another cluster's node is not its to stop"
    assert node.is_running(), "the first one is left alone"


@contextmanager
def _port_forward(cluster: Cluster, pod: str, log: Path) -> Iterator[int]:
    command = ["kubectl", f"--kubeconfig={cluster.kubeconfig}", "port-forward", f"pod/{pod}", ":8000"]
    with log.open("w") as output:
        forward = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=cluster.environment())
    try:
        for _ in range(300):
            if found := re.search(r"127\.0\.0\.1:(\d+) ->", log.read_text()):
                yield int(found.group(1))
                return
            time.sleep(0.1)
        raise AssertionError(f"port-forward: {log.read_text()}")
    finally:
        forward.terminate()
        forward.wait()
