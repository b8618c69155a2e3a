"""The L40S pair on the real engine: cards by DRA, one replica after the other, a second claim that is found again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from sim.cluster import Cluster, ClusterError
from sim.stages import NEVER_READY, READY_AFTER, annotate_pods
from tests.engine.driver import ROOT, Object, Stack, prepared_stacks, until
from tests.stack_files import values

pytestmark = pytest.mark.engine

PAIR_LABEL = "pulumi-vllm.test/pair"
SERVER = "app.kubernetes.io/component=server"
CARDS = 2
SMALL = {
    "services.qwen.model": {"id": "Qwen/Qwen2.5-0.5B-Instruct"},
    "services.qwen.stop": {"preStopSeconds": 0, "drainSeconds": 0},
    "services.qwen.engine": {"enforceEager": True},
    "nodes.l40s.rates.diskMbPerSecond": 5000.0,
    "services.qwen.overrides": {"startupSeconds": 150, "progressDeadlineSeconds": 180, "updateTimeoutSeconds": 245},
}
"""The smallest model: its budget is the shortest that the preflight accepts."""


class Pair(Stack):
    """The shipped pair on nodes of its own, each with one card in a ResourceSlice."""

    def node_name(self, ordinal: int) -> str:
        """Name of a node of the pair."""
        return f"l40s-{self.name}-{ordinal}"

    def sections(self, changes: Mapping[str, Any] | None = None) -> Object:
        """The shipped stack in our namespace and on our nodes."""
        here = {
            "cluster.namespace": self.name,
            "nodes.l40s.selector": {PAIR_LABEL: self.name},
            "nodes.l40s.nodeNames": [self.node_name(ordinal) for ordinal in range(CARDS)],
        }
        return values("l40s-pair", {**here, **(changes or {})})

    def prepare(self) -> None:
        """Make folder, backend, stack, and the two nodes with their cards."""
        super().prepare()
        for ordinal in range(CARDS):
            self.add_node(ordinal, card=True)

    def add_node(self, ordinal: int, *, card: bool) -> None:
        """A further node of the pool, with or without the card that it should have."""
        node, card_slice = l40s_node(self.node_name(ordinal), self.name)
        self.cluster.apply(node, *([card_slice] if card else []))
        self.cluster.kubectl("wait", f"node/{node['metadata']['name']}", "--for=condition=Ready", "--timeout=60s")

    def clear(self) -> None:
        """Remove whatever is left, nodes and cards too."""
        super().clear()
        for kind in ("node", "resourceslice"):
            self.cluster.kubectl("delete", kind, f"--selector={PAIR_LABEL}={self.name}", "--wait=false")

    def pod(self, replica: int) -> Object:
        """The one pod of a replica."""
        pods = self.find("pod", f"{SERVER},pulumi-vllm/replica={replica}")
        assert len(pods) == 1, f"one pod of replica {replica}: {[pod['metadata']['name'] for pod in pods]}"
        return pods[0]

    def ready_endpoints(self) -> set[str]:
        """Names of the pods that the Service leads to."""
        slices = self.find("endpointslice", "kubernetes.io/service-name=vl")
        return {name for one in slices for name in ready_targets(one)}

    @contextmanager
    def watched(self, kind: str, selector: str) -> Iterator[Callable[[], list[tuple[str, Object]]]]:
        """Watch objects; the function that is handed out returns every (event, object) so far, in order."""
        log = self.next_log("watch")
        command = ["kubectl", "get", kind, "-n", self.name, "--selector", selector, "--watch"]
        with log.open("w") as output:
            arguments = [*command, "--output-watch-events", "-o", "json"]
            process = subprocess.Popen(arguments, env=self.environment(), stdout=output)

        def seen() -> list[tuple[str, Object]]:
            return [(event["type"], event["object"]) for event in documents(log.read_text())]

        try:
            until(seen, "the watch begins with the objects that there are")
            yield seen
        finally:
            process.terminate()
            process.wait()


def documents(text: str) -> Iterator[Object]:
    """The JSON documents that follow each other in a text that may still be written."""
    decoder, position = json.JSONDecoder(), 0
    while text[position:].strip():
        start = text.index("{", position)
        try:
            document, position = decoder.raw_decode(text, start)
        except ValueError:
            return
        yield document


def ready_targets(endpoint_slice: Object) -> set[str]:
    """Names of the ready pods in an EndpointSlice."""
    endpoints = endpoint_slice.get("endpoints") or []
    return {one["targetRef"]["name"] for one in endpoints if one["conditions"].get("ready")}


def is_ready(pod: Object) -> bool:
    """Whether a pod is Ready."""
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))


def l40s_node(name: str, stack: str) -> tuple[Object, Object]:
    """The simulated cluster's L40S node and its ResourceSlice under another name, found by ``PAIR_LABEL`` only."""
    node, card_slice, *_ = YAML(typ="safe", pure=True).load_all(Path(ROOT / "sim" / "nodes" / "l40s.yaml").read_text())
    labels = {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "kubernetes.io/hostname": name}
    node["metadata"] = {**node["metadata"], "name": name, "labels": {**labels, PAIR_LABEL: stack}}
    node["status"]["addresses"] = [{"address": "127.0.0.1", "type": "InternalIP"}]
    card_slice["metadata"] = {"name": f"{name}-gpu.nvidia.com", "labels": {PAIR_LABEL: stack}}
    pool = {**card_slice["spec"]["pool"], "name": name}
    card_slice["spec"] = {**card_slice["spec"], "nodeName": name, "pool": pool}
    return node, card_slice


