"""`vllm-infra dashboard`: a service's dashboard as a file for a Grafana without the sidecar."""

from __future__ import annotations

from importlib.util import find_spec

import typer

from components.monitoring_names import targets_of
from infra.cli.measuring import ServiceName, planned
from infra.cli.stack_option import StackName, environment
from planner.metrics import UnknownMetricError
from planner.spec.monitoring import NoMonitoring


def dashboard(stack: StackName, service: ServiceName = None) -> None:
    """Print a service's dashboard, to be imported into Grafana: the same document as in its ConfigMap."""
    if find_spec("grafana_foundation_sdk") is None:
        raise typer.BadParameter("the library that makes dashboards, grafana-foundation-sdk, needs Python 3.11")
    from components.dashboard import dashboard_json  # noqa: PLC0415 - its library takes a second to load

    config = environment(stack)
    if isinstance(config.monitoring, NoMonitoring):
        raise typer.BadParameter(
            "vllm:monitoring.mode is none: nothing would record what the dashboard shows; set operator, annotations or "
            "standalone"
        )
    plan = planned(config, stack, service, replica=0)
    (target,) = targets_of({plan.name: plan}, config.monitoring, config.cluster.namespace)
    try:
        typer.echo(dashboard_json(target))
    except UnknownMetricError as error:
        raise typer.BadParameter(str(error)) from None
