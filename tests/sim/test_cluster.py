"""The simulated cluster, started for real: nodes, classes, pods, and nothing left behind.

About a minute once the tools are built; the control plane is started eleven times.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from sim import contexts, processes, tools
from sim.cluster import Cluster, ClusterError
from sim.stages import CRASH, IMAGE_PULL_ERROR, NEVER_READY, NODE_NOT_READY, READY_AFTER, annotate_pods

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("sim")]

Object = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster("shared", tmp_path_factory.mktemp("state") / "shared")
    made.up()
    yield made
    made.down()


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[Callable[[str], Cluster]]:
    """Make a cluster that is taken down at the end of the test, whatever happened."""
    made: list[Cluster] = []

    def maker(name: str) -> Cluster:
        made.append(Cluster(name, tmp_path / name))
        return made[-1]

    yield maker
    for one in made:
        one.down()


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of this test; it can be used as soon as its ServiceAccount is there."""
    name = f"test-{zlib.crc32(request.node.name.encode()):x}"
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    cluster.kubectl("wait", "serviceaccount/default", "--for=create", "--timeout=60s", "--namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def _pod(namespace: str, name: str, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    container = {"name": "server", "image": "docker.io/vllm/vllm-openai:v0.31.0", **spec.pop("container", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations or {}},
        "spec": {"containers": [container], **spec},
    }


def _job(namespace: str, name: str, annotations: dict[str, str]) -> Object:
    template = _pod(namespace, name, annotations, restartPolicy="Never")
    metadata = {"annotations": annotations}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"backoffLimit": 0, "template": {"metadata": metadata, "spec": template["spec"]}},
    }


def _get(cluster: Cluster, *arguments: str) -> Any:
    return json.loads(cluster.kubectl("get", *arguments, "--output=json"))


def _wait(cluster: Cluster, namespace: str, what: str, condition: str) -> None:
    cluster.kubectl("wait", what, f"--for={condition}", "--timeout=60s", "--namespace", namespace)


# --- the cluster itself


def test_the_lab_node_has_the_gpu_of_the_lab(cluster: Cluster) -> None:
    node = _get(cluster, "node", "lab")
    assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-GeForce-RTX-3060", "a pool selects by it"
    assert {key: node["status"]["allocatable"][key] for key in ("cpu", "memory", "nvidia.com/gpu")} == {
        "cpu": "12",
        "memory": "32Gi",
        "nvidia.com/gpu": "1",
    }, "the lab of the guide: one RTX 3060 12 GB, 12 threads, 32 GiB"


def test_the_l40s_nodes_hand_out_their_gpus_by_dra_only(cluster: Cluster) -> None:
    nodes = _get(cluster, "node", "--selector=nvidia.com/gpu.product=NVIDIA-L40S")["items"]
    assert [node["metadata"]["name"] for node in nodes] == ["l40s-0", "l40s-1"], "a pair"
    assert all("nvidia.com/gpu" not in node["status"]["allocatable"] for node in nodes), "the same card never twice"
    slices = _get(cluster, "resourceslice")["items"]
    assert sorted(one["spec"]["nodeName"] for one in slices) == ["l40s-0", "l40s-1"], "one slice per node"


def test_a_second_up_does_nothing(cluster: Cluster) -> None:
    before = cluster.processes()
    assert cluster.up() is False, "it runs"
    assert cluster.processes() == before, "no component was started again"


def test_a_half_dead_cluster_is_started_again_with_what_it_held(cluster: Cluster) -> None:
    cluster.kubectl("create", "configmap", "kept", "--from-literal=key=value", "--namespace=default")
    before = cluster.processes()
    for component in ("etcd", "kube-scheduler"):
        os.kill(before[component], 9)
    assert not cluster.is_running(), "two of five are gone"
    assert cluster.up() is True, "they had to be started"
    assert cluster.processes()["kube-apiserver"] == before["kube-apiserver"], "what ran was left running"
    assert _get(cluster, "configmap", "kept", "--namespace=default")["data"] == {"key": "value"}, "nothing is lost"