NewPair = Callable[[str], Pair]


@pytest.fixture
def new_pair(cluster: Cluster, tmp_path: Path) -> Iterator[NewPair]:
    """Makes a pair that is not deployed; its name is that of its namespace."""
    with prepared_stacks(lambda name: Pair(cluster, tmp_path / name, name)) as new:
        yield new


def test_each_replica_has_its_own_card_node_and_claim(new_pair: NewPair) -> None:
    pair = new_pair("pair")
    pair.up()
    allocated = set()
    for replica in range(CARDS):
        pod = pair.pod(replica)
        assert is_ready(pod), "`up` ends when both are ready"
        assert pod["spec"]["nodeName"] == pair.node_name(replica), "replica i is pinned to the i-th node"
        (status,) = pod["status"]["resourceClaimStatuses"]
        claim = pair.get("resourceclaim", status["resourceClaimName"])
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        allocated.add((result["pool"], result["device"]))
        assert result["pool"] == pair.node_name(replica), "the scheduler allocated the card of the pod's own node"
        assert "nvidia.com/gpu" not in json.dumps(pod["spec"]["containers"][0]["resources"]), "claimed, not counted"
        held = pair.get("pvc", f"qwen-cache-{replica}")
        assert held["status"]["phase"] == "Bound", "its own claim"
    assert len(allocated) == CARDS, "the two never share a card"
    assert pair.ready_endpoints() == {pair.pod(replica)["metadata"]["name"] for replica in range(CARDS)}, (
        "one Service in front of both"
    )
    pair.preview("--expect-no-changes")
    _drain_takes_one_and_not_the_last(pair)


def _drain_takes_one_and_not_the_last(pair: Pair) -> None:
    drained, last = (pair.node_name(replica) for replica in range(CARDS))
    arguments = (f"--pod-selector={SERVER}", "--delete-emptydir-data", "--timeout=10s")
    pair.cluster.kubectl("drain", drained, *arguments)
    assert not is_ready(pair.pod(0)), "its node is cordoned, and a claim of a node's volume cannot move"
    with pytest.raises(ClusterError, match="disruption budget"):
        pair.cluster.kubectl("drain", last, *arguments)
    assert is_ready(pair.pod(1)), "the last one that serves stays"
    for node in (drained, last):
        pair.cluster.kubectl("uncordon", node)
    until(lambda: is_ready(pair.pod(0)), "the drained replica comes back to its node")


def test_an_image_change_never_leaves_both_away(new_pair: NewPair) -> None:
    pair = new_pair("rolling")
    pair.cluster.apply(
        annotate_pods("rolling", pair.name, {READY_AFTER: "8s"}, {"app.kubernetes.io/component": "server"})
    )
    pair.up()
    old = [pair.pod(replica)["metadata"]["name"] for replica in range(CARDS)]
    kept = pair.kept()

    pair.write({"services.qwen.image.tag": "v0.33.0"})
    endpoints = "kubernetes.io/service-name=vl"
    with pair.watched("pods", SERVER) as pods, pair.watched("endpointslices", endpoints) as slices:
        answer = pair.up()
        new = [pair.pod(replica)["metadata"]["name"] for replica in range(CARDS)]
        until(lambda: pair.ready_endpoints() == set(new), "the Service leads to the new pods")
        seen, addresses = pods(), slices()

    assert not set(old) & set(new), "both were replaced"
    ready: dict[str, bool] = {}
    away = []
    for kind, pod in seen:
        ready[pod["metadata"]["name"]] = kind != "DELETED" and is_ready(pod)
        away.append(sum(ready.values()) == 0)
    # A watch begins with one pod and then the other.
    assert len(away) > 2 * CARDS, f"the watch saw the change: {[kind for kind, _ in seen]}"
    assert not any(away), "at no moment were both unready"
    empty = [one for _, one in addresses if not ready_targets(one)]
    assert not empty, "at no moment did the Service lead nowhere"
    events = [(kind, pod["metadata"]["name"]) for kind, pod in seen]
    first_ready = next(i for i, (_, pod) in enumerate(seen) if pod["metadata"]["name"] == new[0] and is_ready(pod))
    assert first_ready < events.index(("DELETED", old[1])), "the second is stopped when the first serves again"
    operations = {event.operation for event in answer.changes if event.type.endswith(":Deployment")}
    assert operations == {"update"}, "no Deployment is made anew"
    assert pair.kept() == kept, "claims and namespace are the ones that were there"


