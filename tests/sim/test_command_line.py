"""`python -m sim` says in one line what is wrong, and touches nothing that is not its own."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sim import crds, demo, tools
from sim.__main__ import app
from sim.cluster import Cluster, ClusterError, state_folder

run = CliRunner()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """XDG_STATE_HOME of this test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def no_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "ensure", lambda _names=None: {})
    monkeypatch.setattr(crds, "monitoring_crds", lambda: Path("crds"))


def test_state_lies_under_xdg_state_home(state: Path) -> None:
    assert state_folder("demo") == state / "pulumi-vllm" / "demo", "outside the repository, one folder per cluster"


def test_without_xdg_state_home_it_lies_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = tmp_path / ".local" / "state" / "pulumi-vllm" / "demo"
    assert state_folder("demo") == expected, "the default of the XDG base directory specification"


@pytest.mark.usefixtures("state")
def test_down_of_a_cluster_that_is_not_there_is_no_error() -> None:
    result = run.invoke(app, ["down", "--name", "none"])
    assert (result.exit_code, result.output) == (0, "cluster none: was not there\n"), "it may be called twice"


@pytest.mark.usefixtures("state")
def test_down_of_a_real_node_that_is_not_there_is_no_error() -> None:
    result = run.invoke(app, ["node", "down", "--name", "none"])
    assert (result.exit_code, result.output) == (0, "node real-node of the cluster none: was not there\n"), (
        "it may be called twice, and by anybody: there is nothing to do that needs root"
    )


@pytest.mark.parametrize(("option", "more"), [([], False), (["--real-node"], True)])
def test_the_tools_of_the_real_node_are_built_on_request(
    monkeypatch: pytest.MonkeyPatch, option: list[str], more: bool
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(tools, "ensure", lambda names=("etcd",): asked.extend(names))
    monkeypatch.setattr(crds, "monitoring_crds", lambda: Path("crds"))
    assert run.invoke(app, ["tools", *option]).exit_code == 0, "there is nothing to fail"
    assert ("kubelet" in asked) is more, "a simulated cluster needs none of them"


@pytest.mark.usefixtures("state")
def test_status_of_a_cluster_that_is_not_there_fails() -> None:
    result = run.invoke(app, ["status", "--name", "none"])
    assert result.exit_code == 1, "a script asks with the exit code"
    assert "kube-apiserver          not running" in result.output, "a person reads what is missing"


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("name", ["../other", "Demo", "", "-a", "a/b", "a" * 41])
def test_a_name_that_is_no_folder_name_is_refused(name: str) -> None:
    result = run.invoke(app, ["down", "--name", name])
    assert result.exit_code == 1, "it would be a path to somewhere else"
    assert "is no name for a cluster" in result.output, "one message, no traceback"


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("name", ["a", "demo", "gw0-17"])
def test_a_plain_name_is_accepted(name: str) -> None:
    assert run.invoke(app, ["down", "--name", name]).exit_code == 0, f"{name} is lower case, digits and dashes"


@pytest.mark.usefixtures("no_builds")
def test_a_folder_of_somebody_else_is_left_alone(state: Path) -> None:
    folder = state / "pulumi-vllm" / "demo"
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("years of work")
    for command in ("up", "down"):
        result = run.invoke(app, [command, "--name", "demo"])
        assert result.exit_code == 1, f"{command} must not touch a folder that it did not make"
        assert "is not the state of a simulated cluster" in result.output, "the message says why"
    assert [file.name for file in folder.iterdir()] == ["thesis.txt"], "nothing was added or deleted"


@pytest.mark.parametrize("command", ["deploy", "preview"])
@pytest.mark.parametrize(
    ("stack", "words"),
    [
        ("l40s-pair-eks-cluster", "AWS is not simulated; `vllm-infra plan --stack l40s-pair-eks-cluster`"),
        ("no-such-stack", "there is no stack no-such-stack"),
    ],
)
def test_a_stack_that_cannot_run_here_is_refused_before_anything_is_built(
    state: Path, command: str, stack: str, words: str
) -> None:
    result = run.invoke(app, [command, "--stack", stack])
    assert (result.exit_code, words in result.output) == (1, True), result.output
    assert not state.exists(), "nothing was begun"


@pytest.mark.parametrize("stack", ["demo", "lab-3060", "l40s-pair"])
def test_a_stack_that_names_a_context_can_run_here(stack: str) -> None:
    assert demo.stack_file(stack).is_file(), "an alias of that name leads to the simulated cluster"


@pytest.mark.usefixtures("no_builds")
def test_a_state_folder_that_cannot_be_made_is_one_clear_message(state: Path) -> None:
    state.write_text("a file where the folder should be")
    result = run.invoke(app, ["up", "--name", "demo"])
    assert result.exit_code == 1, "there is nowhere to put the state"
    assert f"the state folder {state}/pulumi-vllm/demo cannot be written" in result.output, "which folder"
    assert "Set XDG_STATE_HOME" in result.output, "and what helps"
    assert "Traceback" not in result.output, "the user's mistake is no crash of ours"


def test_a_missing_go_is_one_clear_message(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    for command in (["up"], ["tools"]):
        result = run.invoke(app, command)
        assert result.exit_code == 1, f"{command}: nothing can be built"
        assert "error: Go 1.26 or newer is needed" in result.output, "the message says what to install"
    assert not state.exists(), "nothing was begun"


def test_the_environment_is_printed_for_a_shell(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/opt/some folder/bin:/usr/bin")
    output = run.invoke(app, ["env"]).output
    lines = dict(shlex.split(line)[1].split("=", 1) for line in output.splitlines())
    folder = state / "pulumi-vllm" / "demo"
    assert lines["KUBECONFIG"] == str(folder / "kubeconfig"), "never the user's"
    assert lines["PULUMI_HOME"] == str(folder / "pulumi"), "the user's login is not touched"
    assert lines["PULUMI_BACKEND_URL"] == f"file://{folder}/backend", "nothing leaves this machine"
    assert "TMPDIR" not in lines, "the shell outlives the cluster, whose folder for it is then gone"
    path = lines["PATH"].split(os.pathsep)
    assert path[0] == str(Path(sys.executable).parent), "the language host takes python from the first folder"
    assert path[-2:] == ["/opt/some folder/bin", "/usr/bin"], "what was on PATH stays, after ours"


@pytest.mark.usefixtures("state")
def test_kubectl_is_asked_only_about_the_cluster_itself() -> None:
    cluster = Cluster("none", state_folder("none"))
    assert not cluster.is_running(), "there is none"
    with pytest.raises(ClusterError, match="kubectl get nodes"):
        cluster.kubectl("get", "nodes")
