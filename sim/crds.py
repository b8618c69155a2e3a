"""The custom resource definitions that our objects use, generated from pinned Go types."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from sim import tools

MONITORING = "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
"""ServiceMonitor, PodMonitor, PrometheusRule and their siblings; pinned in tools/controller-gen/go.mod."""
_OPTIONS = ("crd:maxDescLen=0", f"paths={MONITORING}")
"""Without descriptions the CRDs are much smaller; what they accept is the same."""


def monitoring_crds() -> Path:
    """The folder that holds prometheus-operator's CRDs, one file each; generated once per pin.

    Raises:
        ToolError: no usable Go, or the generator failed; the message holds the end of its output.
    """
    generator = tools.by_name("controller-gen")
    key = hashlib.sha256("\n".join([tools.cache_key(generator), *_OPTIONS]).encode()).hexdigest()[:16]
    target = tools.cache_folder() / f"monitoring-crds-{key}"
    if target.is_dir():
        return target
    tools.require_go()
    executable = tools.ensure([generator.name])[generator.name]
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    with tools.only_one(target.with_name(f".{target.name}.lock")):
        if not target.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
            _generate(executable, partial, tools.MODULES / generator.module)
            partial.rename(target)
    return target


def _generate(executable: Path, output: Path, module: Path) -> None:
    command = [str(executable), *_OPTIONS, f"output:crd:dir={output}"]
    answer = subprocess.run(command, cwd=module, capture_output=True, text=True, check=False)
    if answer.returncode != 0 or not any(output.glob("*.yaml")):
        end = "\n".join((answer.stderr or answer.stdout).strip().splitlines()[-15:])
        raise tools.ToolError(f"generating the CRDs of {MONITORING} failed; run the same command again.\n{end}")
