"""A secret that changes rolls the pod, one that does not leaves it, and none is ever readable."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.engine.conftest import NewStack
from tests.engine.driver import Stack, until

pytestmark = pytest.mark.engine

API_KEY = "sk-correct-horse-battery-staple"
OTHER_API_KEY = "sk-incorrect-horse-battery-staple"
HF_TOKEN = "hf_correcthorsebatterystaple"
OTHER_HF_TOKEN = "hf_incorrecthorsebatterystaple"
SECRETS = (API_KEY, OTHER_API_KEY, HF_TOKEN, OTHER_HF_TOKEN)


@pytest.mark.parametrize(
    ("key", "entry", "value", "other"),
    [("apiKey", "key", API_KEY, OTHER_API_KEY), ("hfToken", "token", HF_TOKEN, OTHER_HF_TOKEN)],
)
def test_only_a_changed_secret_rolls_the_pod(new_stack: NewStack, key: str, entry: str, value: str, other: str) -> None:
    stack = new_stack(f"secret-{entry}")
    # A server that may ask the hub is one that gets the token.
    stack.write({"services.qwen.offline": False})
    stack.set_secret(key, value)
    stack.up()
    pod, secret = stack.server_pod(), stack.secrets(entry)
    assert [_text(one, entry) for one in secret] == [value], "the Secret holds what was set"

    stack.set_secret(key, value)
    answer = stack.up()
    assert answer.changes == (), "the same value, encrypted again, is the same"
    assert stack.server_pod()["metadata"]["uid"] == pod["metadata"]["uid"], "the server was left alone"

    stack.set_secret(key, other)
    stack.up()
    new_pod, new_secret = stack.server_pod(), stack.secrets(entry)
    assert new_pod["metadata"]["uid"] != pod["metadata"]["uid"], "a running server reads its environment only once"
    assert [_text(one, entry) for one in new_secret] == [other], "one Secret, the old one is gone"
    assert new_secret[0]["metadata"]["name"] != secret[0]["metadata"]["name"], "the name is what rolls the pod"
    references = [
        variable["valueFrom"]["secretKeyRef"]["name"]
        for variable in new_pod["spec"]["containers"][0]["env"]
        if "valueFrom" in variable
    ]
    assert references == [new_secret[0]["metadata"]["name"]], "the pod refers to the new one"
    stack.preview("--expect-no-changes")


def _text(secret: dict[str, dict[str, str]], entry: str) -> str:
    return base64.b64decode(secret["data"][entry]).decode()


@pytest.fixture(scope="module")
def life(shared_stack: NewStack) -> tuple[Stack, Path]:
    """A stack's whole life with secrets, and the home folder that it had."""
    stack = shared_stack("life")
    home = stack.folder / "home"
    for name, text in (
        (".kube/config", "current-context: precious\n"),
        (".pulumi/credentials.json", '{"current": ""}'),
    ):
        (home / name).parent.mkdir(parents=True)
        (home / name).write_text(text)
    stack.variables["HOME"] = str(home)
    stack.set_secret("apiKey", API_KEY)
    stack.set_secret("hfToken", HF_TOKEN)
    stack.preview()
    stack.preview("--diff")
    stack.up()
    stack.set_secret("apiKey", OTHER_API_KEY)
    stack.set_secret("hfToken", OTHER_HF_TOKEN)
    stack.preview("--diff")
    stack.up()
    stack.run("stack", "export")
    stack.run("stack", "output", "--json")
    return stack, home


def test_no_secret_is_readable_anywhere(life: tuple[Stack, Path]) -> None:
    stack, _ = life
    places = ("backend", "logs", "stacks")
    files = [file for place in places for file in (stack.folder / place).rglob("*") if file.is_file()]
    assert {file.suffix for file in files} >= {".json", ".txt", ".yaml"}, "state, event logs, output and stack file"
    assert any('"ciphertext"' in file.read_text() for file in files), "the state holds them, encrypted"
    for secret in SECRETS:
        for spelling in (secret, base64.b64encode(secret.encode()).decode()):
            readable = [str(file.relative_to(stack.folder)) for file in files if spelling in file.read_text()]
            assert readable == [], "a secret is in the clear in the Secret of the cluster only"


def test_no_secret_is_in_a_manifest(life: tuple[Stack, Path]) -> None:
    stack, _ = life
    kinds = "pods,deployments,replicasets,daemonsets,jobs,configmaps,events"
    manifests = stack.cluster.kubectl("get", kinds, "-n", stack.name, "-o", "yaml")
    assert "secretKeyRef" in manifests, "the pods refer to the Secrets"
    assert [secret for secret in SECRETS if secret in manifests] == [], "by name only"


def test_the_home_is_left_as_it_is(life: tuple[Stack, Path]) -> None:
    stack, home = life
    stack.destroy()
    until(lambda: not stack.find("pod"), "the pods go")
    files = {str(file.relative_to(home)): file.read_text() for file in home.rglob("*") if file.is_file()}
    assert files == {
        ".kube/config": "current-context: precious\n",
        ".pulumi/credentials.json": '{"current": ""}',
    }, "the user's kubeconfig and Pulumi login are nobody's business"
