"""An object that the API server refuses in `up`: the engine says so, and the program adds nothing to it."""

from __future__ import annotations

import pytest

from tests.engine.conftest import NewStack

pytestmark = pytest.mark.engine


def test_a_refused_object_ends_the_update_without_a_traceback(new_stack: NewStack) -> None:
    stack = new_stack("refused")
    stack.cluster.apply(*_no_deployments(stack.name))
    answer = stack.up(fails=True)
    assert "nothing starts here today" in answer.output, f"the API server's own words:\n{answer.output}"
    assert "Traceback" not in answer.output, f"a refusal is no crash:\n{answer.output}"


def _no_deployments(namespace: str) -> list[dict[str, object]]:
    """A policy that refuses Deployments in a namespace, except in a dry run."""
    name = f"no-deployments-{namespace}"
    rule = {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["deployments"]}
    mine = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    validation = {"expression": "has(request.dryRun) && request.dryRun", "message": "nothing starts here today"}
    api = "admissionregistration.k8s.io/v1"
    return [
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [validation]},
        },
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": mine}},
        },
    ]
