"""What commands about one stack share: the option that names it, and reading it or saying why not."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from infra.config import ConfigError, StackConfig, read, stack_path
from infra.tables import findings_table

StackName = Annotated[str, typer.Option("--stack", "-s", help="A stack of this project: stacks/Pulumi.NAME.yaml.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def environment(stack: str) -> StackConfig:
    """The stack's environment, or an exit that says every fault."""
    try:
        return read(stack_path(stack))[0]
    except ConfigError as error:
        Console(stderr=True).print(findings_table(error.findings))
        raise typer.Exit(1) from None
