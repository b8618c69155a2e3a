"""`vllm-infra cold-start` from a folder and from a cluster that answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from infra import cold_start, live
from infra.cli import app, measuring
from infra.cold_start import save
from planner.findings import Finding
from tests.infra.cold_start import starts as made
from tests.stack_files import config


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["cold-start", "--stack", "l40s-pair", *arguments], env={"COLUMNS": "160"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(made.measured("nothing"), tmp_path / "start")
    return tmp_path / "start"


def test_a_person_reads_phases_beside_the_plan(folder: Path) -> None:
    result = run("--from", str(folder))
    assert result.exit_code == 0, result.output
    for words in (
        "measured",
        "planned",
        "220.2 s",
        "185.5 s",
        "14.8 s",
        "36.4 s",
        "not explained",
        "miss",
        "470,624",
        "█",
    ):
        assert words in result.output, f"a person looks for {words!r}"


def test_a_program_reads_the_same(folder: Path) -> None:
    result = run("--from", str(folder), "--json")
    (start,) = json.loads(result.output)["starts"]
    measured = {phase["name"]: phase["measured"] for phase in start["phases"]}
    assert (measured["image"], measured["download"], measured["read"]) == (220.2, 185.493367, 14.76)
    assert (start["initEngineSeconds"], start["compileCache"], start["imageLocal"]) == (36.35, "miss", False)


def test_what_was_measured_is_written_for_the_planner(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "lab.json"
    assert run("--from", str(folder), "--write", str(file)).exit_code == 0
    written = json.loads(file.read_text("utf-8"))
    assert (written["registryMbPerSecond"], written["hubMbPerSecond"]) == (56.6, 82.1)
    assert set(written) <= {"registryMbPerSecond", "hubMbPerSecond", "processStartSeconds", "observed"}


def test_a_start_slower_than_its_budget_is_exit_code_1(tmp_path: Path) -> None:
    slow = replace(made.L40S["weights"], init_engine=400.0, total=460.0)
    log = made.log(made.lines("0.11.0", slow, 2))
    save(made.measured("weights", pod=made.pod(2, 455), log=log), tmp_path / "start")
    result = run("--from", str(tmp_path / "start"))
    assert result.exit_code == 1, "CI must be able to stop on it"
    assert "START-BUDGET" in result.output


def test_a_live_start_is_read_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(live, "connect", lambda _: None)
    monkeypatch.setattr(cold_start, "gather", lambda *_: made.measured("compile cache"))
    result = run("--save", str(tmp_path / "kept"))
    assert result.exit_code == 0, result.output
    assert {"pod.json", "events.json", "log.txt"} <= {path.name for path in (tmp_path / "kept").iterdir()}
    assert run("--from", str(tmp_path / "kept")).output == result.output, "events expire, the folder does not"


def test_a_cluster_that_cannot_be_reached_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise live.LiveError(Finding("error", "vllm:cluster.context", "no such context", "start it", "LIVE-CONTEXT"))

    monkeypatch.setattr(live, "connect", refuse)
    result = run()
    assert result.exit_code == 1
    assert "no such context" in result.output


def test_nothing_to_measure_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = cold_start.Evidence("qwen", 0, "", unread=("pod: the newest ReplicaSet qwen-0-abc has none yet",))
    monkeypatch.setattr(live, "connect", lambda _: None)
    monkeypatch.setattr(cold_start, "gather", lambda *_: empty)
    result = run()
    assert result.exit_code == 1
    assert "has none yet" in result.output, "and the reason is said"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--service", "qwenn"], "services of l40s-pair: qwen"),
        (["--replica", "2"], "has 2 replicas"),
        (["--from", "no/such/folder"], "no folder"),
    ],
)
def test_a_wrong_call_says_what_is_right(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.output, result.output


def test_a_file_that_is_none_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine", "utf-8")
    assert run("--from", str(folder), "--write", str(file)).exit_code == 2
    assert file.read_text("utf-8") == "mine", "somebody else's file"


def test_a_start_that_is_under_way_is_not_written(tmp_path: Path) -> None:
    half = made.log(made.lines("0.11.0", made.L40S["weights"], 2)[:9])
    save(made.measured("weights", pod=made.pod(2, None), log=half), tmp_path / "start")
    result = run("--from", str(tmp_path / "start"), "--write", str(tmp_path / "lab.json"))
    assert result.exit_code == 2
    assert not (tmp_path / "lab.json").exists(), "half a start is no measurement"
    assert run("--from", str(tmp_path / "start")).exit_code == 0, "it can be looked at, and is not slow yet"


def test_a_start_is_measured_against_the_arguments_that_its_alerts_add() -> None:
    alerts = {"kvCacheThrashing": {"enabled": True}}
    watching = {"mode": "operator", "labels": {"release": "prometheus"}, "alerts": alerts}
    watched = measuring.planned(config(changes={"monitoring": watching}), "lab-3060", None, 0)
    assert "--kv-cache-metrics" in watched.argv, "the program renders it, so the log will show it"
    assert "--kv-cache-metrics" not in measuring.planned(config(), "lab-3060", None, 0).argv, "nobody asked for it"
