"""`vllm-infra`: the answers of a preview without the engine, and help when a start went wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from infra.answers import answers, cluster_answers
from infra.cli.checking import check
from infra.cli.dashboards import dashboard
from infra.cli.load import snapshot
from infra.cli.measuring import cold_start
from infra.cli.pinning import models, pin
from infra.cli.proving import smoke
from infra.cli.pull_requests import preview_report
from infra.cli.sizing import capacity, gpus
from infra.cli.stack_option import AsJson, StackName, environment
from infra.config import ConfigError, EksClusterStackConfig, StackConfig, read_any, stack_path
from infra.config.stack_file import ROOT
from infra.preflight import check_cluster, check_plan
from infra.tables import checklist_table, cluster_table, findings_table, overview
from planner.findings import Finding
from planner.plan import plan_services
from planner.spec import EksClusterSpec

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(preview_report)
app.command()(pin)
app.command()(cold_start)
app.command()(dashboard)
app.command()(gpus)
app.command()(capacity)
app.command()(snapshot)
app.command()(smoke)
app.command()(check)
app.add_typer(models, name="models")
out, err = Console(), Console(stderr=True)

Stack = Annotated[str | None, typer.Option("--stack", "-s", help="A stack of this project: stacks/Pulumi.NAME.yaml.")]
File = Annotated[Path | None, typer.Argument(help="A stack file, in place of --stack.")]


def print_json(data: object) -> None:
    """For a program to read: no colours, no wrapping."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))


def chosen_file(stack: str | None, file: Path | None) -> Path:
    """The stack file that the command line names; exactly one way of naming it."""
    if (stack is None) == (file is None):
        raise typer.BadParameter("name a stack with --stack, or a stack file")
    return file if file is not None else stack_path(str(stack))


def end(findings: list[Finding]) -> None:
    """Exit code 1 when there is an error among the findings."""
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)


def refuse(error: ConfigError, as_json: bool = False) -> typer.Exit:
    """Print every fault of a stack file; the exit that follows."""
    if as_json:
        print_json(answers({}, error.findings))
    else:
        err.print(findings_table(error.findings))
    return typer.Exit(1)


def loaded(
    stack: str | None, file: Path | None, as_json: bool = False
) -> tuple[StackConfig | EksClusterStackConfig, frozenset[str]]:
    """The configuration that the command line names, or an exit that says every fault."""
    try:
        return read_any(chosen_file(stack, file))
    except ConfigError as error:
        raise refuse(error, as_json) from None


def plan_cluster(spec: EksClusterSpec, as_json: bool) -> None:
    """The plan of a stack that is an EKS cluster of its own."""
    findings = list(check_cluster(spec))
    if as_json:
        print_json(cluster_answers(spec, findings))
    else:
        out.print(cluster_table(spec))
        out.print(findings_table(findings))
    end(findings)


@app.command()
def plan(file: File = None, stack: Stack = None, as_json: AsJson = False) -> None:
    """Say whether the model fits, which arguments are run, how long the start takes and what is wrong."""
    config, secrets = loaded(stack, file, as_json)
    if isinstance(config, EksClusterStackConfig):
        return plan_cluster(config.eks_cluster, as_json)
    plans, findings = plan_services(config.nodes, config.watched_services)
    findings += check_plan(config, secrets, plans)
    if as_json:
        print_json(answers(plans, findings, config.monitoring))
    else:
        out.print(overview(plans))
        out.print(findings_table(findings))
        out.print(checklist_table(plans, findings, config.monitoring))
    return end(findings)


@app.command()
def diagnose(
    stack: StackName, service: Annotated[str | None, typer.Option(help="One service; else all.")] = None
) -> None:
    """Say why a start failed: reason, the field to change, the last events and log lines."""
    from infra.diagnosis import diagnose as explain  # noqa: PLC0415 - the client takes a second to load
    from infra.diagnosis import in_stack_file, read_facts, render  # noqa: PLC0415
    from infra.live import LiveError, connect  # noqa: PLC0415

    config = environment(stack)
    if service is not None and service not in config.services:
        raise typer.BadParameter(f"services of {stack}: {', '.join(config.services)}")
    try:
        api = connect(config.cluster)
        for name in [service] if service else config.services:
            for replica in range(config.services[name].replicas):
                found = explain(read_facts(api, config.cluster.namespace, name, replica))
                out.print(
                    render(in_stack_file(found, config.services[name].pool)), markup=False, highlight=False, emoji=False
                )
    except LiveError as error:
        out.print(findings_table([error.finding]))
        raise typer.Exit(1) from None


@app.command()
def recover(stack: StackName) -> None:
    """After a killed `pulumi up`: release the lock and settle what was left half done."""
    from infra.recovery import RecoveryError  # noqa: PLC0415 - the client takes a second to load
    from infra.recovery import recover as settle  # noqa: PLC0415

    try:
        settle(stack, ROOT, out.print)
    except RecoveryError as error:
        err.print(str(error), markup=False)
        raise typer.Exit(1) from None
