"""docs/preview-role.yaml grants what a preview does, and no more. That it works is shown in tests/engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from infra.live import LISTS

ROOT = Path(__file__).parents[2]
LOOK, ASK = {"get", "list", "watch"}, {"create", "patch"}
Rule = tuple[str, str, str]


def objects() -> list[dict[str, Any]]:
    return list(YAML(typ="safe", pure=True).load_all(ROOT / "docs" / "preview-role.yaml"))


def granted(role: str) -> set[Rule]:
    """(API group, resource, verb) of a ClusterRole."""
    (found,) = [one for one in objects() if one["kind"] == "ClusterRole" and one["metadata"]["name"] == role]
    return {
        (group, resource, verb)
        for rule in found["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


PREVIEW, DRIFT = granted("pulumi-vllm-preview"), granted("pulumi-vllm-drift")


@pytest.mark.parametrize("kind", LISTS)
def test_everything_that_is_looked_at_may_be_listed(kind: str) -> None:
    path = LISTS[kind]
    match = re.fullmatch(r"/apis?/(?:(?P<group>[\w.]+)/)?[^/]+/(?:namespaces/\{namespace\}/)?(?P<resource>\w+)", path)
    assert match, f"{path} is no path of a list"
    assert (match["group"] or "", match["resource"], "list") in PREVIEW, f"the look-up reads {path}"


GROUPS = {
    "core": "",
    "apps": "apps",
    "batch": "batch",
    "networking": "networking.k8s.io",
    "policy": "policy",
    "storage": "storage.k8s.io",
    "resource": "resource.k8s.io",
    "rbac": "rbac.authorization.k8s.io",
}
"""Modules of the Kubernetes SDK and the API groups that they are."""
NO_OBJECT = {"Release"}
"""A Helm chart needs rights over all that it installs; the guide says who previews such a stack."""
CUSTOM = {("monitoring.coreos.com", kind) for kind in ("servicemonitors", "podmonitors", "prometheusrules")}


def registered() -> set[tuple[str, str]]:
    """(API group, resource) of every kind that the program makes, as its source says."""
    made = re.compile(r"\bk8s\.(?P<module>\w+)\.v\w+\.(?P<kind>[A-Z]\w*)\(")
    sources = [file.read_text() for folder in ("components", "infra") for file in (ROOT / folder).glob("*.py")]
    found = {(match["module"], match["kind"]) for text in sources for match in made.finditer(text)}
    kinds = {(module, kind) for module, kind in found if module != "meta" and not kind.endswith("Args")}
    return {(GROUPS[module], plural(kind)) for module, kind in kinds if kind not in NO_OBJECT} | CUSTOM


def plural(kind: str) -> str:
    """A kind as the API server has it in a path."""
    name = kind.lower()
    if name.endswith("s"):
        return f"{name}es"
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"


@pytest.mark.parametrize(("group", "resource"), sorted(registered()))
def test_everything_that_is_registered_may_be_asked_for(group: str, resource: str) -> None:
    missing = {verb for verb in ASK if (group, resource, verb) not in PREVIEW}
    assert not missing, f"a server-side apply of {resource} is a create and a patch; not granted: {missing}"


def test_a_drift_of_everything_can_be_seen() -> None:
    missing = {kind for kind in registered() if (*kind, "get") not in PREVIEW | DRIFT}
    assert not missing, f"a refresh reads back what was made; not granted: {missing}"


def test_no_verb_is_granted_that_a_dry_run_does_not_need() -> None:
    assert {verb for _, _, verb in PREVIEW} == LOOK | ASK, "delete, update, bind, escalate and all stars stay out"
    assert {verb for _, _, verb in DRIFT} == LOOK, "reading back is reading"
    assert not any("*" in rule or "/" in rule[1] for rule in PREVIEW | DRIFT), "no wildcard, no subresource"


def test_secrets_are_never_listed() -> None:
    assert {verb for _, resource, verb in PREVIEW if resource == "secrets"} == ASK, "a preview reads none"
    assert {verb for _, resource, verb in DRIFT if resource == "secrets"} == {"get"}, "a refresh reads ours by name"


def test_the_policy_is_about_every_identity_that_is_bound() -> None:
    bound = {
        f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
        for one in objects()
        if one["kind"] == "ClusterRoleBinding"
        for subject in one["subjects"]
    }
    (policy,) = [one for one in objects() if one["kind"] == "ValidatingAdmissionPolicy"]
    (condition,) = policy["spec"]["matchConditions"]
    assert set(re.findall(r'"([^"]+)"', condition["expression"])) == bound, "or one of them could really write"
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["apiGroups"], rule["apiVersions"], rule["resources"]) == (["*"], ["*"], ["*/*"]), "of whatever kind"
    assert set(rule["operations"]) == {"CREATE", "UPDATE", "DELETE", "CONNECT"}, "and whatever it does"
    assert policy["spec"]["failurePolicy"] == "Fail", "a rule that cannot be evaluated refuses"
