"""How findings and plans are said inside the engine: as log lines, before anything is registered."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from io import StringIO

import pulumi
from rich.console import Console

from infra.tables import overview
from planner.findings import Finding, by_severity
from planner.plan import ServicePlan

EXPLAINED = 32
"""Exit code after which the language host adds no word of its own (pulumi-language-python-exec)."""
WIDTH = 110
"""Columns of the plan in a log; fits a terminal and a pull request."""


def sentence(finding: Finding) -> str:
    """One finding in two lines: where and what, then the way out."""
    source = f"  ({finding.rule}: {finding.source})" if finding.source else f"  ({finding.rule})"
    return f"{finding.path}: {finding.message}\n  → {finding.remedy}{source}"


def plan_text(plans: Mapping[str, ServicePlan]) -> str:
    """The plan's tables as plain text of a fixed width: a log has no terminal to ask."""
    text = StringIO()
    Console(file=text, width=WIDTH).print(overview(plans))
    return f"the plan\n{text.getvalue()}"


def announce(findings: Iterable[Finding], plans: Mapping[str, ServicePlan] | None = None) -> None:
    """Print every finding once, then the plan; with an error among them, end without a traceback.

    What follows is the registration, which the engine may stop: that has no traceback either.

    Raises:
        SystemExit: nothing was registered, hence nothing is created, changed or lost.
    """
    ordered = by_severity(findings)
    for finding in ordered:
        if finding.level != "error":
            (pulumi.log.warn if finding.level == "warn" else pulumi.log.info)(sentence(finding))
    if plans:
        pulumi.log.info(plan_text(plans))
    errors = [sentence(finding) for finding in ordered if finding.level == "error"]
    if errors:
        pulumi.log.error("\n".join([f"{len(errors)} error(s); nothing was created, changed or lost", *errors]))
        raise SystemExit(EXPLAINED)
    _end_quietly_when_stopped()


def _end_quietly_when_stopped() -> None:
    """End without a traceback when the engine stops the program.

    Once an update has failed the engine interrupts what the language host runs (pulumi,
    sdk/go/common/resource/plugin/plugin.go: InterruptChildren), and Python would print where it was at that
    moment, below the reason of the failure. Nothing is left to do then: what was registered is the engine's.
    """
    signal.signal(signal.SIGINT, lambda *_: os._exit(EXPLAINED))


def repeat_on(servers: Mapping[str, pulumi.Resource], findings: Iterable[Finding]) -> None:
    """Say each warning about a service once more, on its server, where a reader of the update looks."""
    for finding in findings:
        for name, server in servers.items():
            if finding.level == "warn" and finding.path.startswith(f"vllm:services.{name}."):
                pulumi.log.warn(sentence(finding), server)
