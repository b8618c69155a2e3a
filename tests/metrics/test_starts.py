"""Two real starts of one server: what `vllm-infra cold-start` finds in them, what monitoring says in between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from infra.cli import app
from infra.config import read, stack_file
from infra.snapshot import difference, parse
from sim.traffic import Client
from tests.metrics.prometheus import Prometheus, until
from tests.metrics.server import Server
from tests.metrics.service import POOL, STACK, changes, discovered, target
from tests.metrics.words import prompt
from tests.stack_files import values

pytestmark = pytest.mark.metrics
MADE = target()
TOKENS = 30
IN_LOG = ("import", "download", "read", "profile", "answer")
"""Phases that the log of any start tells."""


@dataclass(frozen=True)
class Restart:
    """What was seen of a restart: the pages before and after, and the page of the alert while nobody answered."""

    before: str
    after: str
    said: str


@pytest.fixture(scope="module")
def restart(server: Server, prometheus: Prometheus) -> Restart:
    """The server has been killed, as by the kernel, and started again on the same caches."""
    until(lambda: prometheus.query(f"up{MADE.selector()} == 1"), "the server is read before it is killed")
    server.client.complete(prompt(1, 100), TOKENS)
    before = server.client.page()
    served = f"sum(vllm:generation_tokens_total{MADE.selector()})"
    until(lambda: prometheus.value(served) == _tokens(before), "its last token was read too")
    server.kill()
    page = until(lambda: prometheus.firing("VLLMServerDown"), "a server that does not answer is paged for")[0]
    server.start()
    until(lambda: not prometheus.firing("VLLMServerDown"), "the page goes when it answers again")
    server.client.complete(prompt(1, 100), TOKENS)
    return Restart(before, server.client.page(), page.annotations["description"])


def _tokens(page: str) -> float:
    return parse(page, "the server").total("vllm:generation_tokens_total") or 0.0


@pytest.fixture(autouse=True)
def stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of stack files in which the server's own is."""
    folder = tmp_path / "stacks"
    folder.mkdir()
    monkeypatch.setattr(stack_file, "STACKS", folder)
    write_stack(folder, changes())
    return folder


def write_stack(folder: Path, asked: dict[str, Any]) -> None:
    with (folder / f"Pulumi.{STACK}.yaml").open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump({"config": {f"vllm:{key}": value for key, value in values(STACK, asked).items()}}, file)


def measured(folder: Path, *more: str) -> dict[str, Any]:
    """What `vllm-infra cold-start` says of a saved start."""
    answer = CliRunner().invoke(app, ["cold-start", "--stack", STACK, "--from", str(folder), "--json", *more])
    assert answer.stdout, answer.output
    (found,) = json.loads(answer.stdout)["starts"]
    assert isinstance(found, dict)
    return found


def saved(server: Server, start: int, folder: Path, page: str | None = None) -> Path:
    """The log of a start, and the server's page, under the names that the command reads."""
    folder.mkdir(exist_ok=True)
    (folder / "log.txt").write_text(server.logs[start].read_text(encoding="utf-8"), encoding="utf-8")
    if page is not None:
        (folder / "metrics.txt").write_text(page, encoding="utf-8")
    return folder


@pytest.fixture
def first(server: Server, tmp_path: Path) -> dict[str, Any]:
    """The report on the first start, which found no cache."""
    return measured(saved(server, 0, tmp_path / "first", server.client.page()))


def seconds(report: dict[str, Any], phase: str) -> float | None:
    found: dict[str, float | None] = {each["name"]: each["measured"] for each in report["phases"]}
    return found.get(phase, found.get(f"{phase}, kernels"))


@pytest.mark.parametrize("phase", IN_LOG)
def test_a_phase_is_found_in_a_real_log(first: dict[str, Any], phase: str) -> None:
    assert seconds(first, phase) is not None, f"{phase}: {first['phases']}"


def test_the_phases_explain_the_start(first: dict[str, Any]) -> None:
    assert first["outcome"] == "ready", first
    assert 0 <= first["notExplainedSeconds"] < first["totalSeconds"] / 2, first["phases"]
    assert first["weightsDownloaded"] is False, "the model was there"


