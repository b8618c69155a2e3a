"""`vllm-infra models add` and `vllm-infra pin`: the only commands that ask a hub or a registry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.cli.stack_option import StackName
from infra.config import ConfigError, read, stack_path
from infra.pins import Pin, pin_file
from infra.registry import RegistryError, digest_of

models = typer.Typer(help="The catalogue of models that the planner knows.", no_args_is_help=True)

Model = Annotated[str, typer.Argument(metavar="ORG/NAME", help="Name on the hub.")]
Revision = Annotated[str | None, typer.Option(help="Commit, branch or tag; the newest commit when left out.")]
Folder = Annotated[
    Path | None, typer.Option(help="A downloaded copy: config.json, safetensors, tokenizer_config.json.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be written, and write nothing.")]
Update = Annotated[bool, typer.Option("--update", help="Also renew pins that are there and no longer current.")]
Registry = Annotated[
    str | None,
    typer.Option(
        envvar="VLLM_INFRA_REGISTRY", help="URL that is asked in place of the images' own registry: a mirror."
    ),
]


@models.command()
def add(model: Model, *, revision: Revision = None, folder: Folder = None) -> None:
    """Write a model's facts into the catalogue, from the hub (HF_ENDPOINT, HF_TOKEN) or from a folder."""
    from infra import catalogue  # noqa: PLC0415 - the hub's library takes a second to load

    if model.count("/") != 1 or not all(model.split("/")):
        raise typer.BadParameter(f"{model!r} is no name of a model: write ORG/NAME")
    try:
        source = catalogue.from_folder(folder, revision) if folder else catalogue.from_hub(model, revision)
        entry = catalogue.entry_of(model, source)
    except catalogue.CatalogueError as error:
        raise _refused(error) from None
    facts = catalogue.facts_of(entry)
    file = catalogue.write(entry)
    typer.echo(f"{file.name}: {facts.architecture}, {facts.weight_bytes:,} B of weights, {facts.layers} layers")
    for unknown in facts.unknown:
        typer.echo(f"not computed by the planner, hence a warning in the preview: {unknown}")


def pin(stack: StackName, *, update: Update = False, dry_run: DryRun = False, registry: Registry = None) -> None:
    """Fill in image.digest and model.revision of a stack file; comments and order stay."""
    from infra import catalogue  # noqa: PLC0415 - the hub's library takes a second to load

    try:
        file = stack_path(stack)
        read(file)
        found = pin_file(
            file,
            lambda repository, tag: digest_of(repository, tag, registry),
            catalogue.commit_of,
            update=update,
            dry_run=dry_run,
        )
    except (ConfigError, RegistryError, catalogue.CatalogueError) as error:
        raise _refused(error) from None
    for one in found:
        typer.echo(_said(one, dry_run))
    if not found:
        typer.echo("every pin is there and current")


def _said(one: Pin, dry_run: bool) -> str:
    if not one.written:
        return f"{one.path}: kept {one.old}, and {one.new} is current; --update takes it"
    done = "would be" if dry_run else "is now"
    return f"{one.path}: {done} {one.new}" + (f" (was {one.old})" if one.old else "")


def _refused(error: Exception) -> typer.Exit:
    typer.echo(f"error: {error}", err=True)
    return typer.Exit(1)
