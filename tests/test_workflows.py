"""The workflows hold what docs/pull-requests.md promises: pinned, least permissions, nothing secret for a fork."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from infra.preview_report import MARKER
from scripts import comment
from sim import tools
from tests.stack_files import SHIPPED, config

ROOT = Path(__file__).parents[1]
WORKFLOWS = {file.stem: file for file in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")
NOT_A_FORK = "github.event.pull_request.head.repo.full_name == github.repository"
Object = dict[str, Any]


def load(name: str) -> Object:
    # YAML 1.2: `on` is a word, not a yes.
    content: Object = YAML(typ="safe", pure=True).load(WORKFLOWS[name])
    return content


def jobs() -> Iterator[tuple[str, str, Object]]:
    for name in WORKFLOWS:
        for key, job in load(name)["jobs"].items():
            yield name, key, job


JOBS = list(jobs())
IDS = [f"{name}-{key}" for name, key, _ in JOBS]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_every_action_is_pinned_by_commit_and_says_its_version(name: str) -> None:
    lines = [line.strip(" -") for line in WORKFLOWS[name].read_text().splitlines() if "uses:" in line]
    assert lines, "a workflow without actions needs no pins"
    for line in lines:
        action, _, version = line.removeprefix("uses: ").partition(" # ")
        assert PINNED.fullmatch(action), f"a tag can be moved: {line}"
        assert re.fullmatch(r"v\d+\.\d+\.\d+", version), f"a commit alone tells nobody what it is: {line}"


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_grants_nothing_by_itself(name: str) -> None:
    assert load(name)["permissions"] == {}, "each job says what it needs"


@pytest.mark.parametrize(("name", "key", "job"), JOBS, ids=IDS)
def test_a_job_may_do_no_more_than_it_does(name: str, key: str, job: Object) -> None:
    writes = {scope for scope, level in job["permissions"].items() if level == "write"}
    comments = "scripts.comment" in json.dumps(job)
    assert writes <= {"pull-requests", "id-token"}, f"{name}/{key} may write {writes}"
    assert ("pull-requests" in writes) == comments, "only what comments may comment"
    assert ("id-token" in writes) == ("configure-aws-credentials" in json.dumps(job)), "only what logs in may log in"
    assert job["permissions"]["contents"] == "read", "nothing is pushed"
    assert "timeout-minutes" in job, "a preview that hangs ends"


@pytest.mark.parametrize(("name", "key", "job"), JOBS, ids=IDS)
def test_a_fork_gets_no_secret(name: str, key: str, job: Object) -> None:
    if "pull_request" not in load(name)["on"]:
        return
    if "secrets." in json.dumps(job) or job["permissions"].get("id-token"):
        assert NOT_A_FORK in job["if"], f"{key} has secrets: it must not run what a stranger wrote"
    else:
        assert "environment" not in job, "an environment is where secrets are"


@pytest.mark.parametrize("name", WORKFLOWS)
def test_no_workflow_runs_a_strangers_code_with_our_rights(name: str) -> None:
    assert "pull_request_target" not in load(name)["on"], "it has secrets, and checks out a fork"
    assert "workflow_run" not in load(name)["on"], "the same by another way"


@pytest.mark.parametrize(("name", "key", "job"), JOBS, ids=IDS)
def test_nothing_that_a_stranger_writes_becomes_a_command(name: str, key: str, job: Object) -> None:
    for step in job["steps"]:
        assert "${{" not in step.get("run", ""), f"{name}/{key}: a title or label in a script is a script: {step}"
        if str(step.get("uses", "")).startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] is False, "the token stays out of the checkout"


@pytest.mark.parametrize(("name", "key", "job"), JOBS, ids=IDS)
def test_every_script_that_is_called_is_there(name: str, key: str, job: Object) -> None:
    for step in job["steps"]:
        for script in re.findall(r"\bscripts/[\w.]+", step.get("run", "")):
            assert os.access(ROOT / script, os.X_OK), f"{name}/{key} calls {script}"


def test_a_fork_is_previewed_in_the_simulated_cluster() -> None:
    job = load("preview")["jobs"]["simulated"]
    assert "fork" not in job["if"].lower(), "it runs for everybody"
    assert "GITHUB_STEP_SUMMARY" in json.dumps(job), "where a token that may not comment can still say something"


def test_the_versions_are_those_of_the_tests() -> None:
    version = tools.PULUMI.removeprefix("v")
    assert load("preview")["env"]["PULUMI_VERSION"] == version, "the engine that the tests run on"
    steps = load("drift")["jobs"]["drift"]["steps"]
    (action,) = [step for step in steps if str(step.get("uses", "")).startswith("pulumi/actions@")]
    assert action["with"]["pulumi-version"] == version, "the same"
    assert action["with"]["refresh"] is True, "what runs is read, not what the state remembers"
    assert action["with"]["expect-no-changes"] is True, "and a difference is a failure"


# --- which stacks are previewed where


@pytest.mark.parametrize(
    ("named", "fork", "real"),
    [
        ('["lab-3060"]', "false", ["lab-3060"]),
        ('["l40s-pair-eks", "l40s-pair-eks-cluster"]', "false", ["l40s-pair-eks", "l40s-pair-eks-cluster"]),
        ('["lab-3060", "no-such-stack"]', "false", ["lab-3060"]),
        ("[]", "false", []),
        ('["lab-3060"]', "true", []),
    ],
)
def test_a_stack_is_real_when_it_is_named_and_no_fork_asks(
    tmp_path: Path, named: str, fork: str, real: list[str]
) -> None:
    if subprocess.run(["sh", "-c", "command -v jq"], capture_output=True, check=False).returncode:
        pytest.skip("jq is not here; GitHub's runners have it")
    (step,) = [step for step in load("preview")["jobs"]["stacks"]["steps"] if step.get("id") == "list"]
    output = tmp_path / "output"
    environment = {**os.environ, "NAMED": named, "FORK": fork, "GITHUB_OUTPUT": str(output)}
    subprocess.run(["bash", "-euo", "pipefail", "-c", step["run"]], cwd=ROOT, env=environment, check=True)
    said = dict(line.split("=", 1) for line in output.read_text().splitlines())
    assert set(json.loads(said["real"])) == set(real), "its own cluster"
    elsewhere = {stack for stack in SHIPPED if config(stack).cluster.kind != "eks"} - set(real)
    assert "demo" in elsewhere, "there is something to simulate"
    assert set(json.loads(said["simulated"])) == elsewhere, "all others in the simulated one, but for AWS"


# --- the comment


@dataclass
class GitHub:
    """A double of one pull request's comments."""

    comments: list[Object] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)

    def ask(self, method: str, path: str, body: Object | None = None) -> Any:
        self.asked.append((method, path))
        if method == "GET":
            page = int(path.rpartition("=")[2])
            return self.comments[(page - 1) * comment.PAGE : page * comment.PAGE]
        number = int(path.rpartition("/")[2]) if method != "POST" else len(self.comments) + 1
        self.comments = [one for one in self.comments if one["id"] != number or method != "DELETE"]
        for one in self.comments:
            if one["id"] == number and body:
                one["body"] = body["body"]
        if method == "POST" and body:
            self.comments.append({"id": number, "user": {"login": comment.AUTHOR}, "body": body["body"]})
        return {}

    def changes(self) -> list[str]:
        return [method for method, _ in self.asked if method != "GET"]


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> GitHub:
    double = GitHub()
    monkeypatch.setattr(comment, "ask", double.ask)
    monkeypatch.setenv("GITHUB_REPOSITORY", "acme/serving")
    monkeypatch.setenv("PULL_REQUEST", "7")
    return double