def test_ports_that_were_taken_meanwhile_are_all_named(new_cluster: Callable[[str], Cluster]) -> None:
    one = new_cluster("late")
    one.up()
    chosen = YAML(typ="safe", pure=True).load(one.state / "kwokctl.yaml")["options"]
    server, etcd = chosen["kubeApiserverPort"], chosen["etcdPort"]
    processes.stop(one.state / "kwok" / "clusters" / one.name / "bin")
    with (
        socket.create_server(("127.0.0.1", server)),
        socket.create_server(("127.0.0.1", etcd)),
        pytest.raises(ClusterError) as refused,
    ):
        one.up()
    named = [line.strip() for line in str(refused.value).splitlines() if line.startswith("  ")]
    assert sorted(named) == sorted([f"port {etcd} of etcd", f"port {server} of kube-apiserver"]), (
        "both are named, each with the component that needs it, and none that is free"
    )
    assert one.up() is True, "with the ports free again it starts"


def test_a_stopped_cluster_keeps_its_ports(new_cluster: Callable[[str], Cluster]) -> None:
    stopped, newer = new_cluster("stopped"), new_cluster("newer")
    stopped.up()
    processes.stop(stopped.state / "kwok" / "clusters" / stopped.name / "bin")
    newer.up()
    assert stopped.up() is True, "the one that was made meanwhile has ports of its own"


def test_every_stack_gets_its_context(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = "config:\n  vllm:cluster:\n    context: lab-of-the-test\n"
    (tmp_path / "Pulumi.lab.yaml").write_text(stack)
    monkeypatch.setattr(contexts, "STACKS", tmp_path)
    cluster.up()
    names = cluster.kubectl("get", "nodes", "--context=lab-of-the-test", "--output=name").split()
    assert "node/lab" in names, "the alias leads to the simulated cluster"
    with pytest.raises(ClusterError, match="no-such-context"):
        cluster.kubectl("get", "nodes", "--context=no-such-context")


def test_clusters_that_start_at_once_do_not_collide(cluster: Cluster, new_cluster: Callable[[str], Cluster]) -> None:
    others = [new_cluster("one"), new_cluster("other")]
    with ThreadPoolExecutor() as pool:
        list(pool.map(Cluster.up, others))
    server = ("config", "view", "--minify", "--output=jsonpath={.clusters[0].cluster.server}")
    assert len({one.kubectl(*server) for one in (cluster, *others)}) == 3, "each has ports of its own"
    others[0].kubectl("create", "namespace", "only-here")
    assert "only-here" not in others[1].kubectl("get", "namespace", "--output=name"), "they share nothing"
    assert cluster.is_running(), "the one that was there did not notice"


def test_the_home_is_left_as_it_is(
    tmp_path: Path, new_cluster: Callable[[str], Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tools.cache_folder().parent.parent
    home = tmp_path / "home"
    for name, text in ((".kube/config", "current-context: precious\n"), (".pulumi/credentials.json", '{"a": 1}')):
        (home / name).parent.mkdir(parents=True)
        (home / name).write_text(text)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    before = {file: file.read_bytes() for file in home.rglob("*") if file.is_file()}
    one = new_cluster("careful")
    one.up()
    assert one.kubectl("config", "current-context").strip() == "kwok-careful", "the cluster's own kubeconfig is used"
    one.down()
    assert {file: file.read_bytes() for file in home.rglob("*") if file.is_file()} == before, (
        "the user's kubeconfig and Pulumi login stay as they are, byte for byte"
    )


def test_down_leaves_nothing(new_cluster: Callable[[str], Cluster]) -> None:
    one = new_cluster("short")
    one.up()
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "cache", "namespace": "default"},
        "spec": _claim_spec("1Gi"),
    }
    one.apply(claim, _pod("default", "consumer", **_volume("cache")))
    one.kubectl("wait", "pod/consumer", "--for=condition=Ready", "--timeout=60s")
    provisioned = Path(one.kubectl("get", "pv", "--output=jsonpath={.items[0].spec.hostPath.path}"))
    assert provisioned.is_dir(), "the controller manager made it, outside the state folder"
    executables = one.state / "kwok" / "clusters" / one.name / "bin"
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        (executables.parent / "pids" / "kube-scheduler.pid").write_text(str(stranger.pid))
        assert one.down() is True, "it was there"
        assert stranger.poll() is None, "a process id in a file is no proof: the stranger lives"
    finally:
        stranger.kill()
        stranger.wait()
    assert processes.running(executables) == {}, "no process is left, the one whose file was wrong included"
    assert not one.state.exists(), "the state is deleted with the cluster"
    assert not provisioned.exists(), "and so is the folder of its volume"
    assert one.down() is False, "a second time is no error"


# --- what kwok does with nodes and pods


def test_a_node_that_is_not_ours_is_left_alone(cluster: Cluster, namespace: str) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "real"}}
    cluster.apply(node, _pod(namespace, "real", nodeName="real", tolerations=[{"operator": "Exists"}]))
    cluster.apply(_pod(namespace, "simulated", nodeName="lab"))
    _wait(cluster, namespace, "pod/simulated", "condition=Ready")
    try:
        assert _get(cluster, "pod", "real", "--namespace", namespace)["status"]["phase"] == "Pending", (
            "a real kubelet answers for the pods of its node"
        )
        conditions = _get(cluster, "node", "real")["status"].get("conditions", [])
        assert all(condition["status"] != "True" for condition in conditions), "and for the node itself"
    finally:
        cluster.kubectl("delete", "node/real")