def test_the_settings_arrived_and_every_line_is_known(first: dict[str, Any]) -> None:
    said = [(finding["rule"], finding["message"]) for finding in first["findings"]]
    differ = {message.partition(":")[0] for rule, message in said if rule == "START-ARGUMENTS"}
    assert differ <= {"host", "port"}, f"a test has an address of its own, and nothing else of its own: {said}"
    assert "START-LINES" not in {rule for rule, _ in said}, said


def test_the_kv_cache_is_the_planned_one(first: dict[str, Any]) -> None:
    assert first["kvTokens"], "the log says it"
    assert abs(first["kvTokens"] / first["kvTokensPlanned"] - 1) <= 0.01, first
    assert "START-KV-METRICS" not in {finding["rule"] for finding in first["findings"]}, "/metrics says the same"


def test_what_became_of_the_compile_cache_is_said(
    first: dict[str, Any], restart: Restart, server: Server, tmp_path: Path
) -> None:
    """0.32.0 on a processor finds its own cache again and cannot load it ('finalize_loading'): it compiles again."""
    second = measured(saved(server, 1, tmp_path / "second", restart.after))
    assert (first["compileCache"], second["compileCache"]) == ("miss", "broken"), "the caches outlive the process"
    said = [finding["message"] for finding in second["findings"] if finding["rule"] == "START-CACHE"]
    assert any("finalize_loading" in message for message in said), said


def test_the_planner_takes_what_was_measured(
    first: dict[str, Any], server: Server, stacks: Path, tmp_path: Path
) -> None:
    measured(saved(server, 0, tmp_path / "start"), "--write", str(stacks / "cpus.json"))
    written = json.loads((stacks / "cpus.json").read_text(encoding="utf-8"))
    assert written["processStartSeconds"] == round(seconds(first, "import") or 0, 1), written
    write_stack(stacks, {**changes(), f"nodes.{POOL}.rates": None, f"nodes.{POOL}.measurements": "cpus.json"})
    config, _ = read(stacks / f"Pulumi.{STACK}.yaml")
    assert config.nodes[POOL].measurements == "cpus.json", "the planner reads the file"
    assert "diskMbPerSecond" not in written, "a model of half a megabyte says nothing about the disk"


def test_a_killed_server_is_paged_for_with_how_many_answer(restart: Restart) -> None:
    assert restart.said.startswith("0 of 1 replicas answer"), restart.said


def test_a_snapshot_over_a_restart_says_so(restart: Restart) -> None:
    found = difference({"server": parse(restart.before, "before")}, {"server": parse(restart.after, "after")})
    assert any("restarted between the readings" in note for note in found.notes), found.notes
    assert found.generated_tokens == TOKENS, "only what came after the restart is counted"
    assert found.requests == 1, "the one request since"


def test_rates_survive_a_restart(restart: Restart, prometheus: Prometheus) -> None:
    series = f"vllm:generation_tokens_total{MADE.selector()}"
    until(lambda: prometheus.value(f"sum({series})") == _tokens(restart.after), "the token after the restart was read")
    assert prometheus.value(f"resets({series}[1h])") == 1, "the counter began again at 0"
    assert prometheus.value(f"increase({series}[1h])") >= TOKENS, "what came after it is counted"
    recorded = f"service:vllm_generation_tokens:rate5m{MADE.selector()}"
    assert prometheus.value(f"min_over_time({recorded}[1h])") >= 0, "a restart is no negative rate"


@pytest.fixture
def dropped(server: Server, prometheus: Prometheus) -> Iterator[None]:
    """Service discovery no longer names the server, as when its Service or its labels are gone."""
    prometheus.find([])
    yield
    prometheus.find([(server.port, discovered())])


@pytest.mark.usefixtures("restart", "dropped")
def test_a_target_that_is_gone_is_a_server_that_is_down(prometheus: Prometheus) -> None:
    (page,) = until(lambda: prometheus.firing("VLLMServerDown"), "absent() stands in for the series that is gone")
    assert page.annotations["description"].startswith("0 of 1 replicas answer"), page.annotations
    assert page.labels["service"] == MADE.service, page.labels
    others = {alert.name for alert in prometheus.alerts() if alert.state == "firing"} - {"VLLMServerDown"}
    assert not others, "alerts on series that are gone resolve"


def test_a_target_that_comes_back_ends_the_page(prometheus: Prometheus, client: Client) -> None:
    until(lambda: not prometheus.firing("VLLMServerDown"), "it is read again")
    assert client.page(), "it answers"
