"""What `vllm-infra recover` makes of the state that a killed `pulumi up` leaves."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from kubernetes import client

from infra import recovery
from infra.recovery import KubernetesObject, LookUp, RecoveryError, recover, settle

PREFIX = "urn:pulumi:demo::vllm::"
PROVIDER = f"{PREFIX}pulumi:providers:kubernetes::cluster"
SECRET_MARK = {recovery.SIGNATURE: recovery.SECRET_SIGNATURE}
CIPHERTEXT = {**SECRET_MARK, "ciphertext": "v1:nonce:opaque"}
MANAGER = "pulumi-kubernetes-0badcafe"


def resource(kind: str, name: str, *, identity: str = "", **more: Any) -> dict[str, Any]:
    """A resource as the engine writes it; the object has the resource's own name unless inputs say more."""
    group = {"Secret": "core/v1", "Deployment": "apps/v1", "Namespace": "core/v1"}[kind]
    metadata = {"name": name} if kind == "Namespace" else {"name": name, "namespace": "ai-infra"}
    return {
        "urn": f"{PREFIX}kubernetes:{group}:{kind}::{more.pop('role', name)}",
        "custom": True,
        "type": f"kubernetes:{group}:{kind}",
        "inputs": {
            "apiVersion": group.removeprefix("core/"),
            "kind": kind,
            "metadata": metadata,
            **more.pop("inputs", {}),
        },
        "provider": f"{PROVIDER}::id",
        **({"id": identity} if identity else {}),
        **more,
    }


def secret(name: str, **more: Any) -> dict[str, Any]:
    return resource("Secret", name, role="api-key", inputs={"stringData": {"key": CIPHERTEXT}}, **more)


def component() -> dict[str, Any]:
    return {"urn": f"{PREFIX}vllm:index:VllmServer::chat", "custom": False, "type": "vllm:index:VllmServer"}


def provider() -> dict[str, Any]:
    return {"urn": PROVIDER, "custom": True, "type": "pulumi:providers:kubernetes", "inputs": {"context": "demo"}}


