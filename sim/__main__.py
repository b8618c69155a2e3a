"""``python -m sim``: the simulated cluster from a command line."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from sim import crds, demo, real_demo, tools
from sim.cluster import CLUSTER_TOOLS, COMPONENTS, PULUMI_TOOLS, Cluster, ClusterError, state_folder
from sim.real_node import NodeError, RealNode, settings

app = typer.Typer(
    help="A Kubernetes control plane on this machine whose GPU nodes and pods are simulated.",
    no_args_is_help=True,
    add_completion=False,
)
Name = Annotated[str, typer.Option("--name", help="Which cluster: each has its own state folder.")]


@contextmanager
def _one_message_per_failure() -> Iterator[None]:
    try:
        yield
    except (ClusterError, NodeError, tools.ToolError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


def _cluster(name: str) -> Cluster:
    return Cluster(name, state_folder(name))


@app.command()
def up(name: Name = "demo") -> None:
    """Build what is missing, start the cluster and wait until its nodes are Ready."""
    with _one_message_per_failure():
        cluster = _cluster(name)
        tools.ensure((*CLUSTER_TOOLS, *PULUMI_TOOLS))
        started = time.monotonic()
        if cluster.up():
            print(f"cluster {name}: ready after {time.monotonic() - started:.1f} s, state in {cluster.state}")
        else:
            print(f"cluster {name}: runs already, state in {cluster.state}")


Stack = Annotated[str, typer.Option("--stack", help="A stack of this project.")]


@app.command()
def deploy(
    name: Name = "demo",
    stack: Stack = "demo",
    real: Annotated[bool, typer.Option("--real", help="On a real node (root on Linux), and let it answer.")] = False,
) -> None:
    """Start the cluster and deploy a stack into it with the real engine."""
    with _one_message_per_failure():
        demo.stack_file(stack)
    up(name)
    with _one_message_per_failure():
        if real:
            with real_demo.prepared(_cluster(name), stack):
                demo.deploy(_cluster(name), stack)
            demo.ask(_cluster(name), stack)
        else:
            demo.deploy(_cluster(name), stack)


@app.command()
def preview(name: Name = "demo", stack: Stack = "demo") -> None:
    """Start the cluster and preview a stack against it."""
    with _one_message_per_failure():
        demo.stack_file(stack)
    up(name)
    with _one_message_per_failure():
        demo.preview(_cluster(name), stack)


@app.command()
def down(name: Name = "demo") -> None:
    """Stop every process of the cluster and delete its state folder."""
    with _one_message_per_failure():
        folders = real_demo.made_folders(_cluster(name))
        print(f"cluster {name}: " + ("stopped, its state is deleted" if _cluster(name).down() else "was not there"))
        real_demo.remove(folders)


@app.command()
def status(name: Name = "demo") -> None:
    """Show what of the cluster runs; exit code 1 unless all of it does."""
    with _one_message_per_failure():
        cluster = _cluster(name)
        found = cluster.processes()
        print(f"cluster {name}: state in {cluster.state}")
        for component in COMPONENTS.values():
            print(f"  {component:<24}" + (f"process {found[component]}" if component in found else "not running"))
        for daemon, pid in RealNode(cluster).processes().items():
            print(f"  {daemon:<24}process {pid} of {settings.NAME}")
        if not cluster.is_running():
            raise typer.Exit(1)
        print(cluster.kubectl("get", "nodes", "--label-columns=nvidia.com/gpu.product"), end="")


@app.command()
def env(name: Name = "demo") -> None:
    """Print the variables for Pulumi and kubectl: eval "$(python -m sim env)"."""
    with _one_message_per_failure():
        variables = _cluster(name).environment()
        # A shell outlives the cluster, and most programs fail when their TMPDIR is gone.
        del variables["TMPDIR"]
        for key, value in variables.items():
            print(f"export {key}={shlex.quote(value)}")


node = typer.Typer(help="A real node beside the simulated ones: root on Linux only.", no_args_is_help=True)
app.add_typer(node, name="node")


@node.command(name="up")
def node_up(name: Name = "demo") -> None:
    """Start the cluster and the real node, and wait until it is Ready."""
    up(name)
    with _one_message_per_failure():
        started = time.monotonic()
        if RealNode(_cluster(name)).up():
            print(f"node {settings.NAME}: Ready after {time.monotonic() - started:.1f} s")
        else:
            print(f"node {settings.NAME}: runs already")


@node.command(name="down")
def node_down(name: Name = "demo") -> None:
    """Stop the real node and remove all it made; its images stay."""
    with _one_message_per_failure():
        stopped = RealNode(_cluster(name)).down()
        print(f"node {settings.NAME} of the cluster {name}: " + ("stopped" if stopped else "was not there"))


@app.command(name="tools")
def build_tools(
    real_node: Annotated[bool, typer.Option("--real-node", help="Those of the real node too.")] = False,
) -> None:
    """Build every tool that is missing, and generate the CRDs."""
    with _one_message_per_failure():
        tools.ensure()
        if real_node:
            tools.ensure(tool.name for tool in tools.NODE_TOOLS)
        print(f"CRDs: {crds.monitoring_crds()}")


if __name__ == "__main__":
    app()
