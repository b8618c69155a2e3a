"""A real Prometheus: its own folder and port, the rules that are rendered, and targets that come and go."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

PATIENCE_SECONDS = 600
"""How long a condition is waited for: nothing here is about how fast a machine is."""
Found = TypeVar("Found")


class QueryError(AssertionError):
    """Prometheus refused a query; the message is its own."""


@dataclass(frozen=True)
class Sample:
    """One series at one moment."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Alert:
    """One alert that is pending or firing, with what its page says."""

    name: str
    state: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus. ``targets`` is the file that it finds the servers in."""

    port: int
    targets: Path

    def query(self, expression: str) -> list[Sample]:
        """The series that an expression has at this moment.

        Raises:
            QueryError: it cannot be evaluated.
        """
        found = self._get("query", {"query": expression})
        if found["resultType"] == "scalar":
            return [Sample({}, float(found["result"][1]))]
        return [Sample(each["metric"], float(each["value"][1])) for each in found["result"]]

    def value(self, expression: str) -> float:
        """The one value that an expression has."""
        found = self.query(expression)
        assert len(found) == 1, f"{expression} has {len(found)} values, not one: {found}"
        return found[0].value

    def alerts(self) -> list[Alert]:
        """Every alert that is pending or firing."""
        return [
            Alert(
                each["labels"]["alertname"],
                each["state"],
                each["labels"],
                each["annotations"],
                float(each["value"]),
            )
            for each in self._get("alerts", {})["alerts"]
        ]

    def firing(self, name: str) -> list[Alert]:
        """The alerts of a name that are firing."""
        return [alert for alert in self.alerts() if alert.name == name and alert.state == "firing"]

    def ever_fired(self) -> set[str]:
        """Names of the alerts that were firing at any moment of the last hours."""
        fired = self.query('count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[6h]))')
        return {each.labels["alertname"] for each in fired}

    def rules(self) -> list[Mapping[str, Any]]:
        """Every rule with its health and its last error."""
        return [rule for group in self._get("rules", {})["groups"] for rule in group["rules"]]

    def find(self, servers: Sequence[tuple[int, Mapping[str, str]]], host: str = "127.0.0.1") -> None:
        """From now on the targets are these: port and the labels that service discovery would give."""
        entries = [{"targets": [f"{host}:{port}"], "labels": dict(labels)} for port, labels in servers]
        partial = self.targets.with_suffix(".partial")
        partial.write_text(json.dumps(entries), encoding="utf-8")
        partial.replace(self.targets)

    def _get(self, path: str, values: Mapping[str, str]) -> Any:
        address = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urlencode(values)}"
        try:
            with urlopen(address, timeout=30) as answer:
                return json.loads(answer.read())["data"]
        except HTTPError as error:
            with error:
                raise QueryError(f"{values}: {error.read().decode(errors='replace')}") from None


def until(condition: Callable[[], Found], what: str) -> Found:
    """What ``condition`` answers as soon as that is true.

    Raises:
        AssertionError: it never was; the message says what was waited for, and the last answer.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s in vain: {what}; last: {found!r}"
        time.sleep(0.5)
    return found


@contextmanager
def running(
    executable: Path, folder: Path, port: int, scrape: Mapping[str, Any], rules: Mapping[str, str]
) -> Iterator[Prometheus]:
    """A Prometheus with rule files by name, which reads what `find` names as ``scrape`` says; gone afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    targets = folder / "targets.json"
    targets.write_text("[]", encoding="utf-8")
    for name, text in rules.items():
        (folder / name).write_text(text, encoding="utf-8")
    job = {**scrape, "file_sd_configs": [{"files": [targets.name]}]}
    config = {
        "global": {"evaluation_interval": "1s"},
        "rule_files": sorted(rules),
        "scrape_configs": [job],
    }
    (folder / "prometheus.yaml").write_text(json.dumps(config), encoding="utf-8")
    command = [
        executable,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        until(lambda: _is_ready(process, port, log), "Prometheus is ready")
        yield Prometheus(port, targets)
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_SECONDS)


def _is_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> bool:
    assert process.poll() is None, f"Prometheus ended: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}"
    try:
        with urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (HTTPError, URLError, OSError):
        return False
