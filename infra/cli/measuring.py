"""`vllm-infra cold-start`: what a start really took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from infra.cli.stack_option import AsJson, StackName, environment
from infra.config import StackConfig
from infra.tables import findings_table
from planner.plan import ServicePlan, plan_services

if TYPE_CHECKING:
    from infra.cold_start import Evidence

ServiceName = Annotated[str | None, typer.Option(help="The service; needed when the stack has several.")]
Replica = Annotated[int, typer.Option(min=0, help="Which replica, counted from 0.")]
Save = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Keep pod, events and logs there; secrets are taken out.")
]
From = Annotated[
    Path | None, typer.Option("--from", metavar="FOLDER", help="Measure what was saved there, not the live cluster.")
]
Write = Annotated[Path | None, typer.Option(metavar="FILE", help="Write or renew a measurement file for the planner.")]
CardMib = Annotated[int | None, typer.Option(min=1, help="Memory that nvidia-smi shows as used after Ready, MiB.")]


def cold_start(
    stack: StackName,
    *,
    service: ServiceName = None,
    replica: Replica = 0,
    save: Save = None,
    source: From = None,
    write: Write = None,
    card_mib: CardMib = None,
    as_json: AsJson = False,
) -> None:
    """Measure the newest start of a replica, phase by phase, beside the plan.

    Exit code 1 when a start was slower than its startup probe waits, or did not come to its end.
    """
    from infra import cold_start as measure  # noqa: PLC0415 - the client takes a second to load

    config = environment(stack)
    plan = planned(config, stack, service, replica)
    try:
        evidence = _evidence(config, plan.name, replica, source)
        if save is not None:
            measure.save(evidence, save)
        reports = measure.reports_of(plan, evidence, card_mib)
        if write is not None:
            measure.write(write, plan, evidence, reports)
    except (measure.EvidenceError, measure.MeasurementError) as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        typer.echo(json.dumps({"starts": [measure.as_data(report, evidence) for report in reports]}, indent=2))
    out = Console()
    for report in reports if not as_json else ():
        out.print(measure.block(report, evidence, card_mib))
        out.print(findings_table(report.findings))
    if not reports:
        typer.echo(f"nothing to measure: {'; '.join(evidence.unread) or 'no start of this replica'}", err=True)
    if not reports or any(finding.level == "error" for report in reports for finding in report.findings):
        raise typer.Exit(1)


def planned(config: StackConfig, stack: str, service: str | None, replica: int) -> ServicePlan:
    """The plan of the service that is meant, as the program deploys it: with the settings that its alerts need."""
    names = list(config.services)
    name = service or (names[0] if len(names) == 1 else "")
    if name not in config.services:
        raise typer.BadParameter(f"services of {stack}: {', '.join(names)}; name one with --service")
    if replica >= config.services[name].replicas:
        raise typer.BadParameter(f"{name} has {config.services[name].replicas} replicas, counted from 0")
    plans, findings = plan_services(config.nodes, {name: config.watched_services[name]})
    if name not in plans:
        Console(stderr=True).print(findings_table(findings))
        raise typer.Exit(1)
    return plans[name]


def _evidence(config: StackConfig, service: str, replica: int, source: Path | None) -> Evidence:
    from infra import cold_start as measure  # noqa: PLC0415 - the client takes a second to load
    from infra.diagnosis import get  # noqa: PLC0415
    from infra.live import LiveError, connect  # noqa: PLC0415

    if source is not None:
        return measure.load(source, service, replica)
    try:
        api = connect(config.cluster)
    except LiveError as error:
        Console(stderr=True).print(findings_table([error.finding]))
        raise typer.Exit(1) from None
    namespace = config.cluster.namespace
    return measure.gather(
        lambda path: get(api, path), namespace, service, replica, lambda pod: measure.listed(api, namespace, pod)
    )
