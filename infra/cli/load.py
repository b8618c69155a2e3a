"""`vllm-infra snapshot`: what a server did between two readings of /metrics, and what that points at."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from infra.cli.stack_option import AsJson, environment
from infra.config import StackConfig
from infra.tables import findings_table
from planner.metrics import metrics_of
from planner.releases import Release, UnknownReleaseError, release_of
from planner.spec import ServiceSpec
from planner.spec.monitoring import AlertsSpec, NoMonitoring, alerts_of

if TYPE_CHECKING:
    from infra.snapshot import Difference, Exposition

err = Console(stderr=True)
SECONDS = 60.0
STDERR = 2
COMMAND_NOT_FOUND = 127
KILLED = 128
"""What a POSIX shell answers (2.8.2, Exit Status for Commands); to the second the number of the signal is added."""

Command = Annotated[
    list[str] | None, typer.Argument(metavar="-- COMMAND …", help="Read before and after it; its exit code is ours.")
]
StackName = Annotated[str | None, typer.Option("--stack", "-s", help="Read every replica of this stack's services.")]
Service = Annotated[str | None, typer.Option(help="One service of the stack; else all.")]
Url = Annotated[str | None, typer.Option(help="Address of a server, for example http://localhost:8000.")]
Before = Annotated[Path | None, typer.Option(help="A saved page of /metrics; needs --after.")]
After = Annotated[Path | None, typer.Option(help="The page of the same server, saved later.")]
Seconds = Annotated[float | None, typer.Option(min=0.1, help="Time between the readings; 60 when left out.")]
Dcgm = Annotated[str | None, typer.Option(metavar="URL", help="/metrics of the DCGM exporter on the server's node.")]


@dataclass(frozen=True)
class Target:
    """A service to read: ``take`` reads its replicas now, ``key`` is its key in a stack file."""

    name: str
    take: Callable[[], Mapping[str, Exposition]]
    key: str = "KEY"
    release: Release | None = None
    alerts: AlertsSpec | None = None


def snapshot(
    command: Command = None,
    *,
    stack: StackName = None,
    service: Service = None,
    url: Url = None,
    before: Before = None,
    after: After = None,
    seconds: Seconds = None,
    dcgm: Dcgm = None,
    as_json: AsJson = False,
) -> None:
    """Read /metrics twice; say what was served between, where the time went, and which field to change."""
    from infra.live import LiveError  # noqa: PLC0415 - the client takes a second to load
    from infra.snapshot import SnapshotError  # noqa: PLC0415

    saved = before is not None or after is not None
    ways = [stack is not None, url is not None, saved].count(True)
    _require_sense(
        {
            "name a stack with --stack, a server with --url, or two pages with --before and --after": ways != 1,
            "--before needs --after, and --after needs --before": (before is None) != (after is None),
            "--before and --after were read already: no command, --seconds or --dcgm can be added": saved
            and (bool(command) or seconds is not None or dcgm is not None),
            "--seconds and a command exclude each other": bool(command) and seconds is not None,
            "--service chooses among the services of --stack": service is not None and stack is None,
        }
    )
    try:
        if before is not None and after is not None:
            found, code = _of_files(before, after), 0
        else:
            targets = [_of_url(url)] if url is not None else _of_stack(str(stack), service)
            found, code = _measured(targets, dcgm, seconds or SECONDS, command)
    except SnapshotError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except LiveError as error:
        err.print(findings_table([error.finding]))
        raise typer.Exit(1) from None
    _print(found, as_json)
    if code:
        raise typer.Exit(code)


def _require_sense(faults: Mapping[str, bool]) -> None:
    """Refuse what would be ignored: faults by what to say of them."""
    for said, is_there in faults.items():
        if is_there:
            raise typer.BadParameter(said)


def _of_files(before: Path, after: Path) -> list[tuple[Target, Difference]]:
    from infra import snapshot as read  # noqa: PLC0415 - the client takes a second to load

    earlier, later = read.from_file(before), read.from_file(after)
    return [(Target("server", dict), read.difference({"server": earlier}, {"server": later}))]


def _of_url(url: str) -> Target:
    from infra.snapshot import from_url  # noqa: PLC0415 - the client takes a second to load

    return Target(url, lambda: {url: from_url(url)})


def _of_stack(stack: str, service: str | None) -> list[Target]:
    from infra.live import connect  # noqa: PLC0415 - the client takes a second to load
    from infra.snapshot import from_pods  # noqa: PLC0415

    config = environment(stack)
    if service is not None and service not in config.services:
        raise typer.BadParameter(f"services of {stack}: {', '.join(config.services)}")
    api, namespace = connect(config.cluster), config.cluster.namespace

    def target(name: str, spec: ServiceSpec) -> Target:
        def take() -> Mapping[str, Exposition]:
            return from_pods(api, namespace, name, spec.exposure.port)

        return Target(name, take, name, _release(spec), _alerts(config, name))

    return [target(name, spec) for name, spec in config.services.items() if service in {None, name}]


def _release(spec: ServiceSpec) -> Release | None:
    """The declared release, where the image says which."""
    try:
        return release_of(spec.image)
    except UnknownReleaseError:
        return None


def _alerts(config: StackConfig, name: str) -> AlertsSpec | None:
    return None if isinstance(config.monitoring, NoMonitoring) else alerts_of(config.monitoring, name)


def _measured(
    targets: Sequence[Target], dcgm: str | None, seconds: float, command: Sequence[str] | None
) -> tuple[list[tuple[Target, Difference]], int]:
    """Read, wait or run, read again; and the exit code of what was run."""
    from infra.snapshot import difference  # noqa: PLC0415 - the client takes a second to load

    earlier, begin = [target.take() for target in targets], time.monotonic()
    used = [_utilisation(dcgm, pages) for pages in earlier]
    code = _run(command) if command else _wait(seconds)
    later, end = [target.take() for target in targets], time.monotonic()
    found = []
    for target, before, after, percent in zip(targets, earlier, later, used, strict=True):
        also = _utilisation(dcgm, after)
        both = None if percent is None or also is None else fmean((percent, also))
        metrics = None if target.release is None else metrics_of(target.release)
        found.append((target, difference(before, after, seconds=end - begin, metrics=metrics, gpu_utilisation=both)))
    return found, code


def _utilisation(dcgm: str | None, pages: Mapping[str, Exposition]) -> float | None:
    from infra.snapshot import gpu_utilisation  # noqa: PLC0415 - the client takes a second to load

    return None if dcgm is None else gpu_utilisation(dcgm, frozenset(pages))


def _wait(seconds: float) -> int:
    typer.echo(f"read once; again in {seconds:g} s", err=True)
    time.sleep(seconds)
    return 0


def _run(command: Sequence[str]) -> int:
    """Run it; what it prints goes to stderr, so that the answer stays one document."""
    sys.stdout.flush()
    try:
        code = subprocess.run(command, stdout=STDERR, check=False).returncode
    except OSError as error:
        typer.echo(f"{command[0]} cannot be run: {error.strerror}", err=True)
        raise typer.Exit(COMMAND_NOT_FOUND) from None
    return code if code >= 0 else KILLED - code


def _print(found: Sequence[tuple[Target, Difference]], as_json: bool) -> None:
    from infra.snapshot import document, render, verdicts  # noqa: PLC0415 - the client takes a second to load

    points = {
        target.name: verdicts(each, target.key, alerts=target.alerts, release=target.release) for target, each in found
    }
    if as_json:
        documents = {target.name: document(each, points[target.name]) for target, each in found}
        typer.echo(json.dumps(documents, indent=2, ensure_ascii=False))
    else:
        typer.echo("\n\n".join(render(target.name, each, points[target.name]) for target, each in found))
