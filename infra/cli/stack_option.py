"""What commands about one stack share: the option that names it, and reading it or saying why not."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console

from infra.config import ConfigError, StackConfig, read, stack_path
from infra.lines import Line, as_data, as_text, failed
from infra.tables import findings_table

StackName = Annotated[str, typer.Option("--stack", "-s", help="A stack of this project: stacks/Pulumi.NAME.yaml.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def environment(stack: str) -> StackConfig:
    """The stack's environment, or an exit that says every fault."""
    return environment_and_secrets(stack)[0]


def environment_and_secrets(stack: str) -> tuple[StackConfig, frozenset[str]]:
    """The same, and which of the secrets it sets (never their values)."""
    try:
        return read(stack_path(stack))
    except ConfigError as error:
        raise print_faults(error) from None


def tell(found: Iterable[Line], as_json: bool) -> None:
    """Print each line as soon as it is known, or all as one document; exit code 1 when one says `fail`."""
    lines: list[Line] = []
    out = Console()
    for line in found:
        lines.append(line)
        if not as_json:
            out.print(as_text(line), soft_wrap=True)
    if as_json:
        typer.echo(json.dumps({"lines": [as_data(line) for line in lines]}, indent=2, ensure_ascii=False))
    if failed(lines):
        raise typer.Exit(1)


def print_faults(error: ConfigError) -> typer.Exit:
    """Print every fault of a stack file; the exit that follows."""
    Console(stderr=True).print(findings_table(error.findings))
    return typer.Exit(1)
