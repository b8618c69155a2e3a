"""`make up`: a stack of this project, deployed into the simulated cluster by the real engine."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sim.cluster import Cluster, ClusterError

ROOT = Path(__file__).parent.parent


def deploy(cluster: Cluster, stack: str) -> None:
    """Bring ``stack`` up in ``cluster`` and show what runs.

    Raises:
        ClusterError: `pulumi up` failed; its output and the reason are on the terminal already.
    """
    environment = {**os.environ, **cluster.environment()}
    _select(stack, environment)
    _run(["vllm-infra", "recover", "--stack", stack], environment)
    try:
        _run(["pulumi", "up", "--yes", "--skip-preview", "--stack", stack], environment)
    except ClusterError:
        subprocess.run(["vllm-infra", "diagnose", "--stack", stack], cwd=ROOT, env=environment, check=False)
        raise
    Console().print(running(_services(stack, environment), cluster, stack))


def preview(cluster: Cluster, stack: str) -> None:
    """Preview ``stack`` against ``cluster``.

    Raises:
        ClusterError: the preview refuses the stack; the reasons are on the terminal already.
    """
    environment = {**os.environ, **cluster.environment()}
    _select(stack, environment)
    _run(["pulumi", "preview", "--diff", "--stack", stack], environment)


def running(services: Mapping[str, Mapping[str, object]], cluster: Cluster, stack: str) -> Table:
    """What runs: a column for each service, since an address is long."""
    table = Table(title=f"stack {stack} in the simulated cluster {cluster.name}", title_justify="left")
    table.add_column("service")
    for name in services:
        table.add_column(name, overflow="fold")
    for title, key, unit in (
        ("model", "model", ""),
        ("vLLM", "release", ""),
        ("GPU", "gpu", ""),
        ("address", "address", ""),
        ("start-up budget", "startupBudgetSeconds", " s"),
        ("downtime of a change", "downtimeSeconds", " s"),
    ):
        table.add_row(title, *(f"{answers[key]}{unit}" for answers in services.values()))
    table.caption = f'look around: eval "$(.venv/bin/python -m sim env --name {cluster.name})" && kubectl get pods -A'
    table.caption_justify = "left"
    return table


def _select(stack: str, environment: Mapping[str, str]) -> None:
    command = ["pulumi", "stack", "select", "--create", "--stack", stack]
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise ClusterError(f"the stack {stack} cannot be selected: {answer.stderr.strip() or answer.stdout.strip()}")


def _services(stack: str, environment: Mapping[str, str]) -> dict[str, dict[str, object]]:
    command = ["pulumi", "stack", "output", "services", "--json", "--stack", stack]
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    services: dict[str, dict[str, object]] = json.loads(answer.stdout)
    return services


def _run(command: Sequence[str], environment: Mapping[str, str]) -> None:
    answer = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if answer.returncode != 0:
        raise ClusterError(f"`{' '.join(command)}` ended with exit code {answer.returncode}")