def test_a_node_that_goes_away_and_comes_back(cluster: Cluster) -> None:
    cluster.kubectl("annotate", "node", "l40s-1", f"{NODE_NOT_READY}=true")
    cluster.kubectl("wait", "node/l40s-1", "--for=condition=Ready=Unknown", "--timeout=60s")
    unreachable = "jsonpath={.spec.taints[?(@.effect=='NoExecute')].key}=node.kubernetes.io/unreachable"
    cluster.kubectl("wait", "node/l40s-1", f"--for={unreachable}", "--timeout=60s")
    cluster.kubectl("annotate", "node", "l40s-1", f"{NODE_NOT_READY}-")
    cluster.kubectl("wait", "node/l40s-1", "--for=condition=Ready", "--timeout=60s")


def test_a_pod_is_ready_when_nothing_else_is_said(cluster: Cluster, namespace: str) -> None:
    cluster.apply(_pod(namespace, "plain", initContainers=[{"name": "check", "image": "a"}]))
    _wait(cluster, namespace, "pod/plain", "condition=Ready")
    status = _get(cluster, "pod", "plain", "--namespace", namespace)["status"]
    assert status["containerStatuses"][0]["ready"], "a Service sends it traffic"
    assert status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0, "its start ended well"
    assert status["podIP"], "it has an address"


def test_a_slow_pod_is_ready_only_later(cluster: Cluster, namespace: str) -> None:
    cluster.apply(_pod(namespace, "slow", {READY_AFTER: "3s"}))
    _wait(cluster, namespace, "pod/slow", "condition=Ready")
    status = _get(cluster, "pod", "slow", "--namespace", namespace)["status"]
    ready = next(one for one in status["conditions"] if one["type"] == "Ready")["lastTransitionTime"]
    started = status["containerStatuses"][0]["state"]["running"]["startedAt"]
    assert _time(ready) - _time(started) >= timedelta(seconds=2), "three seconds, less what is lost to whole seconds"


def test_a_pod_that_is_never_ready_runs(cluster: Cluster, namespace: str) -> None:
    cluster.apply(_pod(namespace, "never", {NEVER_READY: "true"}), _pod(namespace, "later"))
    _wait(cluster, namespace, "pod/never", "jsonpath={.status.phase}=Running")
    _wait(cluster, namespace, "pod/later", "condition=Ready")
    assert not _ready(cluster, namespace, "never"), "one that came later is Ready, this one never is"


@pytest.mark.parametrize(
    ("annotation", "reason", "where"),
    [
        (CRASH, "CrashLoopBackOff", ("lastState", "terminated", "message")),
        (IMAGE_PULL_ERROR, "ImagePullBackOff", ("state", "waiting", "message")),
    ],
)
def test_a_pod_that_fails_says_why(
    cluster: Cluster, namespace: str, annotation: str, reason: str, where: tuple[str, ...]
) -> None:
    message = 'RuntimeError: "no room" {{for}} it'
    cluster.apply(_pod(namespace, "fails", {annotation: message}))
    _wait(cluster, namespace, "pod/fails", f"jsonpath={{.status.containerStatuses[0].state.waiting.reason}}={reason}")
    found: Any = _get(cluster, "pod", "fails", "--namespace", namespace)["status"]["containerStatuses"][0]
    for key in where:
        found = found[key]
    assert found == message, "a diagnosis shows the message as it is"
    assert not _ready(cluster, namespace, "fails"), "it serves nobody"


