"""What is read of a start, what is kept of it, and that no secret is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from infra.cold_start import EvidenceError, gather, load, save, starts_of
from infra.diagnosis import Unread
from tests.infra.cold_start import starts as made

TOKEN = "hf_" + "a" * 30
KEY = "sk-local-0123456789abcdefghij"


def replica_set(name: str, revision: int, deployment: str = "qwen-0") -> dict[str, Any]:
    owner = {"kind": "Deployment", "name": deployment, "uid": deployment}
    annotations = {"deployment.kubernetes.io/revision": str(revision)}
    return {"metadata": {"name": name, "annotations": annotations, "ownerReferences": [owner]}}


def pod_of(replica_set_name: str, name: str, created: float = 0, **status: Any) -> dict[str, Any]:
    pod = made.pod(2, 80)
    pod["metadata"] |= {"name": name, "creationTimestamp": made.whole(created)}
    pod["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": replica_set_name, "uid": replica_set_name}]
    pod["status"]["containerStatuses"][0] |= status
    return pod


class Cluster:
    """Answers what is asked of it, page by page, and keeps what was asked of logs."""

    def __init__(self, page: int = 500, refuse: tuple[str, ...] = (), **lists: list[dict[str, Any]]) -> None:
        self.lists, self.page, self.refuse = lists, page, refuse
        self.asked: list[tuple[str, dict[str, list[str]]]] = []

    def __call__(self, path: str) -> str:
        parts = urlsplit(path)
        query, last = parse_qs(parts.query), parts.path.rsplit("/", maxsplit=1)[-1]
        if last in self.refuse:
            raise Unread("HTTP 403 forbidden")
        if last in ("log", "metrics"):
            self.asked.append((parts.path, query))
            return f"{parts.path.split('/')[6]} {last} --api-key {KEY} {TOKEN}\n"
        begin = int(query.get("continue", ["0"])[0])
        items = self.lists.get(last, [])
        more = str(begin + self.page) if begin + self.page < len(items) else ""
        return json.dumps({"metadata": {"continue": more}, "items": items[begin : begin + self.page]})


def test_the_pod_of_the_newest_replica_set_is_read() -> None:
    pods = [pod_of("old", "qwen-0-old-1", 500), pod_of("new", "qwen-0-new-1"), pod_of("other", "qwen-1-other-1", 900)]
    sets = [replica_set("old", 9), replica_set("new", 10), replica_set("other", 30, "qwen-1")]
    cluster = Cluster(pods=pods, replicasets=sets)
    found = gather(cluster, "vllm", "qwen", 0)
    assert found.pod is not None
    assert found.pod["metadata"]["name"] == "qwen-0-new-1", "a Deployment's log right after a change is the old pod's"
    path, query = cluster.asked[0]
    assert path.endswith("/pods/qwen-0-new-1/log")
    assert query["timestamps"] == ["true"], "only the kubelet's stamps can be compared with the pod's"
    assert int(query["limitBytes"][0]) >= 1_000_000, "counted from the log's beginning"
    assert "tailLines" not in query, "a start is at the beginning of a log"
    assert found.metrics is not None, "Ready: the page can be asked for"
    assert cluster.asked[-1][0].endswith("qwen-0-new-1:8000/proxy/metrics")
    assert found.previous_log is None, "nothing was restarted"


def test_a_pod_that_is_going_is_not_the_newest() -> None:
    going = pod_of("new", "qwen-0-new-1", 900)
    going["metadata"]["deletionTimestamp"] = made.whole(950)
    found = gather(Cluster(pods=[going], replicasets=[replica_set("new", 1)]), "vllm", "qwen", 0)
    assert found.pod is None
    assert any("has none yet" in reason for reason in found.unread), "and the old pod's log is not taken for it"


def test_after_a_restart_the_container_before_is_read_as_well() -> None:
    pods = [pod_of("new", "qwen-0-new-1", restartCount=1, lastState={"terminated": {"exitCode": 137}})]
    cluster = Cluster(pods=pods, replicasets=[replica_set("new", 1)])
    assert gather(cluster, "vllm", "qwen", 0).previous_log is not None
    assert [query["previous"] for path, query in cluster.asked if path.endswith("/log")] == [["false"], ["true"]]


def test_the_seed_jobs_log_and_events_of_all_who_took_part_are_read() -> None:
    seed = made.pod(2, None)
    seed["metadata"] |= {"name": "qwen-seed-0-default-abc-x1", "ownerReferences": []}
    events = [
        made.event("Pulled", "m", 1, name)
        for name in ("qwen-0-new-1", "qwen-pre-pull-z", "qwen-seed-0-default-abc-x1", "qwen-1-b", "chat-0-c")
    ]
    cluster = Cluster(
        page=2, pods=[pod_of("new", "qwen-0-new-1"), seed], replicasets=[replica_set("new", 1)], events=events
    )
    found = gather(cluster, "vllm", "qwen", 0)
    assert found.seed_log is not None
    kept = [event["involvedObject"]["name"] for event in found.events]
    assert kept == ["qwen-0-new-1", "qwen-pre-pull-z", "qwen-seed-0-default-abc-x1"], (
        "all pages, and no other service's"
    )


@pytest.mark.parametrize("refused", ["events", "log", "metrics", "pods", "replicasets"])
def test_what_cannot_be_read_is_said_and_the_rest_is_there(refused: str) -> None:
    cluster = Cluster(refuse=(refused,), pods=[pod_of("new", "qwen-0-new-1")], replicasets=[replica_set("new", 1)])
    found = gather(cluster, "vllm", "qwen", 0)
    assert any("403" in reason for reason in found.unread), found.unread


def test_no_secret_is_kept(tmp_path: Path) -> None:
    pod = pod_of("new", "qwen-0-new-1")
    pod["spec"]["containers"][0]["env"] = [{"name": "MY_PASSWORD", "value": "open sesame"}, {"name": "A", "value": "b"}]
    events = [made.event("Failed", f"https://user:secretword@host/x {TOKEN}", 1, "qwen-0-new-1")]
    cluster = Cluster(pods=[pod], replicasets=[replica_set("new", 1)], events=events)
    save(gather(cluster, "vllm", "qwen", 0), tmp_path / "start")
    kept = "".join(path.read_text("utf-8") for path in (tmp_path / "start").iterdir())
    for secret in (TOKEN, KEY, "secretword", "open sesame"):
        assert secret not in kept, f"{secret} was written to a file that people send around"
    assert '"value": "b"' in kept, "what is no secret stays"


@pytest.mark.parametrize("name", made.L40S)
def test_a_saved_start_is_measured_as_the_live_one(name: str, tmp_path: Path) -> None:
    evidence = made.measured(name, previous_log=None, seed_log=made.seed_line(10, 1), metrics="x 1\n")
    save(evidence, tmp_path / "start")
    loaded = load(tmp_path / "start", "qwen", 0)
    assert starts_of(loaded) == starts_of(evidence), "nothing that counts is lost"
    assert (loaded.seed_log, loaded.metrics) == (evidence.seed_log, evidence.metrics)


def test_what_kubectl_saved_is_read(tmp_path: Path) -> None:
    evidence = made.measured("weights")
    old = {**made.pod(2, 80), "metadata": {"name": "qwen-0-old-1", "creationTimestamp": made.whole(-900)}}
    (tmp_path / "pod.json").write_text(json.dumps({"kind": "List", "items": [old, evidence.pod]}), "utf-8")
    (tmp_path / "log.txt").write_text(evidence.log or "", "utf-8")
    loaded = load(tmp_path, "qwen", 0)
    assert loaded.pod is not None
    assert loaded.pod["metadata"]["name"] == "qwen-0-abc-1", "of a list the newest pod"
    assert loaded.unread == ("events.json: not in the folder",)
    assert starts_of(loaded)[0].seconds("image") is None, "no events: unknown"


@pytest.mark.parametrize(
    ("files", "service", "words"),
    [
        (None, "qwen", "no folder"),
        ({}, "qwen", "holds none of"),
        ({"pod.json": "{"}, "qwen", "no JSON"),
        ({"about.json": '{"service": "chat"}', "log.txt": "x"}, "qwen", "of chat, replica 0"),
    ],
)
def test_a_folder_that_is_none_is_refused(
    files: dict[str, str] | None, service: str, words: str, tmp_path: Path
) -> None:
    folder = tmp_path / "start"
    if files is not None:
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text, "utf-8")
    with pytest.raises(EvidenceError, match=words):
        load(folder, service, 0)


def test_two_starts_are_not_mixed_in_one_folder(tmp_path: Path) -> None:
    save(made.measured("weights"), tmp_path / "start")
    with pytest.raises(EvidenceError, match="not empty"):
        save(made.measured("image"), tmp_path / "start")
