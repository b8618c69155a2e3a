"""The plan as tables for a person."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from planner.checklist import Box, checklists, questions
from planner.findings import Finding, by_severity
from planner.gpus import Cpu
from planner.plan import ServicePlan
from planner.spec.aws import EKS_ADDONS, EksClusterSpec
from planner.spec.monitoring import MonitoringSpec

_STATUSES = {"held": "green", "checked": "cyan", "person": "yellow", "not offered": "dim"}
_LEVELS = {"error": ("error", "bold red"), "warn": ("warning", "yellow"), "info": ("note", "cyan")}


def overview(plans: Mapping[str, ServicePlan]) -> RenderableType:
    """One block for each service."""
    return Group(*(service_block(plan) for plan in plans.values()))


def cluster_table(spec: EksClusterSpec) -> Table:
    """What a stack builds that is an EKS cluster of its own."""
    title = f"{spec.name}: EKS, Kubernetes {spec.kubernetes_version}, {spec.region}"
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    outside = ", ".join(spec.public_access_cidrs)
    table.add_row("control plane", f"in {', '.join(sorted({subnet.zone for subnet in spec.subnets}))}")
    table.add_row("API server", f"from the VPC and {outside}" if outside else "from the VPC only")
    table.add_row("administrators", "\n".join(spec.administrators))
    versions = (f"{addon} {spec.addon_versions.get(addon, '(version: EKS chooses)')}" for addon in EKS_ADDONS)
    table.add_row("add-ons", "\n".join(versions))
    table.add_row("system nodes", f"{spec.system_nodes.nodes} x {spec.system_nodes.instance_type}, no GPU")
    table.add_row("deletion", "refused until deletionProtection is false" if spec.deletion_protection else "allowed")
    return table


def service_block(plan: ServicePlan) -> RenderableType:
    """Fit, start-up and command of one service."""
    title = f"{plan.name}: {plan.model.id} on {plan.gpu.name}, vLLM {plan.release.version}"
    command = Text(" ".join(plan.argv), style="dim")
    tables = (memory_table(plan), startup_table(plan), steps_table(plan))
    return Panel(Group(*tables, command), title=title, title_align="left")


def memory_table(plan: ServicePlan) -> Table:
    """Does it fit: the division of the card's or the container's memory, and how many requests that holds."""
    memory = plan.memory
    on_cpus = isinstance(plan.gpu, Cpu)
    title = "Memory of the container" if on_cpus else "GPU memory"
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    style = {"yes": "green", "within band": "yellow", "no": "bold red"}[memory.fits]
    table.add_row("fits", Text({"yes": "yes", "within band": "perhaps", "no": "no"}[memory.fits], style=style))
    whole = "" if on_cpus else f" of a budget of {memory.requested_mib / 1024:.2f} GiB"
    table.add_row("weights", f"{memory.weights_mib / 1024:.2f} GiB{whole}")
    given = plan.service.engine.cpu_kv_cache_space is not None
    band = "" if given else f" ± {memory.band_mib / 1024:.2f}"
    table.add_row("KV cache", f"{memory.kv_mib / 1024:.2f}{band} GiB, {memory.kv_tokens:,} tokens")
    table.add_row("context", f"{memory.max_model_len:,} tokens asked, {memory.largest_context:,} would fit")
    table.add_row(
        "at once",
        f"{memory.full_length_requests:.1f} requests of full length, "
        f"{memory.typical_requests:.0f} of {memory.typical_tokens:,} tokens",
    )
    if memory.utilization_that_fits is not None:
        table.add_row("utilisation", f"{memory.utilization:g} asked, {memory.utilization_that_fits:.2f} would do")
    if isinstance(plan.gpu, Cpu):
        processes = memory.context_mib + memory.overhead_mib + memory.activations_mib
        table.add_row("processes", f"{processes / 1024:.2f} GiB: Python, and what a step computes with")
        used = f"{memory.used_mib / 1024:.2f} ± {memory.band_mib / 1024:.2f} GiB"
        table.add_row("container", f"{used} of a limit of {memory.limit_mib / 1024:.2f} GiB")
    else:
        table.add_row("nvidia-smi", f"{memory.used_mib:,.0f} MiB of {plan.gpu.total_mib:,}")
    return table


def startup_table(plan: ServicePlan) -> Table:
    """How long the start takes, and why."""
    table = Table(title="Start-up", title_justify="left", box=None, pad_edge=False)
    for column in ("phase", "first", "restart"):
        table.add_column(column, justify="left" if column == "phase" else "right")
    table.add_column("from")
    for first, again in zip(plan.cold.phases, plan.warm.phases, strict=True):
        table.add_row(first.name, f"{first.seconds:.1f} s", f"{again.seconds:.1f} s", first.why)
    table.add_row("total", f"{plan.cold.seconds:.1f} s", f"{plan.warm.seconds:.1f} s", style="bold")
    clocks = plan.clocks
    table.add_row("budget", f"{clocks.startup_window_seconds} s", "", "startup probe: the worst credible start fits in")
    of = "of a change: the old server's stop and a restart"
    if plan.service.replicas > 1:
        of = f"of a change: one replica after the other is away, each for {plan.away_seconds:.0f} s"
    table.add_row("downtime", "", f"{plan.downtime_seconds:.0f} s", of)
    return table


def steps_table(plan: ServicePlan) -> Table:
    """What each cache is worth: a start with it and with all above it."""
    table = Table(title="Start with", title_justify="left", box=None, pad_edge=False)
    for column in ("", "total", "init engine"):
        table.add_column(column, justify="right" if column else "left")
    for step in plan.steps:
        table.add_row(step.there, f"{step.start.seconds:.1f} s", f"{step.start.init_engine_seconds:.1f} s")
    return table


def findings_table(findings: Iterable[Finding]) -> RenderableType:
    """Every finding, the worst first: where, what, and the way out."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in by_severity(findings):
        label, style = _LEVELS[finding.level]
        text = Text.assemble((finding.path, "bold"), f": {finding.message}\n", (f"→ {finding.remedy}", "dim"))
        table.add_row(Text(label, style=style), text, Text(finding.rule, style="dim"))
    return table


def checklist_table(
    plans: Mapping[str, ServicePlan], findings: Iterable[Finding], monitoring: MonitoringSpec | None = None
) -> Table:
    """The production checklist: each box once for all services that have the same answer to it."""
    table = Table(title="Production checklist", title_justify="left", box=None, pad_edge=False, show_header=False)
    answers: dict[Box, list[str]] = {}
    for name, boxes in checklists(plans, findings, monitoring).items():
        for box in boxes:
            answers.setdefault(box, []).append(name)
    order, section = [question.id for question in questions()], ""
    for box in sorted(answers, key=lambda box: order.index(box.id)):
        if box.section != section:
            section = box.section
            table.add_row("", Text(section, style="bold"))
        whose = f"{', '.join(answers[box])}: " if len(answers[box]) < len(plans) else ""
        said = "".join(f"\n{line}" for line in box.said)
        table.add_row(
            Text(box.status, style=_STATUSES[box.status]),
            Text.assemble(f"{box.box}\n", (f"{whose}{box.where}{said}", "dim")),
        )
    return table