@pytest.mark.parametrize(
    ("annotations", "condition"),
    [({}, "complete"), ({READY_AFTER: "1s"}, "complete"), ({CRASH: "disk full"}, "failed")],
)
def test_a_job_ends(cluster: Cluster, namespace: str, annotations: dict[str, str], condition: str) -> None:
    cluster.apply(_job(namespace, "seed", annotations))
    _wait(cluster, namespace, "job/seed", f"condition={condition}")


def test_a_test_decides_the_fate_of_pods_it_does_not_write(cluster: Cluster, namespace: str) -> None:
    cluster.apply(annotate_pods("crashes", namespace, {CRASH: "out of memory"}, labels={"role": "server"}))
    meant, other = _pod(namespace, "meant"), _pod(namespace, "other")
    meant["metadata"]["labels"] = {"role": "server"}
    cluster.apply(meant, other)
    _wait(cluster, namespace, "pod/other", "condition=Ready")
    _wait(
        cluster,
        namespace,
        "pod/meant",
        "jsonpath={.status.containerStatuses[0].lastState.terminated.message}=out of memory",
    )
    cluster.kubectl("delete", "stage/crashes")
    cluster.kubectl("delete", "pod/meant", "--namespace", namespace)
    cluster.apply(meant)
    _wait(cluster, namespace, "pod/meant", "condition=Ready")


# --- GPUs, storage, monitoring


def test_one_gpu_serves_one_pod(cluster: Cluster, namespace: str) -> None:
    gpu = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    cluster.apply(_pod(namespace, "first", container=gpu))
    _wait(cluster, namespace, "pod/first", "condition=Ready")
    cluster.apply(_pod(namespace, "second", container=gpu))
    _wait(cluster, namespace, "pod/second", "condition=PodScheduled=False")
    pod = _get(cluster, "pod", "second", "--namespace", namespace)
    assert "Insufficient nvidia.com/gpu" in pod["status"]["conditions"][0]["message"], "the real scheduler says so"


def test_dra_hands_out_each_l40s_once(cluster: Cluster, namespace: str) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpu", "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    container = {"resources": {"claims": [{"name": "gpu"}]}}
    pods = [_pod(namespace, f"replica-{i}", container=container, resourceClaims=claims) for i in range(2)]
    cluster.apply(template, *pods)
    for i in range(2):
        _wait(cluster, namespace, f"pod/replica-{i}", "condition=Ready")
    found = _get(cluster, "pod", "--namespace", namespace)["items"]
    assert {pod["spec"]["nodeName"] for pod in found} == {"l40s-0", "l40s-1"}, "one card in each node"
    cluster.apply(_pod(namespace, "replica-2", container=container, resourceClaims=claims))
    _wait(cluster, namespace, "pod/replica-2", "condition=PodScheduled=False")


def test_a_claim_is_bound_at_its_first_consumer_and_may_grow_but_not_shrink(cluster: Cluster, namespace: str) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "cache", "namespace": namespace},
        "spec": _claim_spec("20Gi"),
    }
    cluster.apply(claim)
    assert _get(cluster, "pvc", "cache", "--namespace", namespace)["status"]["phase"] == "Pending", "nobody uses it"
    cluster.apply(_pod(namespace, "consumer", **_volume("cache")))
    _wait(cluster, namespace, "pvc/cache", "jsonpath={.status.phase}=Bound")
    claim["spec"] = _claim_spec("40Gi")
    cluster.apply(claim)
    claim["spec"] = _claim_spec("10Gi")
    with pytest.raises(ClusterError, match="can not be less than"):
        cluster.apply(claim)


def test_monitors_are_checked_against_their_schema(cluster: Cluster, namespace: str) -> None:
    monitor: Object = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": {"name": "vllm", "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"app": "vllm"}}, "endpoints": [{"port": "http", "interval": "15s"}]},
    }
    cluster.apply(monitor)
    monitor["spec"]["endpoints"][0]["interval"] = "soon"
    with pytest.raises(ClusterError, match="interval"):
        cluster.apply(monitor)


def _claim_spec(size: str) -> Object:
    return {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local-path",
        "resources": {"requests": {"storage": size}},
    }


def _volume(claim: str) -> Object:
    return {
        "container": {"volumeMounts": [{"name": "cache", "mountPath": "/cache"}]},
        "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": claim}}],
    }


def _ready(cluster: Cluster, namespace: str, pod: str) -> bool:
    conditions = _get(cluster, "pod", pod, "--namespace", namespace)["status"]["conditions"]
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
