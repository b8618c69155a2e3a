"""`vllm-infra preview-report`: a preview as one comment of a pull request."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from infra.answers import answers, cluster_answers
from infra.config import ConfigError, EksClusterStackConfig, read_any, stack_path
from infra.config.stack_file import ROOT
from infra.preflight import check_cluster, check_plan
from infra.preview import GUARDED, PreviewError, read_preview
from infra.preview_report import report
from planner.plan import plan_services

PreviewFile = Annotated[Path, typer.Argument(help="What `pulumi preview --json` printed; - is the standard input.")]
StackName = Annotated[str | None, typer.Option("--stack", "-s", help="The stack; needed with --base-ref.")]
BeforePlan = Annotated[Path | None, typer.Option(help="`vllm-infra plan --json` of the base; none for a new stack.")]
AfterPlan = Annotated[Path | None, typer.Option(help="`vllm-infra plan --json` of the change.")]
BaseRef = Annotated[str | None, typer.Option(help="Plan both sides here: the stack file of this commit, and ours.")]
Allow = Annotated[
    list[str] | None,
    typer.Option(metavar="KIND/NAME", help="A claim, volume, namespace, node group or EKS cluster that may go."),
]


def preview_report(
    preview: PreviewFile = Path("-"),
    *,
    stack: StackName = None,
    before_plan: BeforePlan = None,
    after_plan: AfterPlan = None,
    base_ref: BaseRef = None,
    allow: Allow = None,
) -> None:
    """Write a preview as one Markdown comment; nothing when nothing changes.

    Exit code 1 when the preview failed, or when a claim, volume, namespace, node group or EKS cluster would be
    replaced or deleted without --allow.
    """
    allowed = frozenset(allow or ())
    _require_kinds(allowed)
    if base_ref is not None and (before_plan or after_plan):
        raise typer.BadParameter("--base-ref makes both plans: leave --before-plan and --after-plan out")
    try:
        read_in = read_preview(_text(preview))
    except PreviewError as error:
        raise typer.BadParameter(f"{preview}: {error}") from None
    name = stack or read_in.stack
    if name is None:
        raise typer.BadParameter("the preview does not say which stack it is of: name it with --stack")
    if base_ref is not None:
        before, after = _base_plan(base_ref, name), _own_plan(name)
    else:
        before, after = _document(before_plan), _document(after_plan)
    written = report(read_in, before, after, stack=name, allowed=allowed)
    typer.echo(written.text, nl=False)
    for allowance in written.refused:
        typer.echo(f"refused: {allowance} would be lost; if that is meant: --allow {allowance}", err=True)
    if written.refused or read_in.errors:
        raise typer.Exit(1)


def _require_kinds(allowed: frozenset[str]) -> None:
    for allowance in sorted(allowed):
        kind, _, name = allowance.partition("/")
        if kind not in GUARDED or not name:
            raise typer.BadParameter(f"--allow {allowance}: write KIND/NAME, KIND one of {', '.join(sorted(GUARDED))}")


def _text(file: Path) -> str:
    if str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror}") from None


def _document(file: Path | None) -> dict[str, Any] | None:
    if file is None:
        return None
    try:
        document = json.loads(_text(file))
    except ValueError:
        document = None
    if not isinstance(document, dict) or "services" not in document:
        raise typer.BadParameter(f"{file} is no output of `vllm-infra plan --json`")
    return document


def _own_plan(stack: str) -> dict[str, Any] | None:
    """The plan of the stack file of this checkout; ``None`` when the change takes the stack away."""
    try:
        return _plan_of(stack_path(stack))
    except ConfigError:
        return None


def _base_plan(ref: str, stack: str) -> dict[str, Any] | None:
    """The plan of the stack file at a commit; ``None`` when the stack is not there yet."""
    if _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}") is None:
        raise typer.BadParameter(f"--base-ref {ref}: there is no such commit here; fetch it first")
    content = _git("show", "--end-of-options", f"{ref}:stacks/Pulumi.{stack}.yaml")
    if content is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"Pulumi.{stack}.yaml"
        file.write_text(content, encoding="utf-8")
        return _plan_of(file)


def _git(*arguments: str) -> str | None:
    """What git prints, or ``None`` when it fails."""
    answer = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return answer.stdout if answer.returncode == 0 else None


def _plan_of(file: Path) -> dict[str, Any]:
    """The plan of a stack file as `vllm-infra plan --json` prints it; of a faulty one, its faults."""
    try:
        config, secrets = read_any(file)
    except ConfigError as error:
        return answers({}, error.findings)
    if isinstance(config, EksClusterStackConfig):
        return cluster_answers(config.eks_cluster, check_cluster(config.eks_cluster))
    plans, findings = plan_services(config.nodes, config.watched_services)
    return answers(plans, [*findings, *check_plan(config, secrets, plans)], config.monitoring)
