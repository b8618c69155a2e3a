"""A real vLLM in a real pod: its download, its start, its answers, its restart, its crash.

One environment for the module: a mirror of the hub that the download is cut off from half-way, a user that is not
root, an API key, and a foreign Service called `vllm` in the namespace. The tests run in the order of the file.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from sim import tools, vllm_cpu
from sim.ports import free_port
from sim.real_node import RealNode, settings
from sim.vllm_cpu.mirror import mirror
from tests.e2e import clients
from tests.e2e.driver import NodeStack, container_status
from tests.e2e.ledger import Prove
from tests.engine.command_line import run
from tests.engine.driver import Object
from tests.metrics import service
from tests.metrics.prometheus import running, until

pytestmark = pytest.mark.e2e

USER = 1000
MODEL = "tiny-random-qwen2"
SLOW_MEGABYTES_PER_SECOND = 0.5
"""The model's 25 MB take a minute: time enough to cut the download off."""
QUEUE = "VLLMQueueBacklog"
OPEN_PATHS = ("/health", "/metrics", "/version")


@dataclass
class Deployed:
    """The environment, and what was seen while it was deployed."""

    stack: NodeStack
    key: str
    partial_bytes: int = 0
    server_pods_meanwhile: list[str] = field(default_factory=list)
    up_output: str = ""

    @property
    def address(self) -> clients.Address:
        return self.stack.service_address()

    def status(self, path: str, key: str | None = None) -> int:
        """The HTTP status of a GET."""
        connection = HTTPConnection(*self.address, timeout=30)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
            return connection.getresponse().status
        finally:
            connection.close()

    def compiled(self) -> dict[str, int]:
        """The compiled code on the claim: file → when it was written. Loading does not write it, compiling does."""
        return {str(file): file.stat().st_mtime_ns for file in self.stack.cache.rglob("*.so")}

    def cold_start(self) -> Object:
        """What `vllm-infra cold-start` says of the newest start."""
        answer = run(self.stack, "cold-start", "--json")
        assert answer.code == 0, answer.output
        return dict(json.loads(answer.out)["starts"][-1])


@pytest.fixture(scope="module")
def deployed(
    real_node: RealNode, vllm_image: str, cluster: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployed]:
    """The environment; its download was cut off once."""
    folder = tmp_path_factory.mktemp("real")
    stack = NodeStack(cluster, folder / "real-server", "real-server", real_node=real_node)
    stack.prepare()
    try:
        yield _deploy(stack, folder / "hub", vllm_image)
    finally:
        stack.clear()


def _deploy(stack: NodeStack, hub: Path, image: str) -> Deployed:
    found = Deployed(stack, key=secrets.token_urlsafe(24))
    vllm_cpu.tiny_model(hub)
    shutil.chown(stack.cache, USER, USER)
    stack.cluster.apply(*_foreign_service(stack.name))
    with mirror(hub, 0, settings.GATEWAY, SLOW_MEGABYTES_PER_SECOND) as endpoint:
        cache = {"path": str(stack.cache), "owner": USER, "seed": {"endpoint": endpoint}}
        changes: Object = {f"services.qwen.cache.{name}": value for name, value in cache.items()}
        repository, _, tag = image.removeprefix("docker.io/").rpartition(":")
        changes["services.qwen.image"] = {"repository": repository, "tag": tag}
        changes["cluster.adopt"] = [f"Namespace/{stack.name}"]
        stack.write({**changes, "services.qwen.security": {"runAsUser": USER}})
        stack.set_secret("apiKey", found.key)
        up = threading.Thread(target=lambda: setattr(found, "up_output", stack.up().output))
        up.start()
        _cut_off(stack, found, up)
        up.join()
    return found


def _cut_off(stack: NodeStack, found: Deployed, up: threading.Thread) -> None:
    """Kill the download's pod when a part of the weights is there."""

    def partial() -> int:
        assert up.is_alive(), "`up` ended before the weights came; its log is in the stack's folder"
        files = [file for file in stack.cache.rglob("*.incomplete") if file.is_file()]
        return max((file.stat().st_size for file in files), default=0)

    found.partial_bytes = stack.eventually(lambda: (size := partial()) > 4_000_000 and size, "weights arrive")
    found.server_pods_meanwhile = [pod["metadata"]["name"] for pod in _server_pods(stack)]
    pods = stack.find("pod", "app.kubernetes.io/component=seed")
    names = [pod["metadata"]["name"] for pod in pods]
    stack.cluster.kubectl("delete", "pod", *names, "-n", stack.name, "--grace-period=0", "--force")


def _server_pods(stack: NodeStack) -> list[Object]:
    return stack.find("pod", "app.kubernetes.io/component=server")


