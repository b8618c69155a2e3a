"""The measurement file: rates that were measured, for the planner to compute with (`measurements` of a pool)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.cold_start.comparison import Report
from infra.cold_start.evidence import Evidence
from infra.cold_start.start import Pull, pulls_of
from planner.plan import ServicePlan

_SEED = "seed: "
_FEW_BYTES = 100_000_000
"""A download below this is mostly requests, a read mostly opening files: neither says anything about the line."""


class MeasurementError(Exception):
    """The file is there and is no measurement file, or cannot be written."""


@dataclass(frozen=True)
class Rate:
    """One measured figure and where it is from."""

    value: float
    source: str


def rates(plan: ServicePlan, evidence: Evidence, report: Report) -> dict[str, Rate]:
    """The measured figures by key: MB/s (10^6 bytes), or seconds. What was not measured is not there."""
    found: dict[str, Rate] = {}
    pull, puller = _pull(plan, evidence, report)
    if pull and pull.seconds:
        size = pull.bytes or plan.release.image_bytes
        found["registryMbPerSecond"] = Rate(size / 1e6 / pull.seconds, f"{size:,} B in {pull.seconds:g} s, {puller}")
    downloaded = _download(plan, evidence, report)
    if downloaded:
        found["hubMbPerSecond"] = downloaded
    read, begun = report.start.seconds("read"), report.start.seconds("import")
    if read and report.read_from == "volume" and plan.model.weight_bytes >= _FEW_BYTES:
        size = plan.model.weight_bytes
        found["diskMbPerSecond"] = Rate(size / 1e6 / read, f"{size:,} B in {read:g} s, {report.start.pod}")
    if begun:
        found["processStartSeconds"] = Rate(begun, f"container's start to the load, {report.start.pod}")
    return found


def document(plan: ServicePlan, evidence: Evidence, report: Report, before: Mapping[str, Any]) -> dict[str, Any]:
    """The content of the file after this start. A rate that this start did not measure stays as it was."""
    new = rates(plan, evidence, report)
    old = before.get("observed") if isinstance(before.get("observed"), dict) else {}
    start = report.start
    observed = {
        "service": plan.name,
        "pod": start.pod,
        "readAt": evidence.read_at,
        "release": plan.release.version,
        "gpu": plan.gpu.name,
        "model": plan.model.id,
        "phases": {phase.name: _rounded(phase.seconds) for phase in start.phases},
        "totalSeconds": _rounded(start.total_seconds),
        "inContainerSeconds": _rounded(start.in_container_seconds),
        "initEngineSeconds": _rounded(start.init_engine_seconds),
        "notExplainedSeconds": _rounded(start.unexplained_seconds),
        "oldServerStopSeconds": _rounded(start.old_stop_seconds),
        "compileCache": start.cache,
        "imageLocal": start.image_local,
        "weightsReadFrom": report.read_from,
        "kvTokens": start.kv_tokens,
        "sources": {**(old or {}).get("sources", {}), **{key: rate.source for key, rate in new.items()}},
    }
    kept = {key: value for key, value in before.items() if key != "observed"}
    return {**kept, **{key: round(rate.value, 1) for key, rate in new.items()}, "observed": observed}


def write(path: Path, plan: ServicePlan, evidence: Evidence, reports: Sequence[Report]) -> None:
    """Write or renew the file with the newest start that came to its end.

    Raises:
        MeasurementError: none did, what is there is no JSON object, or the file cannot be written.
    """
    report = next((each for each in reversed(reports) if each.start.outcome == "ready"), None)
    if report is None:
        raise MeasurementError(f"{path} is not written: no start has come to its end yet")
    content = document(plan, evidence, report, _present(path))
    try:
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise MeasurementError(f"{path} cannot be written: {error.strerror}") from None


def _present(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict):
        raise MeasurementError(f"{path} is there and is no measurement file")
    return content


def _pull(plan: ServicePlan, evidence: Evidence, report: Report) -> tuple[Pull | None, str]:
    """The server's own pull, else the pre-pull's on the same node."""
    if report.start.pull:
        return report.start.pull, f"pod {report.start.pod}"
    node = (evidence.pod or {}).get("spec", {}).get("nodeName")
    pulls, _ = pulls_of(evidence.events, f"{plan.name}-pre-pull-", node)
    return (pulls[-1], "pre-pull") if pulls else (None, "")


def _download(plan: ServicePlan, evidence: Evidence, report: Report) -> Rate | None:
    """The server's own download, else the seed Job's, which says bytes and seconds of the download alone."""
    seconds = report.start.seconds("download")
    if seconds:
        size = plan.model.weight_bytes
        return Rate(size / 1e6 / seconds, f"{size:,} B in {seconds:g} s, {report.start.pod}")
    for line in reversed((evidence.seed_log or "").splitlines()):
        _, mark, text = line.partition(_SEED)
        try:
            said = json.loads(text) if mark else {}
        except ValueError:
            continue
        if isinstance(said, dict) and said.get("bytes", 0) >= _FEW_BYTES and said.get("seconds"):
            return Rate(
                said["bytes"] / 1e6 / said["seconds"], f"{said['bytes']:,} B in {said['seconds']:g} s, seed Job"
            )
    return None


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)
