"""`vllm-infra pin`: digests from a double of a registry, commits from a double of the hub, and a file that stays a
person's."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from infra.cli import app, pinning
from infra.config import read
from infra.pins import pinned
from infra.registry import RegistryError, digest_of, name_of
from tests.infra.doubles import COMMIT, DIGEST, TOKEN, Hub, Registry, serving
from tests.stack_files import SHIPPED, STACKS

OLD_COMMIT, OLD_DIGEST = "a" * 40, f"sha256:{'0' * 64}"
MODEL = "Qwen/Qwen2.5-7B-Instruct-AWQ"


def answered(text: str, *, update: bool = False) -> tuple[str, list[tuple[str, str | None, str, bool]]]:
    """A file with its pins filled in by answers that are always the same."""
    result, pins = pinned(text, lambda _repository, _tag: DIGEST, lambda _model, _revision: COMMIT, update=update)
    return result, [(pin.path, pin.old, pin.new, pin.written) for pin in pins]


# --- the file


@pytest.mark.parametrize("stack", SHIPPED)
def test_a_shipped_file_gets_lines_and_loses_nothing(stack: str, tmp_path: Path) -> None:
    before = (STACKS / f"Pulumi.{stack}.yaml").read_text()
    after, pins = answered(before)
    added = [line for line in after.splitlines() if line not in before.splitlines()]
    kept = [line for line in after.splitlines() if line.strip() not in {one.strip() for one in added}]
    assert {line.split(":")[0].strip() for line in added} <= {"digest", "revision"}, f"only pins are added: {added}"
    assert "\n".join(kept) + "\n" == before, "comments, order, quotes, numbers and blank lines are as they were"
    file = tmp_path / f"Pulumi.{stack}.yaml"
    file.write_text(after)
    config, _ = read(file)
    assert len(pins) == 2 * len(config.services), "an image and a model for each service"
    shipped, _ = read(STACKS / f"Pulumi.{stack}.yaml")
    for name, service in config.services.items():
        commit = shipped.services[name].model.revision or COMMIT
        assert (service.image.digest, service.model.revision) == (DIGEST, commit), "and the file is valid"


STYLE = """\
# kept
config:
    vllm:services:
        chat:   # the only one
            model:
                id: "acme/tiny"

            # about the image
            image:
                tag: v0.31.0 # newest

            engine:
                gpuMemoryUtilization: 0.80
                extraArgs:
                    - "--max-logprobs"
                    - '40'
encryptionsalt: v1:x
"""


def test_a_file_in_another_style_keeps_it() -> None:
    after, _ = answered(STYLE)
    expected = STYLE.replace('"acme/tiny"\n', f'"acme/tiny"\n                revision: {COMMIT}\n').replace(
        "# newest\n", f"# newest\n                digest: {DIGEST}\n"
    )
    assert after == expected, "a pin stands below what it pins, above the blank line"


def test_a_second_time_changes_nothing() -> None:
    once, _ = answered(STYLE)
    assert answered(once) == (once, []), "all is there and current"


def with_pins(revision: str) -> str:
    return STYLE.replace('"acme/tiny"\n', f'"acme/tiny"\n                revision: {revision} # why\n').replace(
        "# newest\n", f"# newest\n                digest: {OLD_DIGEST}\n"
    )


def test_a_pin_that_is_there_is_kept_unless_asked() -> None:
    text = with_pins(OLD_COMMIT)
    paths = ("services.chat.image.digest", "services.chat.model.revision")
    expected = [(paths[0], OLD_DIGEST, DIGEST, False), (paths[1], OLD_COMMIT, COMMIT, False)]
    assert answered(text) == (text, expected), "a pin is there so that nothing changes by itself"
    updated, pins = answered(text, update=True)
    assert [pin[3] for pin in pins] == [True, True], "with --update it is renewed"
    assert updated == text.replace(OLD_COMMIT, COMMIT).replace(OLD_DIGEST, DIGEST), "in its place, with its comment"


def test_a_branch_is_no_pin() -> None:
    asked: list[str | None] = []

    def commit_of(_model: str, revision: str | None) -> str:
        asked.append(revision)
        return COMMIT

    text = with_pins("main")
    after, _ = pinned(text, lambda _repository, _tag: OLD_DIGEST, commit_of, update=False)
    assert asked == ["main"], "the commit of the branch that the file names"
    assert f"revision: {COMMIT} # why" in after, "it becomes that commit"


def test_a_commit_without_a_letter_stays_a_text() -> None:
    digits = "1" * 40
    after, _ = pinned(STYLE, lambda _repository, _tag: DIGEST, lambda _model, _revision: digits, update=False)
    assert f'revision: "{digits}"' in after, "without quotes YAML reads a number"


FLOW = """\
config:
  vllm:services:
    chat: {model: {id: acme/tiny}, image: { tag: "v0.31.0", repository: vllm/vllm-openai }}
    code: {model: {id: acme/tiny, revision: main}, image: {tag: v0.31.0}} # both