def _foreign_service(namespace: str) -> list[Object]:
    """A Service of somebody else, which would make VLLM_PORT=tcp://… in pods with service links."""
    spec = {"selector": {"app": "other"}, "ports": [{"port": 9000}]}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "vllm", "namespace": namespace}, "spec": spec},
    ]


def test_a_download_that_was_cut_off_is_finished_and_verified(deployed: Deployed, prove: Prove) -> None:
    marker = next(deployed.stack.cache.rglob("*.json"), None)
    assert deployed.server_pods_meanwhile == [], "no server starts on half a model"
    assert deployed.stack.find("job")[0]["status"].get("succeeded") == 1, "the Job's next pod ended it"
    assert not list(deployed.stack.cache.rglob("*.incomplete")), "nothing half is left"
    assert marker is not None, "the marker is there"
    prove(
        "The download is finished after it was killed half-way; no server starts on half a model",
        f"mirror of the hub; pod killed when {deployed.partial_bytes / 1e6:.0f} MB of the weights were there",
        "verified by the Job's second pod; the server came after it",
    )


def test_it_answers_a_completion(deployed: Deployed, prove: Prove) -> None:
    answer = run(deployed.stack, "smoke", "--json", "--timeout", "120")
    assert answer.code == 0, answer.output
    assert deployed.key not in answer.output, "the key is not shown"
    prove("The deployed server answers a chat completion", "`vllm-infra smoke` against a real vLLM", "exit code 0")


def test_each_phase_of_the_first_start_is_measured(deployed: Deployed, prove: Prove) -> None:
    start = deployed.cold_start()
    measured = {row["name"]: row["measured"] for row in start["phases"]}
    assert start["outcome"] == "ready", start
    assert start["kvTokens"] == start["kvTokensPlanned"], "the KV cache is the planned one, to the token"
    assert deployed.compiled(), "and compiled code is on the claim"
    assert start["imageLocal"] is True, "the pre-pull had brought the image"
    assert start["totalSeconds"] < start["budgetSeconds"], "and inside its budget"
    known = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in measured.items() if seconds)
    planned = next(row["planned"] for row in start["phases"] if row["name"] == "total")
    prove(
        "First start: every phase measured beside the plan, KV cache as planned",
        "`vllm-infra cold-start` on pod conditions, events and log of a real vLLM",
        f"{start['totalSeconds']:.0f} s (planned {planned:.0f} s): {known}; {start['kvTokens']} KV tokens, as planned",
    )


def test_a_foreign_service_called_vllm_does_not_break_it(deployed: Deployed, prove: Prove) -> None:
    pod = deployed.stack.server_pod()["metadata"]["name"]
    environment = deployed.stack.cluster.kubectl("exec", pod, "-n", deployed.stack.name, "-c", "vllm", "--", "env")
    names = [line.partition("=")[0] for line in environment.splitlines()]
    assert "VLLM_PORT" not in names, "the kubelet made no variables of Services"
    prove("A Service called `vllm` in the namespace does not break the server", "such a Service was there first", "")


def test_it_runs_as_its_user_on_a_read_only_root(deployed: Deployed, prove: Prove) -> None:
    pod = deployed.stack.server_pod()["metadata"]["name"]
    inside = ("exec", pod, "-n", deployed.stack.name, "-c", "vllm", "--", "sh", "-c")
    assert deployed.stack.cluster.kubectl(*inside, "id -u").strip() == str(USER), "not root"
    written = deployed.stack.cluster.kubectl(*inside, "touch /x 2>&1 || true")
    assert "Read-only file system" in written, "nothing but the mounts can be written"
    prove("The server runs without root on a read-only root file system", f"user {USER}, `touch /x` refused", "")


@pytest.mark.parametrize("path", OPEN_PATHS)
def test_what_the_guide_calls_open_answers_without_a_key(path: str, deployed: Deployed) -> None:
    assert deployed.status(path) == 200, "probes and Prometheus carry no key"


def test_the_api_wants_the_key(deployed: Deployed, prove: Prove) -> None:
    statuses = [deployed.status("/v1/models", key) for key in (None, "wrong", deployed.key)]
    assert statuses == [401, 401, 200], "none, a wrong one, the right one"
    prove("The API key is required on /v1", "no key, a wrong key, the right key", "401, 401, 200")


def test_the_key_is_nowhere_but_in_its_secret(deployed: Deployed, prove: Prove) -> None:
    stack = deployed.stack
    pod = stack.server_pod()
    arguments = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()]
    places = {
        "the server's log": stack.log(pod["metadata"]["name"]),
        "events": json.dumps(stack.events(pod["metadata"]["name"])),
        "the pod": json.dumps(pod),
        "the state": json.dumps(stack.export()),
        "what `up` printed": deployed.up_output,
        "the node's process list": b"\n".join(arguments).decode(errors="replace"),
    }
    assert [place for place, text in places.items() if deployed.key in text] == [], "the key must not be there"
    prove("The API key is in its Secret only", f"looked for in {', '.join(places)}", "not found")


