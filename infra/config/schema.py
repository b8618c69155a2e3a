"""The JSON schema of a whole stack file, for editors: `# yaml-language-server: $schema=schema.json`."""

from __future__ import annotations

import json
from typing import Any

from infra.config.stack import SECRET_KEYS, StackConfig
from infra.config.stack_file import PROJECT, STACKS

SCHEMA = STACKS / "schema.json"
_SECRET: dict[str, Any] = {
    "description": "A secret; set it with `pulumi config set --secret`, never by hand.",
    "type": "object",
    "properties": {"secure": {"type": "string", "description": "The encrypted value."}},
    "required": ["secure"],
    "additionalProperties": False,
}


def schema() -> dict[str, Any]:
    """The schema of a stack file: our sections, and what Pulumi itself keeps in the file."""
    sections = StackConfig.model_json_schema(by_alias=True, mode="validation")
    properties = {f"{PROJECT}:{name}": value for name, value in sections["properties"].items()}
    properties |= {f"{PROJECT}:{name}": _SECRET for name in SECRET_KEYS}
    config = {
        "type": "object",
        "description": "The stack's configuration, by sections.",
        "properties": properties,
        "required": [f"{PROJECT}:{name}" for name in sections["required"]],
        # Other namespaces belong to providers and to Pulumi; in ours only these keys exist.
        "patternProperties": {f"^(?!{PROJECT}:).+:.+$": {}},
        "additionalProperties": False,
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
        "$defs": sections["$defs"],
    }


def rendered() -> str:
    """The text of stacks/schema.json."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(rendered(), encoding="utf-8")
