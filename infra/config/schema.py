"""The JSON schema of a whole stack file, for editors: `# yaml-language-server: $schema=schema.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from infra.config.stack import SECRET_KEYS, EksClusterStackConfig, StackConfig, sections_of
from infra.config.stack_file import PROJECT, STACKS

SCHEMA = STACKS / "schema.json"
KINDS: dict[str, type[StackConfig] | type[EksClusterStackConfig]] = {
    "an environment": StackConfig,
    "an EKS cluster of its own": EksClusterStackConfig,
}
_SECRET: dict[str, Any] = {
    "description": "A secret; set it with `pulumi config set --secret`, never by hand.",
    "type": "object",
    "properties": {"secure": {"type": "string", "description": "The encrypted value."}},
    "required": ["secure"],
    "additionalProperties": False,
}


def schema() -> dict[str, Any]:
    """The schema of a stack file: our sections, and what Pulumi itself keeps in the file."""
    models = [model.model_json_schema(by_alias=True, mode="validation") for model in KINDS.values()]
    sections = {f"{PROJECT}:{name}": value for model in models for name, value in model["properties"].items()}
    config = {
        "type": "object",
        "description": "The stack's configuration, by sections.",
        # All in one place: an editor then completes and checks a section before the others are written.
        "properties": sections | {f"{PROJECT}:{name}": _SECRET for name in SECRET_KEYS},
        # Other namespaces belong to providers and to Pulumi; in ours only these keys exist.
        "patternProperties": {f"^(?!{PROJECT}:).+:.+$": {}},
        "additionalProperties": False,
        "oneOf": [_kind(title, model["required"]) for title, model in zip(KINDS, models, strict=True)],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A stack of pulumi-vllm",
        "type": "object",
        "properties": {
            "config": config,
            "encryptionsalt": {"type": "string", "description": "Written by Pulumi."},
            "encryptedkey": {"type": "string", "description": "Written by Pulumi."},
            "secretsprovider": {"type": "string", "description": "Written by Pulumi."},
            "environment": {"description": "Pulumi ESC environments."},
        },
        "required": ["config"],
        "additionalProperties": False,
        "$defs": {name: value for model in models for name, value in model["$defs"].items()},
    }


def _kind(title: str, required: Iterable[str]) -> dict[str, Any]:
    """One kind of stack file: which sections it must have, and which belong to another kind."""
    own = {*sections_of(KINDS[title]), *(SECRET_KEYS if KINDS[title] is StackConfig else ())}
    every = (*(name for model in KINDS.values() for name in sections_of(model)), *SECRET_KEYS)
    return {
        "title": title,
        "required": [f"{PROJECT}:{name}" for name in required],
        "properties": {f"{PROJECT}:{name}": False for name in every if name not in own},
    }


def rendered() -> str:
    """The text of stacks/schema.json."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(rendered(), encoding="utf-8")
