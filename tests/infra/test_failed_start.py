"""The hook that explains a failed roll-out: it says what is known, and never stands in the engine's way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pulumi
import pytest

from infra import failed_start
from infra.diagnosis import diagnose, in_stack_file, read_facts, render
from infra.failed_start import explain_failed_start
from infra.live import connect
from planner.spec import ClusterSpec
from tests.infra.api_server import api_server
from tests.recorder import record
from tests.stack_files import config

ARGS = pulumi.ErrorHookArgs(
    urn="urn:pulumi:lab-3060::vllm::kubernetes:apps/v1:Deployment::qwen-0",
    id="ai-infra/qwen-0",
    name="qwen-0",
    type="kubernetes:apps/v1:Deployment",
    new_inputs=None,
    old_inputs=None,
    old_outputs=None,
    failed_operation="create",
    errors=["timed out"],
)
OWNED = {"name": "qwen-0", "uid": "1", "labels": {}}
LISTS = {
    "deployments": [{"metadata": OWNED, "spec": {}, "status": {}}],
    "replicasets": [{"metadata": {**OWNED, "ownerReferences": [{"kind": "Deployment", "name": "qwen-0", "uid": "1"}]}}],
    "pods": [
        {
            "metadata": {**OWNED, "ownerReferences": [{"kind": "ReplicaSet", "name": "qwen-0", "uid": "1"}]},
            "spec": {},
            "status": {
                "containerStatuses": [
                    {"name": "vllm", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
                ]
            },
        }
    ],
}


def killed_for_want_of_memory(path: str) -> tuple[int, str]:
    """Answers of a cluster in which the server was killed at its memory limit."""
    return 200, json.dumps({"items": LISTS.get(urlsplit(path).path.rsplit("/", maxsplit=1)[-1], [])})


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is said to the engine: level and text."""
    lines: list[tuple[str, str]] = []
    monkeypatch.setattr(pulumi.log, "error", lambda text: lines.append(("error", text)))
    monkeypatch.setattr(pulumi.log, "warn", lambda text: lines.append(("warn", text)))
    return lines


def cluster(folder: Path, address: str, context: str = "lab-3060") -> ClusterSpec:
    """The cluster of a shipped stack, behind that address; the kubeconfig knows ``context``."""
    kubeconfig = {
        "clusters": [{"name": "lab", "cluster": {"server": address}}],
        "users": [{"name": "lab", "user": {}}],
        "contexts": [{"name": context, "context": {"cluster": "lab", "user": "lab"}}],
        "current-context": context,
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(kubeconfig), encoding="utf-8")
    return config().cluster.model_copy(update={"kubeconfig": str(path)})


def hook(where: ClusterSpec) -> pulumi.ErrorHook:
    """The hook of the server qwen-0, as a program makes it."""
    made: list[pulumi.ResourceHookBinding] = []
    record(lambda: made.append(explain_failed_start(where, "qwen", "lab", 0)))
    bound = {when: hooks for when, hooks in vars(made[0]).items() if hooks}
    assert bound.keys() == {"on_error"}, "it is called when the roll-out fails, and at no other time"
    (one,) = bound["on_error"]
    return one


def test_a_failed_start_is_explained(tmp_path: Path, said: list[tuple[str, str]]) -> None:
    with api_server(killed_for_want_of_memory) as address:
        where = cluster(tmp_path, address)
        again = hook(where)(ARGS)
        with connect(where) as api:
            expected = render(in_stack_file(diagnose(read_facts(api, where.namespace, "qwen")), "lab"))
    assert said == [("error", expected)], "what `vllm-infra diagnose` says, once"
    assert "the kernel killed the container at its memory limit" in expected, "the reason"
    assert "vllm:services.qwen.resources.memoryLimit" in expected, "the key to change, as it stands in the stack file"
    assert again is False, "the same start would fail again"


def test_a_cluster_that_refuses_is_explained_too(tmp_path: Path, said: list[tuple[str, str]]) -> None:
    with api_server(lambda _: (403, '{"message": "pods is forbidden"}')) as address:
        assert hook(cluster(tmp_path, address))(ARGS) is False, "nothing is tried again"
    ((level, text),) = said
    assert level == "error", "a diagnosis, whose reason is that nothing could be read"
    assert "HTTP 403 pods is forbidden" in text, "and by whose word"


@pytest.mark.parametrize(
    ("answer", "context", "reason"),
    [
        (killed_for_want_of_memory, "lab-3061", "the stack expects 'lab-3060'"),
        (lambda _: (200, "<html>"), "lab-3060", "JSONDecodeError"),
        (lambda _: (200, "{}"), "lab-3060", "'items'"),
    ],
    ids=["another kubeconfig", "no JSON", "no list"],
)
def test_a_reason_that_cannot_be_read_is_one_line(
    tmp_path: Path,
    said: list[tuple[str, str]],
    answer: Callable[[str], tuple[int, str]],
    context: str,
    reason: str,
) -> None:
    with api_server(answer) as address:
        assert hook(cluster(tmp_path, address, context))(ARGS) is False, "an exception would be shown as the error"
    ((level, text),) = said
    assert level == "warn", "the error is the engine's"
    assert text.startswith("qwen-0: why it failed cannot be read: "), "which server"
    assert reason in text, "and why not"
    assert "\n" not in text, "the engine's own error stays in sight"


def test_the_line_has_no_secret_and_is_one(
    tmp_path: Path, said: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: ClusterSpec) -> None:
        raise OSError("cannot log in\n  Authorization: Bearer sk-very-secret")

    monkeypatch.setattr(failed_start, "connect", refuse)
    assert hook(cluster(tmp_path, "http://127.0.0.1:1"))(ARGS) is False, "nothing is tried again"
    assert said == [
        ("warn", "qwen-0: why it failed cannot be read: OSError: cannot log in Authorization: Bearer ***")
    ], "the output of `pulumi up` is kept by CI"
