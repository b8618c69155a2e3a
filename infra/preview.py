"""What `pulumi preview --json` says, as changes of single resources.

The format is the engine's ``PreviewDigest`` (pulumi, pkg/display/json.go): one step for each operation on a resource,
a replacement as up to three of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from infra.redaction import HIDDEN, names_a_secret

Operation = Literal["replace", "delete", "leave", "update", "create", "import"]

ORDER: tuple[Operation, ...] = ("replace", "delete", "leave", "update", "create", "import")
"""The order in which changes are told: what can lose something first."""

GUARDED = frozenset({"PersistentVolumeClaim", "PersistentVolume", "Namespace", "NodeGroup", "Cluster"})
"""Kinds whose replacement or deletion needs an allowance: with them go weights, caches, everything inside, or nodes."""

_OPERATIONS: Mapping[str, Operation] = {
    "create": "create",
    "update": "update",
    "delete": "delete",
    "replace": "replace",
    "create-replacement": "replace",
    "delete-replaced": "replace",
    "import": "import",
    "import-replacement": "replace",
}
_BOOKKEEPING = re.compile(r"^(?:pulumi:|vllm:)")
"""Stack, providers and components are no objects of a cluster or a cloud."""

_PATH = re.compile(r"""\[(?P<index>\d+)\]|\["(?P<quoted>(?:[^"\\]|\\.)*)"\]|(?P<plain>[^.\[\]]+)""")
_ABSENT = object()
_UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""What stands for a text that is not known before the change (pulumi, sdk/go/common/resource/plugin/rpc.go)."""

_WORD = re.compile(r"^(?P<list>.*\.(?:command|args))\[\d+\]$")


class PreviewError(ValueError):
    """The text is no output of `pulumi preview --json`; the message says what is wrong with it."""


@dataclass(frozen=True)
class PropertyChange:
    """One property that changes. ``old`` and ``new`` are None where there is nothing to show, or not yet known."""

    path: str
    old: str | None
    new: str | None
    replaces: bool


@dataclass(frozen=True)
class Change:
    """What happens to one resource.

    ``kind`` is the Kubernetes kind or the last part of the Pulumi type, ``name`` the object's name in the cluster or
    the cloud, else the logical one. ``leave`` means that the stack forgets it and the cluster keeps it
    (``retainOnDelete``). ``reasons`` are the properties that force a replacement. ``service`` is the key in
    ``vllm:services`` of what belongs to one.
    """

    operation: Operation
    kind: str
    name: str
    urn: str
    reasons: tuple[str, ...]
    properties: tuple[PropertyChange, ...]
    service: str | None

    @property
    def allowance(self) -> str:
        """What `--allow` takes for this resource."""
        return f"{self.kind}/{self.name}"

    @property
    def needs_allowance(self) -> bool:
        """Whether something is lost that a person must have meant to lose."""
        return self.kind in GUARDED and self.operation in {"replace", "delete"}

    @property
    def restarts_server(self) -> bool:
        """Whether a server that runs is stopped: its pod template changes, or its Deployment is made anew."""
        if self.kind != "Deployment" or self.service is None:
            return False
        template = any(change.path.startswith("spec.template") for change in self.properties)
        return self.operation == "replace" or (self.operation == "update" and template)


@dataclass(frozen=True)
class Preview:
    """A preview: its changes in the order of ``ORDER``, and the errors that ended it."""

    stack: str | None
    changes: tuple[Change, ...]
    errors: tuple[str, ...]


def read_preview(text: str) -> Preview:
    """Read what `pulumi preview --json` printed.

    Raises:
        PreviewError: it is something else.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise PreviewError(f"is no JSON ({error}); run `pulumi preview --json` and keep its standard output") from None
    if not isinstance(document, dict) or not {"steps", "changeSummary", "diagnostics"} & document.keys():
        raise PreviewError("is JSON, but not of `pulumi preview --json`: it has no steps")
    steps: list[dict[str, Any]] = document.get("steps") or []
    changes = sorted(_changes(steps), key=lambda change: ORDER.index(change.operation))
    diagnostics = document.get("diagnostics") or []
    errors = tuple(entry["message"].strip() for entry in diagnostics if entry["severity"] == "error")
    stack = next((step["urn"].split("::")[0].removeprefix("urn:pulumi:") for step in steps), None)
    return Preview(stack, tuple(changes), errors)


def _changes(steps: Iterable[Mapping[str, Any]]) -> Iterator[Change]:
    """One change for each resource; the steps of a replacement belong together."""
    of_resource: dict[str, list[Mapping[str, Any]]] = {}
    for step in steps:
        if step["op"] in _OPERATIONS and not _BOOKKEEPING.match(_type(step["urn"])):
            of_resource.setdefault(step["urn"], []).append(step)
    for urn, those in of_resource.items():
        yield _change(urn, those)