"""


def test_a_section_on_one_line_stays_on_it() -> None:
    expected = (
        FLOW.replace("{id: acme/tiny}", f"{{id: acme/tiny, revision: {COMMIT}}}")
        .replace("revision: main", f"revision: {COMMIT}")
        .replace('"v0.31.0"', f'"v0.31.0", digest: {DIGEST}')
        .replace("{tag: v0.31.0}", f"{{tag: v0.31.0, digest: {DIGEST}}}")
    )
    assert answered(FLOW)[0] == expected, "braces and spaces are a person's choice"


SHARED = """\
config:
  vllm:services:
    chat:
      model: &tiny
        id: acme/tiny
      image: &release
        tag: v0.31.0
    code:
      model: *tiny
      image: *release"""


def test_what_two_services_share_is_written_once() -> None:
    after, pins = answered(SHARED)
    assert len(pins) == 4, "both services are pinned"
    assert (after.count("digest:"), after.count("revision:")) == (1, 1), "in the one place that both have"
    assert after.endswith("*release"), "a file without a last line break stays one"


# --- the registry


@pytest.mark.parametrize(
    ("repository", "host", "path"),
    [
        ("vllm/vllm-openai", "registry-1.docker.io", "vllm/vllm-openai"),
        ("ubuntu", "registry-1.docker.io", "library/ubuntu"),
        ("docker.io/vllm/vllm-openai", "registry-1.docker.io", "vllm/vllm-openai"),
        ("ghcr.io/acme/vllm", "ghcr.io", "acme/vllm"),
        ("registry:5000/vllm", "registry:5000", "vllm"),
        ("localhost/vllm", "localhost", "vllm"),
        ("public.ecr.aws/q9t5s3a7/vllm-release-repo", "public.ecr.aws", "q9t5s3a7/vllm-release-repo"),
    ],
)
def test_a_repository_names_its_registry(repository: str, host: str, path: str) -> None:
    assert name_of(repository) == (host, path), "as containerd reads it"


@pytest.fixture
def registry() -> Iterator[Registry]:
    double = Registry()
    with serving(double):
        yield double


@pytest.mark.parametrize("wants_token", [True, False])
def test_the_digest_of_a_tag_is_found(registry: Registry, wants_token: bool) -> None:
    registry.wants_token = wants_token
    assert digest_of("vllm/vllm-openai", "v0.31.0", registry.endpoint) == DIGEST, "what the registry says"
    assert all(method == "HEAD" or path == "/token" for method, path in registry.asked), "no manifest is downloaded"
    assert all("image.index" in accepted for accepted in registry.accepted), "of all architectures together"


def test_a_registry_that_names_no_digest_has_it_computed(registry: Registry) -> None:
    registry.names_digest = False
    expected = f"sha256:{hashlib.sha256(registry.manifest).hexdigest()}"
    assert digest_of("vllm/vllm-openai", "v0.31.0", registry.endpoint) == expected, "a digest is that of the bytes"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"tags": {}}, "is not there"),
        ({"private": True}, "no token"),
        ({"status": 401}, "login of a kind"),
        ({"status": 403}, "not public"),
        ({"status": 429}, "too many requests"),
        ({"status": 500}, "answers 500"),
        ({"tags": {"vllm/vllm-openai:v0.31.0": "md5:1"}}, "no sha256 digest"),
    ],
)
def test_what_a_registry_refuses_is_said(registry: Registry, wrong: dict[str, Any], said: str) -> None:
    for name, value in wrong.items():
        setattr(registry, name, value)
    with pytest.raises(RegistryError, match=said) as refused:
        digest_of("vllm/vllm-openai", "v0.31.0", registry.endpoint)
    assert TOKEN not in str(refused.value), "a message is no place for a token"


def test_a_registry_out_of_reach_is_said() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(RegistryError, match="cannot be reached"):
            digest_of("vllm/vllm-openai", "v0.31.0", f"http://127.0.0.1:{free.getsockname()[1]}")


# --- the command


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "Pulumi.lab-3060.yaml"
    file.write_text((STACKS / "Pulumi.lab-3060.yaml").read_text())
    monkeypatch.setattr(pinning, "stack_path", lambda _stack: file)
    return file


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    double = Hub(model=MODEL)
    with serving(double):
        monkeypatch.setenv("HF_ENDPOINT", double.endpoint)
        yield double


def pin(*arguments: str) -> tuple[int, str]:
    answer = CliRunner().invoke(app, ["pin", "--stack", "lab-3060", *arguments])
    assert answer.exception is None or isinstance(answer.exception, SystemExit), f"no traceback: {answer.exception!r}"
    return answer.exit_code, answer.output


@pytest.mark.usefixtures("hub")
def test_the_command_fills_in_both(stack: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_INFRA_REGISTRY", registry.endpoint)
    code, output = pin()
    assert code == 0, output
    assert f"services.qwen.image.digest: is now {DIGEST}" in output, output
    assert f"services.qwen.model.revision: is now {COMMIT}" in output, output
    service = read(stack)[0].services["qwen"]
    assert (service.image.digest, service.model.revision) == (DIGEST, COMMIT), "it is in the file"
    assert pin()[1] == "every pin is there and current\n", "the second time there is nothing to do"


@pytest.mark.usefixtures("hub")
def test_a_dry_run_writes_nothing(stack: Path, registry: Registry) -> None:
    before = stack.read_text()
    code, output = pin("--dry-run", "--registry", registry.endpoint)
    assert (code, f"would be {DIGEST}" in output) == (0, True), output
    assert stack.read_text() == before, "it is only said"


@pytest.mark.parametrize("broken", ["registry", "hub"])
def test_half_a_pin_is_none(stack: Path, registry: Registry, hub: Hub, broken: str) -> None:
    before = stack.read_text()
    if broken == "registry":
        registry.status = 500
    else:
        hub.answer = (500, "")
    code, output = pin("--registry", registry.endpoint)
    assert (code, "500" in output) == (1, True), output
    assert stack.read_text() == before, "all of it or nothing"