def test_a_real_prometheus_pages_for_its_queue(deployed: Deployed, tmp_path: Path, prove: Prove) -> None:
    host, port = deployed.address
    executable = tools.ensure(["prometheus"], report=False)["prometheus"]
    with running(executable, tmp_path, free_port(), service.scrape(), service.rules()) as prometheus:
        prometheus.find([(port, service.discovered())], host)
        until(lambda: prometheus.query("vllm:num_requests_waiting"), "the server is read through its Service")
        assert not prometheus.firing(QUEUE), "an idle server pages nobody"
        with clients.asking(deployed.address, MODEL, clients=24, tokens=200, key=deployed.key) as outcomes:
            (page,) = until(lambda: prometheus.firing(QUEUE), "the queue pages while the load lasts")
        until(lambda: not prometheus.firing(QUEUE), "and no longer when it ends")
    assert not [one.fault for one in outcomes if one.fault], "every request that waited was answered"
    assert page.value > 10, "more wait than the stack's threshold"
    prove(
        "VLLMQueueBacklog fires under real load and resolves",
        "real Prometheus with the rendered scrape and rules, through the Service; 24 clients, 8 run at once",
        f"{page.value:g} waited; {len(outcomes)} requests answered",
    )


def test_a_restart_hits_the_compile_cache(deployed: Deployed, prove: Prove) -> None:
    stack = deployed.stack
    compiled, old = deployed.compiled(), stack.server_pod()["metadata"]["name"]
    with clients.watching_health(deployed.address) as health:
        stack.cluster.kubectl("delete", "pod", old, "-n", stack.name)
        stack.eventually(lambda: _ready(stack, other_than=old), "the successor is ready")
        stack.eventually(lambda: clients.healthy(deployed.address), "and answers")
    start = deployed.cold_start()
    assert deployed.compiled() == compiled, "not one file of the compiled code was written again"
    assert start["weightsDownloaded"] is False, "the weights were there"
    seconds = {row["name"]: row["measured"] for row in start["phases"]}
    planned = json.loads(stack.run("stack", "output", "services", "--json").output)["qwen"]["downtimeSeconds"]
    prove(
        "A restart finds image, weights and compile cache; the downtime is the plan's",
        "pod deleted, /health asked five times a second until its successor answered",
        f"away {clients.downtime(health):.0f} s, planned {planned:.0f} s; compile {seconds['compile']:.0f} s",
    )


def _ready(stack: NodeStack, other_than: str) -> bool:
    pods = [pod for pod in _server_pods(stack) if pod["metadata"]["name"] != other_than]
    begun = [pod for pod in pods if pod["status"].get("containerStatuses")]
    return any(container_status(pod)["ready"] for pod in begun)


def test_after_a_killed_engine_it_serves_again(deployed: Deployed, prove: Prove) -> None:
    stack = deployed.stack
    pod = stack.server_pod()
    restarts, compiled = container_status(pod)["restartCount"], deployed.compiled()
    for process in _engines():
        os.kill(process, signal.SIGKILL)
    stack.eventually(lambda: stack.server_status()["restartCount"] > restarts, "the kubelet restarts the container")
    stack.eventually(lambda: stack.server_status()["ready"], "it is ready again")
    assert stack.server_pod()["metadata"]["uid"] == pod["metadata"]["uid"], "in the same pod"
    assert deployed.compiled() == compiled, "the compile cache is whole"
    assert deployed.status("/metrics") == 200, "metrics go on"
    assert run(stack, "smoke", "--timeout", "120").code == 0, "and so do answers"
    prove(
        "After a SIGKILL of the engine the kubelet restarts it, and no cache is damaged",
        "every process called VLLM::EngineCore killed",
        "1 restart in the same pod; nothing compiled again; it answers",
    )


def _engines() -> list[int]:
    """The engines that run in containers of the node; another vLLM of this machine is none of ours."""
    folders = [file.parent for file in Path("/proc").glob("[0-9]*/comm") if file.exists()]
    named = [folder for folder in folders if (folder / "comm").read_text().startswith("VLLM::EngineCor")]
    found = [int(folder.name) for folder in named if settings.CGROUP in (folder / "cgroup").read_text()]
    assert found, "an engine runs"
    return found


def test_the_environment_can_be_previewed_without_changes(deployed: Deployed) -> None:
    deployed.stack.preview("--expect-no-changes")
