"""A change while clients ask: Recreate never runs two servers, and a pair is never dark."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from datetime import datetime

import pytest

from tests.e2e import clients
from tests.e2e.conftest import NewNodeStack
from tests.e2e.driver import STAND_IN_TAGS, NodeStack, container_status, stand_in
from tests.e2e.ledger import Prove

pytestmark = pytest.mark.e2e

MODEL = "stand-in"
NEXT_TAG = {"services.qwen.image.tag": STAND_IN_TAGS[1]}
PAIR = {
    "services.qwen.replicas": 2,
    "nodes.cpus.nodeNames": ["real-node"],
}


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _server_pods(stack: NodeStack) -> AbstractContextManager[list[set[str]]]:
    """What was seen at each look: the pods whose server's container ran."""

    def look() -> set[str]:
        pods = stack.find("pod", "app.kubernetes.io/component=server")
        begun = [pod for pod in pods if pod["status"].get("containerStatuses")]
        return {pod["metadata"]["name"] for pod in begun if "running" in container_status(pod)["state"]}

    return clients.looking(look, 0.3)


def test_the_old_server_is_gone_before_the_new_one_starts(new_stack: NewNodeStack, prove: Prove) -> None:
    stack = new_stack("recreate")
    stack.write(stand_in(READY_AFTER="5s"))
    stack.up()
    old = stack.server_pod()["metadata"]["name"]
    address = stack.service_address()
    stack.write(stand_in(NEXT_TAG, READY_AFTER="5s"))
    with _server_pods(stack) as looks, clients.watching_health(address) as health:
        stack.up()
        stack.eventually(lambda: clients.healthy(address), "the new server answers")
    new = stack.server_pod()["metadata"]["name"]
    assert new != old, "the image changed"
    assert {old} in looks, "the old one was seen running"
    assert {new} in looks, "and so was the new one"
    assert not [look for look in looks if len(look) > 1], f"never both: they would need the same card: {looks}"
    assert clients.downtime(health) > 0, "with one replica a change is felt, as the preview says"
    prove(
        "Recreate: the old server is gone before the new one starts",
        "image change of one replica (stand-in that listens after 5 s); pods looked at three times a second",
        f"never two servers; away {clients.downtime(health):.1f} s",
    )


def test_a_pair_rolls_one_by_one_and_no_request_fails(new_stack: NewNodeStack, prove: Prove) -> None:
    stack = new_stack("pair")
    stack.write(stand_in(PAIR, READY_AFTER="5s", TOKEN_EVERY="100ms"))
    stack.up()
    address = stack.service_address()
    before = {pod["metadata"]["name"] for pod in stack.find("pod", "app.kubernetes.io/component=server")}
    stack.write(stand_in({**PAIR, **NEXT_TAG}, READY_AFTER="5s", TOKEN_EVERY="100ms"))
    with clients.asking(address, MODEL, clients=8) as outcomes, clients.watching_health(address) as health:
        stack.up()
    pods = stack.find("pod", "app.kubernetes.io/component=server")
    assert not before & {pod["metadata"]["name"] for pod in pods}, "both were replaced"
    first, second = sorted(pods, key=lambda pod: str(pod["metadata"]["labels"]))
    ready = next(one for one in first["status"]["conditions"] if one["type"] == "Ready")["lastTransitionTime"]
    begun = container_status(second)["state"]["running"]["startedAt"]
    assert _time(ready) <= _time(begun), "the second was touched only when the first was ready again"
    assert len(outcomes) > 50, "requests flowed all the time"
    assert [one.fault for one in outcomes if one.fault] == [], "no request failed, with retries off"
    assert clients.downtime(health) == 0, "and the address answered all the time"
    prove(
        "A pair is updated one by one and is never dark",
        "image change of two replicas while 8 clients ask for streams without a break, retries off",
        f"{len(outcomes)} requests, 0 failed",
    )


def test_a_running_stream_ends_before_its_server_does(new_stack: NewNodeStack, prove: Prove) -> None:
    stack = new_stack("drain")
    stack.write(stand_in(TOKEN_EVERY="1s"))
    stack.up()
    address, pod = stack.service_address(), stack.server_pod()["metadata"]["name"]
    answers: list[clients.Outcome] = []
    stream = threading.Thread(target=lambda: answers.append(clients.ask(address, MODEL)))
    stream.start()
    stack.eventually(lambda: clients.healthy(address), "the server answers while the stream runs")
    stack.cluster.kubectl("delete", "pod", pod, "-n", stack.name, "--wait=false")
    stream.join()
    assert answers[0].fault == "", "the stream of 8 s was read to its end although its pod was deleted"
    prove(
        "A stop lets running streams end: preStop, drain and grace period are in order",
        "pod deleted while it streams 8 words, one a second",
        f"the stream ended whole after {answers[0].ended - answers[0].begun:.1f} s",
    )


def test_a_stream_that_outlasts_the_grace_period_is_cut_by_it(new_stack: NewNodeStack, prove: Prove) -> None:
    changes = stand_in({"services.qwen.stop": {"preStopSeconds": 1, "drainSeconds": 1}}, TOKEN_EVERY="5s")
    stack = new_stack("cut")
    stack.write(changes)
    stack.up()
    address, pod = stack.service_address(), stack.server_pod()
    answers: list[clients.Outcome] = []
    streams = [threading.Thread(target=lambda: answers.append(clients.ask(address, MODEL))) for _ in range(3)]
    for stream in streams:
        stream.start()
    stack.eventually(lambda: clients.healthy(address), "the server answers while the streams run")
    stack.cluster.kubectl("delete", "pod", pod["metadata"]["name"], "-n", stack.name, "--wait=false")
    for stream in streams:
        stream.join()
    cut = [one for one in answers if one.fault]
    assert len(cut) == 3, f"streams of 40 s do not outlive their server: {answers}"
    stack.eventually(lambda: clients.healthy(address), "and the next server answers")
    grace = pod["spec"]["terminationGracePeriodSeconds"]
    prove(
        "What a stop may cost: requests that outlast the grace period",
        f"pod deleted while three clients read streams of 40 s; grace period {grace} s (preStop 1, drain 1)",
        f"{len(cut)} of 3 cut, after {max(one.ended - one.begun for one in cut):.1f} s",
    )
