"""Reading a stack file without the engine, the way the engine reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml.error import MarkedYAMLError

from infra.config import engine_yaml
from infra.config.errors import ConfigError
from infra.config.measurements import with_measurements
from infra.config.stack import SECRET_KEYS, EksClusterStackConfig, StackConfig, any_stack_config, environment_of
from planner.findings import Finding

PROJECT = "vllm"
ROOT = Path(__file__).resolve().parents[2]
STACKS = ROOT / "stacks"


def stack_path(stack: str) -> Path:
    """Where the file of ``stack`` is.

    Raises:
        ConfigError: there is no such file; the message lists the stacks that there are.
    """
    path = STACKS / f"Pulumi.{stack}.yaml"
    if path.is_file():
        return path
    known = ", ".join(sorted(file.name[len("Pulumi.") : -len(".yaml")] for file in STACKS.glob("Pulumi.*.yaml")))
    raise ConfigError([Finding("error", str(path), "there is no such stack file", f"stacks: {known}", "CFG-FILE")])


def read(path: Path) -> tuple[StackConfig, frozenset[str]]:
    """The environment in the file at ``path``, and which of the secrets it sets (never their values).

    Raises:
        ConfigError: as `read_any`, and where the file describes an EKS cluster of its own.
    """
    config, secrets = read_any(path)
    return environment_of(config), secrets


def read_any(path: Path) -> tuple[StackConfig | EksClusterStackConfig, frozenset[str]]:
    """The configuration in the file at ``path``, of either kind, and which of the secrets it sets.

    Raises:
        ConfigError: unreadable, no YAML, or faults in it, all at once.
    """
    values = project_values(load_yaml(path), path)
    return any_stack_config(*with_measurements(values, path.parent)), frozenset(values).intersection(SECRET_KEYS)


def load_yaml(path: Path) -> Any:
    """The content of a file as plain Python values, as the engine reads it.

    Raises:
        ConfigError: unreadable, or no YAML; the message names line and column.
    """
    try:
        return engine_yaml.load(path)
    except OSError as error:
        raise _fault(path, f"cannot be read: {error.strerror}", "check the path") from None
    except engine_yaml.YamlFaultError as error:
        raise _fault(path, f"{error.problem}{_where(error)}", "correct that line") from None
    except MarkedYAMLError as error:
        raise _fault(path, f"is no YAML{_where(error)}: {error.problem}", "correct that line") from None


def project_values(content: Any, path: Path) -> dict[str, Any]:
    """The keys of this project below `config:`, without the project's name."""
    config = content.get("config") if isinstance(content, dict) else None
    if not isinstance(config, dict):
        raise _fault(path, "has no `config:` with sections below it", "see stacks/Pulumi.lab-3060.yaml")
    prefix = f"{PROJECT}:"
    return {key.removeprefix(prefix): value for key, value in config.items() if str(key).startswith(prefix)}


def _where(error: MarkedYAMLError) -> str:
    mark = error.problem_mark
    return f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""


def _fault(path: Path, message: str, remedy: str) -> ConfigError:
    return ConfigError([Finding("error", path.name, message, remedy, "CFG-FILE", "https://yaml.org/spec/1.2.2/")])
