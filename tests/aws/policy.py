"""The IAM policy of the deploying role that docs/ ships, read as IAM reads it."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PATH = Path(__file__).parents[2] / "docs" / "iam-deploy-policy.json"
POLICY: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))


def allowed_actions(policy: Mapping[str, Any]) -> set[str]:
    """Every action that some statement allows."""
    return {action for statement in policy["Statement"] for action in as_list(statement["Action"])}


def without_conditions(policy: Mapping[str, Any]) -> dict[str, Any]:
    """The same actions on everything: moto's enforcement knows neither resources nor conditions."""
    statements = [
        {"Effect": statement["Effect"], "Action": statement["Action"], "Resource": "*"}
        for statement in policy["Statement"]
        if statement["Action"]
    ]
    return {"Version": policy["Version"], "Statement": statements}


def allows(policy: Mapping[str, Any], action: str, resource: str, context: Mapping[str, str] | None = None) -> bool:
    """Whether one request is allowed. Knows the two conditions that the policy uses, and no Deny: it has none."""
    for statement in policy["Statement"]:
        assert statement["Effect"] == "Allow", "a Deny would need an evaluation of its own"
        if action not in as_list(statement["Action"]):
            continue
        if not any(fnmatch.fnmatchcase(resource, pattern) for pattern in as_list(statement["Resource"])):
            continue
        if _conditions_hold(statement.get("Condition", {}), context or {}):
            return True
    return False


def _conditions_hold(conditions: Mapping[str, Any], context: Mapping[str, str]) -> bool:
    assert set(conditions) <= {"StringEquals", "ArnEquals"}, f"unknown operators: {set(conditions)}"
    return all(
        context.get(key) in as_list(values) for operator in conditions.values() for key, values in operator.items()
    )


def as_list(value: str | list[str]) -> list[str]:
    """A value of a statement: one or several."""
    return [value] if isinstance(value, str) else value
