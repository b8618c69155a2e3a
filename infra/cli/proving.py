"""`vllm-infra smoke`: whether what was deployed answers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from components import naming
from infra.cli.stack_option import AsJson, StackName, environment_and_secrets, tell
from infra.config import StackConfig
from infra.lines import Line

if TYPE_CHECKING:
    from infra.smoke import Subject
    from infra.smoke.way import Address

SECONDS = 60.0
ServiceName = Annotated[str | None, typer.Option(help="One service; else all of the stack.")]
Url = Annotated[str | None, typer.Option(help="Where the service is reachable directly; no cluster is asked then.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds that one service may take in all.")]


def smoke(
    stack: StackName,
    *,
    service: ServiceName = None,
    url: Url = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Prove that a deployed stack answers: ready address, health, model, one short completion.

    The API key comes from the variable VLLM_API_KEY, else from the Secret in the cluster. Exit code 1 when something
    does not answer.
    """
    config, secrets = environment_and_secrets(stack)
    names = [service] if service else list(config.services)
    if service is not None and service not in config.services:
        raise typer.BadParameter(f"services of {stack}: {', '.join(config.services)}")
    if url is not None and len(names) > 1:
        raise typer.BadParameter(f"--url is the address of one service; name it with --service: {', '.join(names)}")
    tell(_lines(config, _subjects(config, stack, names, "apiKey" in secrets), _address(url), timeout), as_json)


def _subjects(config: StackConfig, stack: str, names: list[str], keyed: bool) -> list[Subject]:
    from infra.smoke import Subject  # noqa: PLC0415 - the client takes a second to load

    namespace = config.cluster.namespace
    return [
        Subject(stack, name, spec, namespace, naming.service_name(name, spec), keyed)
        for name, spec in config.services.items()
        if name in names
    ]


def _address(url: str | None) -> Address | None:
    from infra.smoke import address_of  # noqa: PLC0415 - the client takes a second to load

    try:
        return None if url is None else address_of(url)
    except ValueError as error:
        raise typer.BadParameter(f"--url: {error}") from None


def _lines(config: StackConfig, subjects: list[Subject], address: Address | None, timeout: float) -> Iterator[Line]:
    """One line after the other, as they are found."""
    from infra import live  # noqa: PLC0415 - the client takes a second to load
    from infra import smoke as prove  # noqa: PLC0415

    def key(subject: Subject) -> prove.Key | None:
        if address is not None and not subject.keyed and not os.environ.get(prove.VARIABLE):
            return None  # the cluster is not asked for what there need not be
        deployment = f"{subject.namespace}/{naming.server_name(subject.name, 0)}"
        try:
            return prove.find_key(os.environ, partial(live.connect, config.cluster), deployment)
        except prove.Fault:
            if subject.keyed or os.environ.get(prove.VARIABLE):
                raise
            return None

    try:
        api = None if address is not None else live.connect(config.cluster)
        for subject in subjects:
            if api is None and address is not None:
                yield from prove.through_address(address, subject, partial(key, subject), timeout)
            elif api is not None:
                yield from prove.through_cluster(api, subject, partial(key, subject), timeout)
    except live.LiveError as error:
        yield Line("fail", "cluster", error.finding.message, remedy=error.finding.remedy)
