"""`make up`: a stack of this project, deployed into the simulated cluster by the real engine."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sim import contexts
from sim.cluster import Cluster, ClusterError

ROOT = Path(__file__).parent.parent
MONITORING_KINDS = "servicemonitors,prometheusrules,configmaps,networkpolicies,deployments"
"""What monitoring consists of, whatever its mode, aside from what its Deployments need."""


def deploy(cluster: Cluster, stack: str) -> None:
    """Bring ``stack`` up in ``cluster`` and show what runs.

    Raises:
        ClusterError: `pulumi up` failed; its output and the reason are on the terminal already.
    """
    environment = {**os.environ, **cluster.environment()}
    folder = project(cluster, stack)
    _select(stack, folder, environment)
    _run(["vllm-infra", "recover", "--stack", stack], ROOT, environment)
    try:
        _run(["pulumi", "up", "--yes", "--skip-preview", "--stack", stack], folder, environment)
    except ClusterError:
        subprocess.run(["vllm-infra", "diagnose", "--stack", stack], cwd=ROOT, env=environment, check=False)
        raise
    Console().print(running(_services(stack, folder, environment), cluster, stack))
    print(f'look around: eval "$(.venv/bin/python -m sim env --name {cluster.name})" && kubectl get pods -A')
    for line in watched_by(cluster, stack):
        print(line)


def watched_by(cluster: Cluster, stack: str) -> list[str]:
    """Which objects watch ``stack``, and how to see them; nothing where nobody does."""
    get = ("get", MONITORING_KINDS, f"--selector=pulumi-vllm/stack={stack},app.kubernetes.io/component=monitoring")
    items = json.loads(cluster.kubectl(*get, "--all-namespaces", "--output=json"))["items"]
    if not items:
        return []
    names = ", ".join(f"{item['kind']}/{item['metadata']['name']}" for item in items)
    return [
        f"monitoring: {names}",
        f"what they say: kubectl {' '.join(get)} --namespace={items[0]['metadata']['namespace']} --output=yaml",
    ]


def ask(cluster: Cluster, stack: str) -> None:
    """Let a deployed ``stack`` answer, and show how its server started beside what was planned.

    Raises:
        ClusterError: it does not answer; the reasons are on the terminal already.
    """
    environment = {**os.environ, **cluster.environment()}
    _run(["vllm-infra", "smoke", "--stack", stack], ROOT, environment)
    _run(["vllm-infra", "cold-start", "--stack", stack], ROOT, environment)


def preview(cluster: Cluster, stack: str) -> None:
    """Preview ``stack`` against ``cluster``.

    Raises:
        ClusterError: the preview refuses the stack; the reasons are on the terminal already.
    """
    environment = {**os.environ, **cluster.environment()}
    folder = project(cluster, stack)
    _select(stack, folder, environment)
    _run(["pulumi", "preview", "--diff", "--stack", stack], folder, environment)


def project(cluster: Cluster, stack: str) -> Path:
    """A folder with this project's program and a copy of the stack file.

    Pulumi writes the salt of its secrets into a stack file and lays the file out anew. That belongs into
    the file of a person who initialises a stack, and not into the shipped one.
    """
    folder = cluster.state / "project"
    (folder / "stacks").mkdir(parents=True, exist_ok=True)
    definition = (ROOT / "Pulumi.yaml").read_text("utf-8").replace("main: infra/", f"main: {ROOT / 'infra'}")
    (folder / "Pulumi.yaml").write_text(definition.replace(".venv", str(ROOT / ".venv")), encoding="utf-8")
    shipped, copy = stack_file(stack), folder / "stacks" / f"Pulumi.{stack}.yaml"
    kept = copy.read_text("utf-8").splitlines() if copy.is_file() else []
    text = shipped.read_text("utf-8")
    salt = [line for line in kept if line.startswith("encryptionsalt:") and line not in text]
    copy.write_text("\n".join([text.rstrip("\n"), *salt, ""]), encoding="utf-8")
    return folder


def stack_file(stack: str) -> Path:
    """The shipped file of a stack that can run in a simulated cluster.

    Raises:
        ClusterError: there is none, or it is about something else than what runs in a cluster.
    """
    file = contexts.STACKS / f"Pulumi.{stack}.yaml"
    if not file.is_file():
        raise ClusterError(f"there is no stack {stack}: {file} is missing")
    try:
        context = contexts.context_of(file)
    except ValueError as error:
        raise ClusterError(str(error)) from error
    if context is None:
        raise ClusterError(
            f"the stack {stack} names no vllm:cluster.context, so that nothing of it could run in a simulated cluster, "
            f"and AWS is not simulated; `vllm-infra plan --stack {stack}` says what it is"
        )
    return file


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
    return table


def _select(stack: str, folder: Path, environment: Mapping[str, str]) -> None:
    command = ["pulumi", "stack", "select", "--create", "--stack", stack]
    answer = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise ClusterError(f"the stack {stack} cannot be selected: {answer.stderr.strip() or answer.stdout.strip()}")


def _services(stack: str, folder: Path, environment: Mapping[str, str]) -> dict[str, dict[str, object]]:
    command = ["pulumi", "stack", "output", "services", "--json", "--stack", stack]
    answer = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    services: dict[str, dict[str, object]] = json.loads(answer.stdout)
    return services


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
    answer = subprocess.run(command, cwd=folder, env=environment, check=False)
    if answer.returncode != 0:
        raise ClusterError(f"`{' '.join(command)}` ended with exit code {answer.returncode}")