def test_a_failing_first_replica_stops_the_change_before_the_second(new_pair: NewPair) -> None:
    pair = new_pair("stopped")
    pair.write(SMALL)
    pair.up()
    second = pair.pod(1)["metadata"]
    deployment = pair.get("deployment", "qwen-1")["metadata"]["generation"]
    labels = {"app.kubernetes.io/component": "server", "pulumi-vllm/replica": "0"}
    pair.cluster.apply(annotate_pods("stopped", pair.name, {NEVER_READY: "true"}, labels))

    pair.write({**SMALL, "services.qwen.image.tag": "v0.19.1"})
    answer = pair.up(fails=True)
    failed = [event.name for event in answer.events if event.kind == "failed"]
    assert failed == ["qwen-deployment-0"], "the first replica is what failed"
    assert pair.get("deployment", "qwen-1")["metadata"]["generation"] == deployment, "the second was not touched"
    assert pair.pod(1)["metadata"]["uid"] == second["uid"], "its pod is the one that was there"
    assert pair.ready_endpoints() == {second["name"]}, "and it serves"
    assert "qwen-0-" in answer.output, f"the message names the failing replica's pod:\n{answer.output}"

    pair.cluster.kubectl("delete", "stage", "stopped")
    pair.write({**SMALL, "services.qwen.image.tag": "v0.33.0"})
    pair.up()
    assert pair.pod(1)["metadata"]["uid"] != second["uid"], "the mended change goes on to the second"
    assert pair.ready_endpoints() == {pair.pod(replica)["metadata"]["name"] for replica in range(CARDS)}
    pair.preview("--expect-no-changes")


def test_a_replica_that_comes_back_finds_its_claim_again(new_pair: NewPair) -> None:
    pair = new_pair("back")
    pair.up()
    claims = {name: uid for name, uid in pair.kept().items() if name.startswith("PersistentVolumeClaim/")}
    assert set(claims) == {"PersistentVolumeClaim/qwen-cache-0", "PersistentVolumeClaim/qwen-cache-1"}
    first = pair.pod(0)["metadata"]["uid"]

    pair.write({"services.qwen.replicas": 1})
    pair.up()
    assert [one["metadata"]["name"] for one in pair.find("deployment")] == ["qwen-0"], "the first is left"
    assert not pair.find("pdb"), "one replica needs no budget: it would block every drain"
    assert claims.items() <= pair.kept().items(), "the second claim stays with its files"

    pair.write({"services.qwen.replicas": 2})
    pair.up()
    assert claims.items() <= pair.kept().items(), "the same two claims, not new ones"
    assert is_ready(pair.pod(1)), "and the second replica runs on its own"
    assert pair.pod(0)["metadata"]["uid"] == first, "the first was never touched"
    pair.preview("--expect-no-changes")


def test_three_replicas_on_two_cards_are_refused(new_pair: NewPair) -> None:
    pair = new_pair("three")
    pair.write({"services.qwen.replicas": 3})
    answer = pair.preview(fails=True)
    assert "declares 2 GPU(s), and qwen want 3" in answer.output, answer.output
    assert answer.changes == (), "nothing is even planned"
    pair.write()
    pair.preview()


def test_a_declared_card_that_is_missing_is_named_while_the_pair_serves(new_pair: NewPair) -> None:
    pair = new_pair("missing")
    pair.add_node(2, card=False)
    names = [pair.node_name(ordinal) for ordinal in range(3)]
    pair.write({**SMALL, "nodes.l40s.nodes": 3, "nodes.l40s.nodeNames": names, "services.qwen.replicas": 3})
    answer = pair.up(fails=True)
    assert "declares 3 GPU(s), and the ResourceSlices of its nodes offer 2" in answer.output, "said before it is tried"
    assert "cannot allocate all claims" in answer.output, f"the scheduler's reason:\n{answer.output}"
    failed = [event.name for event in answer.events if event.kind == "failed"]
    assert failed == ["qwen-deployment-2"], "the third replica is what failed"
    assert pair.ready_endpoints() == {pair.pod(replica)["metadata"]["name"] for replica in range(CARDS)}, (
        "the pair serves on"
    )
    assert pair.pod(2)["status"]["phase"] == "Pending", "the third waits for its card"
