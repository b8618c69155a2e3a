"""What is read of a start: which pod, which log, which events."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from infra import diagnosis
from infra.diagnosis import Unread, diagnose, gather
from tests.infra.api_server import api_server, client_of
from tests.infra.diagnosis.starts import NORMAL

LABELS = {"app.kubernetes.io/instance": "chat", "app.kubernetes.io/component": "server"}


def manifest(
    name: str, *, owner: tuple[str, str] | None = None, component: str = "server", **more: Any
) -> dict[str, Any]:
    owners = [{"kind": owner[0], "name": owner[1], "uid": owner[1]}] if owner else []
    labels = {**LABELS, "app.kubernetes.io/component": component}
    metadata = {"name": name, "uid": name, "labels": labels, "ownerReferences": owners, **more.pop("metadata", {})}
    return {"metadata": metadata, "spec": {}, "status": {}, **more}


def pod(
    name: str, owner: tuple[str, str], created: str = "1", *, component: str = "server", **more: Any
) -> dict[str, Any]:
    return manifest(
        name,
        owner=owner,
        component=component,
        metadata={"creationTimestamp": created, **more.pop("metadata", {})},
        **more,
    )


def replica_set(name: str, revision: int) -> dict[str, Any]:
    annotations = {"deployment.kubernetes.io/revision": str(revision)}
    return manifest(name, owner=("Deployment", "chat-0"), metadata={"annotations": annotations})


RUNNING = {
    "containerStatuses": [
        {"name": "vllm", "ready": False, "restartCount": 0, "state": {"running": {}}, "lastState": {}}
    ]
}
RESTARTED = {
    "containerStatuses": [
        {
            "name": "vllm",
            "ready": False,
            "restartCount": 2,
            "state": {"running": {}},
            "lastState": {"terminated": {"reason": "Error", "exitCode": 137}},
        }
    ]
}
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


class Cluster:
    """Answers to the paths that are asked, and keeps what was asked of logs."""

    def __init__(self, log: str | None = "a line\n", **lists: list[dict[str, Any]]) -> None:
        self.lists = lists
        self.log = log
        self.logs_asked: list[tuple[str, dict[str, list[str]]]] = []

    def __call__(self, path: str) -> str:
        parts = urlsplit(path)
        last = parts.path.rsplit("/", maxsplit=1)[-1]
        if last == "log":
            if self.log is None:
                raise Unread("HTTP 500")
            self.logs_asked.append((parts.path.split("/")[-2], parse_qs(parts.query)))
            return self.log
        return json.dumps({"items": self.lists.get(last, [])})


def test_the_pod_of_the_newest_replica_set_is_read() -> None:
    cluster = Cluster(
        deployments=[manifest("chat-1"), manifest("chat-0")],
        replicasets=[replica_set("new", 10), replica_set("old", 9)],
        pods=[
            pod("old-a", ("ReplicaSet", "old"), "9", status=READY),
            pod("new-a", ("ReplicaSet", "new"), status=RUNNING),
        ],
    )
    found = gather(cluster, "ai-infra", "chat")
    assert (found.pod, found.owner) == ("new-a", "Deployment/chat-0"), "right after a change the old pod is still there"
    assert cluster.logs_asked[0][0] == "new-a", "and its log would be the wrong one"


@pytest.mark.parametrize(
    ("status", "previous"), [(RUNNING, False), (RESTARTED, True)], ids=["first start", "restarted"]
)
def test_the_log_is_that_of_the_container_that_died(status: dict[str, Any], previous: bool) -> None:
    cluster = Cluster(
        deployments=[manifest("chat-0")],
        replicasets=[replica_set("one", 1)],
        pods=[pod("one-a", ("ReplicaSet", "one"), status=status)],
    )
    found = gather(cluster, "ai-infra", "chat")
    assert cluster.logs_asked[0][1]["previous"] == [str(previous).lower()], "the present log knows nothing of the death"
    assert (found.log, found.log_is_previous) == (("a line",), previous), "and it is said which one it is"


def test_a_log_that_cannot_be_read_is_no_empty_log() -> None:
    lists = {"deployments": [manifest("chat-0")], "replicasets": [replica_set("one", 1)]}
    found = gather(
        Cluster(None, **lists, pods=[pod("one-a", ("ReplicaSet", "one"), status=RUNNING)]), "ai-infra", "chat"
    )
    assert found.unread == ("log of vllm: HTTP 500",), "a simulated node has no logs"


def test_events_of_owners_pod_and_claim_are_kept_in_order() -> None:
    def event(kind: str, name: str, when: str, **more: Any) -> dict[str, Any]:
        return {
            "involvedObject": {"kind": kind, "name": name},
            "reason": "R",
            "message": f"{kind} {name}",
            **more,
            **({"lastTimestamp": when} if "eventTime" not in more else {}),
        }

    volumes = [
        {"name": "cache", "persistentVolumeClaim": {"claimName": "chat-cache-0"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    cluster = Cluster(
        deployments=[manifest("chat-0")],
        replicasets=[replica_set("one", 1)],
        pods=[pod("one-a", ("ReplicaSet", "one"), status=RUNNING, spec={"volumes": volumes})],
        events=[
            event("Pod", "one-a", "3.5Z", count=6),
            event("PersistentVolumeClaim", "chat-cache-0", "3Z"),
            event("Deployment", "chat-0", "0"),
            event("Pod", "other", "2"),
            event("ReplicaSet", "one", "", eventTime="2", lastTimestamp=None, series={"count": 4}),
        ],
    )
    found = gather(cluster, "ai-infra", "chat").events
    assert [one.of for one in found] == [
        "Deployment/chat-0",
        "ReplicaSet/one",
        "PersistentVolumeClaim/chat-cache-0",
        "Pod/one-a",
    ], "only what belongs to this start, oldest first"
    assert [one.count for one in found] == [1, 4, 1, 6], "both ways of counting are read"


def test_before_there_is_a_server_the_seed_that_failed_is_read() -> None:
    cluster = Cluster(
        pods=[
            pod("seed-1", ("Job", "chat-seed-0"), "1", component="seed", status={"phase": "Failed"}),
            pod("seed-2", ("Job", "chat-seed-0"), "2", component="seed", status={"phase": "Failed"}),
            pod("pull-a", ("DaemonSet", "chat-pre-pull"), "0", component="pre-pull", status=READY),
        ]
    )
    found = gather(cluster, "ai-infra", "chat")
    assert (found.pod, found.owner) == ("seed-2", "Job/chat-seed-0"), "the newest attempt of what did not end well"


def test_a_seed_that_succeeded_after_a_retry_is_not_read() -> None:
    cluster = Cluster(
        deployments=[manifest("chat-0")],
        replicasets=[replica_set("one", 1)],
        pods=[
            pod("one-a", ("ReplicaSet", "one"), status=READY),
            pod("seed-1", ("Job", "chat-seed-0"), "1", component="seed", status={"phase": "Failed"}),
            pod("seed-2", ("Job", "chat-seed-0"), "2", component="seed", status={"phase": "Succeeded"}),
        ],
    )
    assert gather(cluster, "ai-infra", "chat").pod == "one-a", "everything is well"


def test_an_old_pod_that_is_stopping_is_no_new_one() -> None:
    stopping = pod("one-a", ("ReplicaSet", "one"), status=RUNNING, metadata={"deletionTimestamp": "1"})
    cluster = Cluster(deployments=[manifest("chat-0")], replicasets=[replica_set("one", 1)], pods=[stopping])
    found = gather(cluster, "ai-infra", "chat")
    assert (found.pod, found.stopping) == ("", ("one-a",)), "its log would be of the last start"


def test_an_unreachable_cluster_is_told_and_not_raised() -> None:
    def silent(_: str) -> str:
        raise Unread("the cluster does not answer")

    found = gather(silent, "ai-infra", "chat")
    assert found.unread[0] == "deployments: the cluster does not answer", (
        "a hook must not fail over the reason of a failure"
    )
    assert diagnose(found).id == "unread", "and it is not taken for a missing pod"


def test_a_start_is_read_and_understood_as_a_whole() -> None:
    cluster = Cluster(
        log=f"{NORMAL}\n",
        deployments=[manifest("chat-0")],
        replicasets=[replica_set("one", 1)],
        pods=[pod("one-a", ("ReplicaSet", "one"), status=RESTARTED)],
        events=[
            {
                "involvedObject": {"kind": "Pod", "name": "one-a"},
                "reason": "Killing",
                "message": "Container vllm failed startup probe, will be restarted",
                "lastTimestamp": "1",
            }
        ],
    )
    assert diagnose(gather(cluster, "ai-infra", "chat")).id == "startup-probe", "from status, event and previous log"


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, "a line", "a line"),
        (
            400,
            '{"kind": "Status", "message": "container is waiting to start"}',
            "HTTP 400 container is waiting to start",
        ),
        (500, "<html>", "HTTP 500"),
    ],
)
def test_the_answer_of_the_api_server_is_passed_on(status: int, body: str, said: str) -> None:
    lists = {"deployments": [manifest("chat-0")], "replicasets": [replica_set("one", 1)]}
    cluster = Cluster("", **lists, pods=[pod("one-a", ("ReplicaSet", "one"), status=RUNNING)])
    with api_server(lambda _: (status, body)) as address, client_of(address) as api:
        found = gather(lambda path: diagnosis.get(api, path) if "/log?" in path else cluster(path), "ai-infra", "chat")
    assert said in (*found.log, *(line.removeprefix("log of vllm: ") for line in found.unread)), (
        "its own words, or the log"
    )