def export(*operations: tuple[str, dict[str, Any]], resources: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    pending = [{"resource": item, "type": kind} for kind, item in operations]
    return {"version": 3, "deployment": {"manifest": {}, "resources": list(resources), "pending_operations": pending}}


def live(
    kind: str, name: str, managers: tuple[tuple[str, str, str], ...] = (("Apply", MANAGER, "1"),), **more: Any
) -> Any:
    fields = [{"operation": operation, "manager": manager, "time": time} for operation, manager, time in managers]
    return {
        "kind": kind,
        "metadata": {"name": name, "uid": "u-1", "managedFields": fields, **more.pop("metadata", {})},
        **more,
    }


def cluster(*objects: Any) -> LookUp:
    known = {(item["kind"], item["metadata"]["name"]): item for item in objects}
    return lambda place: known.get((place.kind, place.name))


def resources_of(deployment: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = deployment["deployment"]["resources"]
    return found


def test_a_pending_create_whose_object_exists_is_adopted() -> None:
    state = export(("creating", resource("Deployment", "chat-0")))
    settled, outcomes = settle(state, cluster(live("Deployment", "chat-0", status={"replicas": 1})))
    (entry,) = resources_of(settled)
    assert entry["id"] == "ai-infra/chat-0", "the provider names an object NAMESPACE/NAME"
    assert entry["outputs"]["__fieldManager"] == MANAGER, (
        "another field manager would be in conflict at the next change"
    )
    assert entry["outputs"]["__inputs"] == entry["inputs"], "the provider's diff starts from what was asked for"
    assert entry["outputs"]["metadata"]["uid"] == "u-1", "the outputs are the live object"
    assert entry["initErrors"], "without them the next `up` would not wait until it is ready"
    assert "pending_operations" not in settled["deployment"], "nothing stays pending"
    assert [outcome.action for outcome in outcomes] == ["adopted"], "one outcome for each operation"


def test_an_object_of_the_whole_cluster_has_an_id_without_namespace() -> None:
    settled, _ = settle(export(("creating", resource("Namespace", "ai-infra"))), cluster(live("Namespace", "ai-infra")))
    assert resources_of(settled)[0]["id"] == "ai-infra", "a namespace is in no namespace"


def test_a_pending_create_whose_object_does_not_exist_is_cleared() -> None:
    settled, outcomes = settle(export(("creating", resource("Deployment", "chat-0"))), cluster())
    assert resources_of(settled) == [], "what was never made must not be in the state"
    assert outcomes[0].action == "cleared", "the next `up` creates it"


def test_an_autonamed_secret_is_adopted_under_its_recorded_name() -> None:
    found = live("Secret", "api-key-1a2b3c4d", data={"key": "c2stdmVyeQ=="})
    settled, _ = settle(export(("creating", secret("api-key-1a2b3c4d"))), cluster(found))
    (entry,) = resources_of(settled)
    assert entry["id"] == "ai-infra/api-key-1a2b3c4d", (
        "else the next `up` would make a second Secret and forget this one"
    )
    assert entry["inputs"]["stringData"]["key"] == CIPHERTEXT, "what was encrypted stays encrypted"
    assert entry["outputs"]["data"] == {**SECRET_MARK, "plaintext": '{"key": "c2stdmVyeQ=="}'}, (
        "the live data is marked as a secret, so that the engine encrypts it on import"
    )


def test_a_live_field_that_may_repeat_a_secret_input_is_a_secret() -> None:
    inputs = {"spec": {"template": {"env": [{"name": "K", "value": CIPHERTEXT}]}}}
    found = live("Deployment", "chat-0", spec={"template": {"env": "sk-very"}}, status={"replicas": 1})
    settled, _ = settle(export(("creating", resource("Deployment", "chat-0", inputs=inputs))), cluster(found))
    outputs = resources_of(settled)[0]["outputs"]
    assert outputs["spec"] == {**SECRET_MARK, "plaintext": '{"template": {"env": "sk-very"}}'}, (
        "its input has a secret inside"
    )
    assert outputs["status"] == {"replicas": 1}, "the status repeats no input"


@pytest.mark.parametrize(
    ("managers", "manager"),
    [
        (
            (
                ("Apply", "pulumi-kubernetes-1", "2026-01-01T00:00:01Z"),
                ("Apply", "pulumi-vllm", "2026-01-01T00:00:02Z"),
            ),
            "pulumi-vllm",
        ),
        (
            (("Update", "kube-controller-manager", "2026-01-01T00:00:09Z"), ("Apply", MANAGER, "2026-01-01T00:00:01Z")),
            MANAGER,
        ),
        ((("Apply", "kubectl", "2026-01-01T00:00:01Z"),), None),
        ((("Update", "pulumi-kubernetes", "2026-01-01T00:00:01Z"),), None),
        ((), None),
    ],
    ids=["the newest of two", "not a controller", "somebody else's apply", "not applied", "nobody"],
)
def test_the_field_manager_is_the_one_that_pulumi_applied_with(
    managers: tuple[tuple[str, str, str], ...], manager: str | None
) -> None:
    found = live("Deployment", "chat-0", managers)
    assert recovery.field_manager(found) == manager, "only Pulumi's own apply says under which name it works"


def test_an_object_that_pulumi_never_wrote_is_not_adopted() -> None:
    foreign = live("Deployment", "chat-0", (("Apply", "helm", "1"),))
    settled, outcomes = settle(export(("creating", resource("Deployment", "chat-0"))), cluster(foreign))
    assert resources_of(settled) == [], "a foreign object must not come under our control through a recovery"
    assert outcomes[0].action == "cleared", "the preview's look at the cluster judges it"


def test_a_create_that_a_later_run_has_done_is_cleared() -> None:
    done = resource("Deployment", "chat-0", identity="ai-infra/chat-0")
    settled, outcomes = settle(
        export(("creating", resource("Deployment", "chat-0")), resources=(done,)),
        lambda _: pytest.fail("there is nothing to ask the cluster"),
    )
    assert resources_of(settled) == [done], "the engine keeps a pending create through later runs; the state has it"
    assert outcomes[0].action == "cleared", "it was done by a later run"


def test_the_second_object_of_a_role_is_entered_for_deletion() -> None:
    old = secret("api-key-old", identity="ai-infra/api-key-old")
    settled, outcomes = settle(
        export(("creating", secret("api-key-new")), resources=(old,)), cluster(live("Secret", "api-key-new", data={}))
    )
    first, second = resources_of(settled)
    assert first == old, "the server still uses the old Secret"
    assert (second["id"], second["delete"]) == ("ai-infra/api-key-new", True), "the next `up` deletes what nothing uses"
    assert outcomes[0].action == "superseded", "one object for each role"


def test_a_replacement_takes_the_place_of_what_was_deleted_for_it() -> None:
    deleted = resource("Deployment", "chat-0", identity="ai-infra/chat-0", pendingReplacement=True)
    dependent = resource("Namespace", "other", identity="other", dependencies=[deleted["urn"]])
    settled, _ = settle(
        export(("creating", resource("Deployment", "chat-0")), resources=(deleted, dependent)),
        cluster(live("Deployment", "chat-0")),
    )
    first, second = resources_of(settled)
    assert first["urn"] == deleted["urn"], "what depends on it must come after it"
    assert not first.get("pendingReplacement"), "the new object is there"
    assert second == dependent, "others are untouched"


def test_an_interrupted_update_is_written_again_by_the_next_up() -> None:
    old = resource("Deployment", "chat-0", identity="ai-infra/chat-0")
    settled, outcomes = settle(export(("updating", dict(old)), resources=(old,)), cluster())
    (entry,) = resources_of(settled)
    assert entry["initErrors"], "else an `up` of the old program would find no difference and leave half an update"
    assert {**entry, "initErrors": None} == {**old, "initErrors": None}, "the state still says what was before"
    assert outcomes[0].action == "repeated", "and says so"


def test_a_deletion_that_ended_is_entered_as_ended() -> None:
    old = resource("Deployment", "chat-0", identity="ai-infra/chat-0")
    settled, outcomes = settle(export(("deleting", dict(old)), resources=(old,)), cluster())
    assert resources_of(settled) == [{**old, "pendingReplacement": True}], (
        "an `up` after it must create the object again"
    )
    assert outcomes[0].action == "removed", "the object is gone"


def test_a_deletion_that_did_not_begin_is_cleared() -> None:
    old = resource("Deployment", "chat-0", identity="ai-infra/chat-0")
    settled, outcomes = settle(export(("deleting", dict(old)), resources=(old,)), cluster(live("Deployment", "chat-0")))
    assert (resources_of(settled), outcomes[0].action) == ([old], "cleared"), "the object is there, as the state says"


def test_the_deletion_of_a_replaced_object_is_left_to_the_next_up() -> None:
    new = secret("api-key-new", identity="ai-infra/api-key-new")
    old = secret("api-key-old", identity="ai-infra/api-key-old", delete=True)
    settled, outcomes = settle(export(("deleting", dict(old)), resources=(new, old)), cluster())
    assert resources_of(settled) == [new, old], "the engine deletes it again, and an absent object counts as deleted"
    assert outcomes[0].action == "cleared", "the new Secret must not be taken for the deleted one"


@pytest.mark.parametrize("item", [component(), provider()], ids=["a component", "a provider"])
def test_what_is_no_object_of_the_cluster_is_cleared(item: dict[str, Any]) -> None:
    settled, outcomes = settle(export(("creating", item)), lambda _: pytest.fail("there is nothing to look up"))
    assert (resources_of(settled), outcomes[0].action) == ([], "cleared"), "the next `up` makes it, at no cost"


def test_an_export_is_not_changed_in_place() -> None:
    state = export(("creating", resource("Deployment", "chat-0")))
    before = json.dumps(state)
    settle(state, cluster(live("Deployment", "chat-0")))
    assert json.dumps(state) == before, "a failure half way must leave what was read as it was"


def test_every_operation_has_a_line_of_its_own() -> None:
    _, outcomes = settle(
        export(("creating", resource("Deployment", "chat-0")), ("reading", resource("Namespace", "ai-infra"))),
        cluster(),
    )
    assert [str(outcome).split(":")[0] for outcome in outcomes] == ["creating chat-0", "reading ai-infra"], (
        "in their order"
    )


def test_an_object_in_deletion_is_waited_for() -> None:
    going = live("Deployment", "chat-0", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    answers: Iterator[Any] = iter([going, going, None])
    said: list[str] = []
    pauses: list[float] = []
    place = KubernetesObject("apps/v1", "Deployment", "ai-infra", "chat-0")
    assert recovery.waiting(lambda _: next(answers), said.append, pauses.append)(place) is None, "it is gone in the end"
    assert (len(pauses), len(said)) == (2, 1), "said once, not at every look"


def test_an_object_that_never_goes_is_an_error() -> None:
    going = live("Deployment", "chat-0", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    place = KubernetesObject("apps/v1", "Deployment", "ai-infra", "chat-0")
    with pytest.raises(RecoveryError, match=r"Deployment ai-infra/chat-0 is still being deleted"):
        recovery.waiting(lambda _: going, lambda _: None, lambda _: None)(place)


# --- the lock, with real processes ----------------------------------------------------------------


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts a process that sleeps under a name of one's choice."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str) -> subprocess.Popen[bytes]:
        (tmp_path / name).symlink_to(str(shutil.which("sleep")))
        started.append(subprocess.Popen([str(tmp_path / name), "60"]))
        # The kernel closes the pipe that Popen waits for a moment before it sets the new name (fs/exec.c).
        while Path(f"/proc/{started[-1].pid}/comm").read_text().strip() != name[:15]:
            time.sleep(0.01)
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()


def lock(folder: Path, pid: int, host: str = "", stack: str = "demo") -> Path:
    file = folder / ".pulumi" / "locks" / "organization" / "vllm" / stack / "8e0e.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "pid": pid,
        "username": "u",
        "hostname": host or socket.gethostname(),
        "timestamp": "2026-01-01T00:00:00Z",
    }
    file.write_text(json.dumps(content))
    return file


def test_a_lock_of_a_living_pulumi_is_respected(
    tmp_path: Path, process: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    pid = process("pulumi").pid
    with pytest.raises(RecoveryError, match=rf"still works on this stack \(process {pid}"):
        recovery.require_dead(lock(tmp_path, pid))


def test_a_lock_of_a_dead_pulumi_is_not(tmp_path: Path, process: Callable[[str], subprocess.Popen[bytes]]) -> None:
    one = process("pulumi")
    one.kill()
    one.wait()
    recovery.require_dead(lock(tmp_path, one.pid))


def test_a_pulumi_that_ended_but_was_not_waited_for_is_dead(
    tmp_path: Path, process: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    one = process("pulumi")
    one.kill()
    os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
    recovery.require_dead(lock(tmp_path, one.pid))


def test_a_number_that_another_program_has_now_is_no_lock(
    tmp_path: Path, process: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    recovery.require_dead(lock(tmp_path, process("python-or-so").pid))


def test_a_lock_of_another_machine_is_respected(tmp_path: Path) -> None:
    with pytest.raises(RecoveryError, match=r"on elsewhere since .*pulumi cancel"):
        recovery.require_dead(lock(tmp_path, 1, host="elsewhere"))


def test_a_lock_that_cannot_be_read_is_respected(tmp_path: Path) -> None:
    file = lock(tmp_path, 1)
    file.write_text("{")
    with pytest.raises(RecoveryError, match=r"cannot be read"):
        recovery.require_dead(file)


def test_only_the_locks_of_the_stack_count(tmp_path: Path) -> None:
    mine = lock(tmp_path, 1)
    lock(tmp_path, 1, stack="demo-2")
    assert recovery.lock_files(tmp_path, "demo") == [mine], "another stack may be at work at the same time"
    assert recovery.lock_files(tmp_path, "organization/vllm/demo") == [mine], "the full name is the same stack"


def test_half_written_attributes_of_the_stack_are_found(tmp_path: Path) -> None:
    root = tmp_path / ".pulumi"
    texts = {
        "stacks/vllm/demo.json.attrs": "",
        "stacks/vllm/demo.json.bak.attrs": '{"user.content_type": "te',
        "locks/organization/vllm/demo/8e0e.json.attrs": "",
        "history/vllm/demo/demo-1.history.json.attrs": '{"md5": "x"}',
        "stacks/vllm/demo-2.json.attrs": "",
        "stacks/other/demo.json.attrs": "",
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    found = {str(file.relative_to(root)) for file in recovery.torn_attributes(tmp_path, "demo")}
    assert found == set(list(texts)[:3]), "whole ones, and those of other stacks, are none of our business"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("file:///var/state", Path("/var/state")),
        ("file://./state", Path("/work/state")),
        ("file:///var/state?no_tmp_dir=true", Path("/var/state")),
        ("file://~", Path.home()),
        ("s3://bucket/state", None),
        ("https://app.pulumi.com/team", None),
    ],
)
def test_the_folder_of_a_backend(url: str, expected: Path | None) -> None:
    assert recovery.backend_folder(url, Path("/work")) == expected, "only a folder has locks that we can judge"


# --- the cluster, over HTTP ------------------------------------------------------------------------

ANSWERS = {
    "/api/v1": (
        200,
        {"resources": [{"kind": "Namespace", "name": "namespaces"}, {"kind": "Secret", "name": "secrets"}]},
    ),
    "/apis/apps/v1": (
        200,
        {
            "resources": [
                {"kind": "Deployment", "name": "deployments/status"},
                {"kind": "Deployment", "name": "deployments"},
            ]
        },
    ),
    "/api/v1/namespaces/ai-infra": (200, {"kind": "Namespace"}),
    "/apis/apps/v1/namespaces/ai-infra/deployments/chat-0": (200, {"kind": "Deployment"}),
    "/api/v1/namespaces/ai-infra/secrets/hidden": (403, {}),
}


class ApiServer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = ANSWERS.get(self.path, (404, {}))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: Any) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def api() -> Iterator[client.ApiClient]:
    with ThreadingHTTPServer(("127.0.0.1", 0), ApiServer) as server:
        Thread(target=server.serve_forever).start()
        with client.ApiClient(client.Configuration(host=f"http://127.0.0.1:{server.server_port}")) as connection:
            yield connection
        server.shutdown()


@pytest.mark.parametrize(
    ("place", "found"),
    [
        (KubernetesObject("apps/v1", "Deployment", "ai-infra", "chat-0"), True),
        (KubernetesObject("v1", "Namespace", "", "ai-infra"), True),
        (KubernetesObject("apps/v1", "Deployment", "ai-infra", "chat-1"), False),
        (KubernetesObject("apps/v1", "StatefulSet", "ai-infra", "chat-0"), False),
        (KubernetesObject("monitoring.coreos.com/v1", "PodMonitor", "ai-infra", "chat"), False),
    ],
    ids=["in a namespace", "of the cluster", "no such object", "no such kind", "no such API"],
)
def test_an_object_is_read_under_its_name(api: client.ApiClient, place: KubernetesObject, found: bool) -> None:
    assert (recovery.read_object(api, place, "demo") is not None) == found, (
        "absent is what the API server says is absent"
    )


def test_a_refused_read_is_not_taken_for_absence(api: client.ApiClient) -> None:
    with pytest.raises(RecoveryError, match="answers 403"):
        recovery.read_object(api, KubernetesObject("v1", "Secret", "ai-infra", "hidden"), "demo")


def test_an_unreachable_cluster_is_not_taken_for_absence() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        configuration = client.Configuration(host=f"http://127.0.0.1:{unused.getsockname()[1]}")
        configuration.retries = False
        with client.ApiClient(configuration) as connection, pytest.raises(RecoveryError, match="cannot be asked"):
            recovery.read_object(connection, KubernetesObject("v1", "Secret", "ai-infra", "x"), "demo")


# --- the whole, with a `pulumi` that records ------------------------------------------------------

PULUMI = """#!/bin/sh
echo "$*" >> "$RECORD"
case "$1 $2" in
  "whoami --verbose") printf '{"url": "%s"}' "$PULUMI_BACKEND_URL" ;;
  "stack export") cat "$EXPORT" 2>/dev/null || { echo "error: no stack named 'demo' found" >&2; exit 1; } ;;
  "stack import") cat > "$IMPORT" ;;
esac
"""


@pytest.fixture
def pulumi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `pulumi` on PATH that answers from files; returns their folder."""
    program = tmp_path / "bin" / "pulumi"
    program.parent.mkdir()
    program.write_text(PULUMI)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{tmp_path}")
    for name in ("RECORD", "EXPORT", "IMPORT"):
        monkeypatch.setenv(name, str(tmp_path / name))
    return tmp_path


def commands(folder: Path) -> list[str]:
    return [line.removesuffix(" --non-interactive") for line in (folder / "RECORD").read_text().splitlines()]


def test_a_killed_up_is_recovered(pulumi: Path, process: Callable[[str], subprocess.Popen[bytes]]) -> None:
    (pulumi / "EXPORT").write_text(json.dumps(export(("creating", resource("Deployment", "chat-0")))))
    killed = process("pulumi")
    killed.kill()
    killed.wait()
    torn = lock(pulumi, killed.pid).with_suffix(".json.attrs")
    torn.write_text("")
    said: list[str] = []
    outcomes = recover("demo", pulumi, said.append, cluster(live("Deployment", "chat-0")))
    assert commands(pulumi)[1:] == [
        "cancel --yes --stack demo",
        "stack export --stack demo",
        "stack import --stack demo",
    ], "the lock goes first, since an import needs it; secrets are never asked for"
    assert resources_of(json.loads((pulumi / "IMPORT").read_text()))[0]["id"] == "ai-infra/chat-0", (
        "what was settled goes in"
    )
    assert len(outcomes) == 1, "one operation was pending"
    assert not torn.exists(), "Pulumi could not even list its locks with it"
    assert said[2:] == ["creating chat-0: adopted, Deployment ai-infra/chat-0 exists"], "a line for each thing done"


def test_a_stack_in_order_is_left_alone(pulumi: Path) -> None:
    (pulumi / "EXPORT").write_text(json.dumps(export(resources=(component(),))))
    said: list[str] = []
    assert recover("demo", pulumi, said.append, cluster()) == (), "nothing was interrupted"
    assert (commands(pulumi)[1:], said) == (["stack export --stack demo"], []), "neither cancelled nor imported"


def test_a_stack_without_a_deployment_is_left_alone(pulumi: Path) -> None:
    (pulumi / "EXPORT").write_text('{"version": 3}')
    assert recover("demo", pulumi, lambda _: None, cluster()) == (), "a stack that was never up has nothing pending"


def test_a_living_pulumi_is_not_cancelled(pulumi: Path, process: Callable[[str], subprocess.Popen[bytes]]) -> None:
    (pulumi / "EXPORT").write_text(json.dumps(export()))
    lock(pulumi, process("pulumi-under-work").pid)
    with pytest.raises(RecoveryError, match="still works on this stack"):
        recover("demo", pulumi, lambda _: None, cluster())
    assert commands(pulumi) == ["whoami --verbose --json"], "nothing was touched"


def test_an_unreachable_cluster_changes_nothing(pulumi: Path) -> None:
    (pulumi / "EXPORT").write_text(json.dumps(export(("creating", resource("Deployment", "chat-0")))))

    def unreachable(_: KubernetesObject) -> None:
        raise RecoveryError("cannot be asked")

    with pytest.raises(RecoveryError, match="cannot be asked"):
        recover("demo", pulumi, lambda _: None, unreachable)
    assert not (pulumi / "IMPORT").exists(), "not to know is not to know that there is none"


def test_what_pulumi_says_about_a_failure_is_passed_on(pulumi: Path) -> None:
    with pytest.raises(RecoveryError, match=r"stack export.*no stack named 'demo' found"):
        recover("demo", pulumi, lambda _: None, cluster())


def test_without_pulumi_there_is_one_clear_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RecoveryError, match="not on PATH"):
        recover("demo", tmp_path, lambda _: None, cluster())
