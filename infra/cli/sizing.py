"""`vllm-infra gpus` and `vllm-infra capacity`: which cards there are, and how many of them a load needs."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from infra.cli.stack_option import StackName, environment
from infra.tables import findings_table
from planner.capacity import dollars_per_million_tokens, plan_capacity, scale_seconds
from planner.gpus import catalogue
from planner.plan import ServicePlan, plan_services
from planner.spec import CPU

out, err = Console(), Console(stderr=True)

Peak = Annotated[float, typer.Option("--requests-per-second", min=0.001, help="Load at the busiest time.")]
Measured = Annotated[
    float | None,
    typer.Option(
        "--measured",
        min=0.001,
        help="Requests per second that one replica was measured to serve with its latencies inside the objective. "
        "Unset: workload.requestsPerSecond of the stack file.",
    ),
]
Tokens = Annotated[
    float | None, typer.Option("--output-tokens", min=1, help="Mean length of an answer, for the cost of its tokens.")
]
Service = Annotated[str | None, typer.Option(help="One service; else all.")]


def gpus() -> None:
    """List the cards that `nodes.NAME.gpu` can name; figures that are estimates are marked."""
    table = Table(box=None, pad_edge=False)
    for title in ("gpu", "memory MiB", "CUDA MiB", "SMs", "capability", "GB/s", ""):
        table.add_column(title, justify="left" if title in {"gpu", ""} else "right")
    for name, gpu in catalogue().items():
        capability = ".".join(map(str, gpu.compute_capability))
        figures = (f"{gpu.total_mib:,}", f"{gpu.usable_mib:,}", str(gpu.multiprocessors), capability)
        table.add_row(name, *figures, f"{gpu.memory_bandwidth:,.0f}", "estimate" if gpu.estimated else "")
    table.add_row(CPU, *4 * ("",), "", "no card: vLLM computes on the CPUs of the nodes")
    out.print(table)


def capacity(
    stack: StackName, peak: Peak, *, measured: Measured = None, tokens: Tokens = None, service: Service = None
) -> None:
    """How many replicas carry a load, how long another one takes to answer, and what they cost."""
    config = environment(stack)
    plans, findings = plan_services(config.nodes, config.watched_services)
    if findings or (service is not None and service not in plans):
        known = ", ".join(config.services)
        err.print(findings_table(findings) if findings else f"there is no service {service!r}; services: {known}")
        raise typer.Exit(1)
    for plan in [plans[service]] if service else plans.values():
        out.print(capacity_table(plan, peak, measured, tokens))


def capacity_table(plan: ServicePlan, peak: float, measured: float | None, tokens: float | None) -> Table:
    """The answer for one service.

    Raises:
        typer.BadParameter: nobody has measured what one replica can serve; it cannot be computed.
    """
    rate = measured or plan.service.workload.requests_per_second
    if rate is None:
        raise typer.BadParameter(
            f"how many requests a replica of {plan.name} serves inside its objective must be measured: "
            "give --measured, or workload.requestsPerSecond in the stack file"
        )
    price = plan.pool.price_per_hour
    each = None if price is None else price / plan.pool.gpus_per_node
    answer = plan_capacity(peak, rate, gpus_per_replica=plan.service.gpus, dollars_per_gpu_hour=each)
    table = Table(title=plan.name, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_row("one replica may be given", f"{answer.safe_requests_per_second:.1f} requests/s of {rate:g} measured")
    table.add_row("replicas", f"{answer.replicas} for {peak:g} requests/s; the stack has {plan.service.replicas}")
    warm, cold = scale_seconds(plan.warm), scale_seconds(plan.cold)
    table.add_row("one more answers after", f"{warm:.0f} s with its caches in place, {cold:.0f} s with none")
    if answer.dollars_per_hour is not None and answer.dollars_per_month is not None:
        table.add_row("cost", f"${answer.dollars_per_hour:,.2f} per hour, ${answer.dollars_per_month:,.0f} per month")
        if tokens is not None:
            cost = dollars_per_million_tokens(answer.dollars_per_hour, peak * tokens)
            table.add_row("", f"${cost:,.2f} per million generated tokens at that load, more at less")
    return table