def _change(urn: str, steps: list[Mapping[str, Any]]) -> Change:
    operation = min((_OPERATIONS[step["op"]] for step in steps), key=ORDER.index)
    old: Mapping[str, Any] = next((step["oldState"] for step in steps if step.get("oldState")), {})
    new: Mapping[str, Any] = next((step["newState"] for step in steps if step.get("newState")), {})
    if operation == "delete" and old.get("retainOnDelete"):
        operation = "leave"
    kind = _type(urn).rpartition(":")[2]
    inputs = new.get("inputs") or old.get("inputs") or {}
    reasons = [reason for step in steps for reason in step.get("replaceReasons") or ()]
    return Change(
        operation=operation,
        kind=kind,
        name=_name(urn, inputs, old),
        urn=urn,
        reasons=tuple(dict.fromkeys(reasons)),
        properties=tuple(_properties(kind, steps, old.get("inputs") or {}, new.get("inputs") or {})),
        service=_service(inputs),
    )


def _type(urn: str) -> str:
    """The type of a URN without the types of its parents: ``kubernetes:apps/v1:Deployment``."""
    return urn.split("::")[2].rpartition("$")[2]


def _name(urn: str, inputs: Mapping[str, Any], old: Mapping[str, Any]) -> str:
    """The object's name; a generated one is only in the id, ``namespace/name``."""
    metadata = inputs.get("metadata")
    named = metadata.get("name") if isinstance(metadata, dict) else None
    generated = str(old.get("id") or "").rpartition("/")[2] if isinstance(metadata, dict) else ""
    return str(named or inputs.get("nodeGroupName") or generated or urn.split("::")[3])


def _service(inputs: Mapping[str, Any]) -> str | None:
    metadata = inputs.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    value = labels.get("app.kubernetes.io/instance") if isinstance(labels, dict) else None
    return value if isinstance(value, str) else None


def _properties(
    kind: str, steps: list[Mapping[str, Any]], old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[PropertyChange]:
    """The properties of the step that knows most about them; without details only their names."""
    details = next((step["detailedDiff"] for step in steps if step.get("detailedDiff")), None)
    if details is None:
        names = dict.fromkeys(name for step in steps for name in step.get("diffReasons") or ())
        yield from (PropertyChange(name, None, None, replaces=False) for name in names)
        return
    lists = {match["list"] for match in map(_WORD.match, details) if match}
    for path in sorted(lists):
        yield _command(path, old, new, any(d["kind"].endswith("replace") for p, d in details.items() if path in p))
    for path, detail in sorted(details.items()):
        if _WORD.match(path):
            continue
        secret = kind == "Secret" and not path.startswith("metadata")
        values = (HIDDEN, HIDDEN) if secret else (_shown(path, old), _shown(path, new))
        yield PropertyChange(path, *values, replaces=detail["kind"].endswith("replace"))


def _command(path: str, old: Mapping[str, Any], new: Mapping[str, Any], replaces: bool) -> PropertyChange:
    """A command by its options: one that goes would otherwise show every word behind it as changed."""
    before, after = (_options(_at(_parts(path), inputs)) for inputs in (old, new))
    gone = [option for option in before if option not in after]
    come = [option for option in after if option not in before]
    return PropertyChange(path, " ".join(gone) or None, " ".join(come) or None, replaces)


def _options(words: Any) -> list[str]:
    """A command as its options, each with its values; a word that holds a credential is hidden."""
    options: list[str] = []
    for word in words if isinstance(words, list) else ():
        hidden = bool(options) and names_a_secret(options[-1].removeprefix("--"))
        if str(word).startswith("-") or not options:
            options.append(str(word))
        else:
            options[-1] += f" {HIDDEN if hidden else word}"
    return options


def _shown(path: str, inputs: Mapping[str, Any]) -> str | None:
    """A single value at a path of a resource's inputs; ``None`` for a structure, for nothing, and for what is not
    known before the change."""
    parts = _parts(path)
    value = _at(parts, inputs)
    if isinstance(value, bool | int | float | str) and value != _UNKNOWN:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return HIDDEN if _holds_a_secret(parts, inputs) else text
    return None


def _parts(path: str) -> list[str | int]:
    """A property path of the engine as the keys and indices that it goes through."""
    return [match["plain"] or match["quoted"] or int(match["index"]) for match in _PATH.finditer(path)]


def _at(parts: Iterable[str | int], value: Any) -> Any:
    for part in parts:
        value = _inside(value, part)
    return value


def _inside(value: Any, part: str | int) -> Any:
    if isinstance(part, int):
        return value[part] if isinstance(value, list) and part < len(value) else _ABSENT
    return value.get(part, _ABSENT) if isinstance(value, dict) else _ABSENT


def _holds_a_secret(parts: list[str | int], inputs: Mapping[str, Any]) -> bool:
    """Whether the name beside or above a value says that it is a credential: ``{name: HF_TOKEN, value: …}``."""
    names = [part for part in parts if isinstance(part, str)]
    if names and names_a_secret(names[-1]) and "secretKeyRef" not in names:
        return True
    if parts[-1:] != ["value"]:
        return False
    variable = _at((*parts[:-1], "name"), inputs)
    return isinstance(variable, str) and names_a_secret(variable)