def say(tmp_path: Path, body: str, stack: str = "demo") -> None:
    file = tmp_path / "comment.md"
    file.write_text(f"{MARKER.format(stack=stack)}\n{body}\n" if body else "")
    comment.main(stack, file)


def test_there_is_one_comment_and_it_is_edited_in_place(github: GitHub, tmp_path: Path) -> None:
    say(tmp_path, "first")
    say(tmp_path, "second")
    say(tmp_path, "second")
    assert github.changes() == ["POST", "PATCH"], "made once, edited once, and left when nothing is new"
    (only,) = github.comments
    assert only["body"].endswith("second\n"), "it says what is true now"


def test_a_comment_goes_when_there_is_nothing_to_say_any_more(github: GitHub, tmp_path: Path) -> None:
    say(tmp_path, "")
    assert github.changes() == [], "nothing to say, nothing said"
    say(tmp_path, "first")
    say(tmp_path, "")
    assert github.comments == [], "an old report of a change that was taken back would be a lie"


def test_each_stack_has_its_own(github: GitHub, tmp_path: Path) -> None:
    say(tmp_path, "one")
    say(tmp_path, "two", stack="lab-3060")
    assert len(github.comments) == 2, "a matrix of jobs must not overwrite each other's"


def test_what_others_wrote_is_left_alone(github: GitHub, tmp_path: Path) -> None:
    marker = MARKER.format(stack="demo")
    github.comments = [
        {"id": 1, "user": {"login": "somebody"}, "body": f"{marker}\nlooks good"},
        {"id": 2, "user": {"login": comment.AUTHOR}, "body": f"about {marker}"},
        *({"id": number, "user": {"login": "somebody"}, "body": ""} for number in range(3, 3 + comment.PAGE)),
    ]
    before = json.dumps(github.comments)
    say(tmp_path, "first")
    assert json.dumps(github.comments[:-1]) == before, "only a comment of ours with our first line is ours"
    say(tmp_path, "second")
    assert github.changes() == ["POST", "PATCH"], "and it is found again on the second page"


def test_a_label_allows_what_it_names(tmp_path: Path) -> None:
    step = {
        "op": "delete",
        "urn": "urn:pulumi:demo::vllm::kubernetes:core/v1:PersistentVolumeClaim::one",
        "oldState": {"type": "kubernetes:core/v1:PersistentVolumeClaim", "inputs": {"metadata": {"name": "one"}}},
    }
    history = subprocess.run(["git", "rev-parse", "HEAD^1"], cwd=ROOT, capture_output=True, check=False)
    if history.returncode:
        pytest.skip("this checkout has no base to compare with")
    preview, report = tmp_path / "preview.json", tmp_path / "comment.md"
    preview.write_text(json.dumps({"steps": [step], "diagnostics": [], "changeSummary": {}}))
    for labels, code in (([], 1), (["bug"], 1), (["allow PersistentVolumeClaim/one", "bug"], 0)):
        environment = {**os.environ, "LABELS": json.dumps(labels)}
        command = [str(ROOT / "scripts" / "preview_report.sh"), "demo", str(preview), str(report)]
        answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert answer.returncode == code, f"{labels}: {answer.stderr}"
        assert "PersistentVolumeClaim `one`" in report.read_text(), "the comment is written either way"
