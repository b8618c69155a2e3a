"""The identities of docs/preview-role.yaml: enough for a preview and for a search for drift, and for nothing else."""

from __future__ import annotations

import pytest

from sim.cluster import Cluster, ClusterError
from tests.engine.conftest import NewStack
from tests.engine.driver import ROOT, Object, Stack, acting_as, until

pytestmark = pytest.mark.engine

ROLE = ROOT / "docs" / "preview-role.yaml"
ONLY_DRY_RUN = "only requests with dryRun are allowed"


@pytest.fixture(scope="module", autouse=True)
def role(cluster: Cluster) -> None:
    """The role as the guide says; it stays, since only its identities are concerned by it."""
    cluster.kubectl("apply", "-f", str(ROLE))


def test_a_fresh_stack_can_be_previewed(new_stack: NewStack) -> None:
    stack = new_stack("previewed")
    stack.set_secret("hfToken", "hf_only-for-this-test")
    before = stack.kept()
    with acting_as("preview", stack):
        answer = stack.preview()
    created = {event.type.rpartition(":")[2] for event in answer.changes if event.operation == "create"}
    assert {"Namespace", "PersistentVolume", "PersistentVolumeClaim", "Secret", "Deployment"} <= created, (
        "everything is asked of the API server"
    )
    assert stack.kept() == before, "and nothing is made"


def test_a_deployed_stack_can_be_previewed(new_stack: NewStack) -> None:
    stack = new_stack("previewed-again")
    stack.set_secret("apiKey", "only-for-this-test")
    stack.up()
    before = stack.versions()
    with acting_as("preview", stack):
        stack.preview("--expect-no-changes")
        stack.write({"services.qwen.image.tag": "v0.33.0"})
        answer = stack.preview()
    changed = {event.type.rpartition(":")[2] for event in answer.changes}
    assert {"DaemonSet", "Deployment", "Job"} <= changed, "an update and a replacement are asked for as well"
    assert stack.versions() == before, "no object was touched"


def test_drift_is_found(new_stack: NewStack) -> None:
    stack = new_stack("drifted")
    stack.set_secret("apiKey", "only-for-this-test")
    stack.up()
    before = stack.versions()
    with acting_as("drift", stack):
        answer = stack.preview("--refresh", "--expect-no-changes")
        assert "unhealthy" not in answer.output, f"it sees the pods, hence that all is well:\n{answer.output}"
        assert stack.versions() == before, "no object was touched"
        stack.cluster.kubectl("scale", "deployment/qwen-0", "--replicas=0", "-n", stack.name)
        answer = stack.preview("--refresh", "--expect-no-changes", fails=True)
    assert "qwen-deployment-0" in answer.output, f"it names what was changed by hand:\n{answer.output}"


@pytest.mark.parametrize("identity", ["preview", "drift"])
def test_the_identity_cannot_write(new_stack: NewStack, identity: str) -> None:
    stack = new_stack(f"not-written-{identity}")
    before = stack.kept()
    with acting_as(identity, stack) as kubeconfig:
        answer = stack.up(fails=True)
        assert ONLY_DRY_RUN in answer.output, f"the policy speaks:\n{answer.output}"
        for command, refusal in (
            (("create", "namespace", f"{stack.name}-other"), ONLY_DRY_RUN),
            (("create", "configmap", "one", "-n", "default"), ONLY_DRY_RUN),
            (("patch", "node", stack.node, "--patch", "{}"), "forbidden"),
            (("delete", "node", stack.node), "forbidden"),
            (("get", "secrets", "-A"), "forbidden"),
            (("create", "token", identity, "-n", "pulumi-previews"), "forbidden"),
        ):
            with pytest.raises(ClusterError, match=refusal):
                stack.cluster.kubectl("--kubeconfig", str(kubeconfig), *command)
        stack.cluster.kubectl("--kubeconfig", str(kubeconfig), "create", "namespace", stack.name, "--dry-run=server")
    assert stack.kept() == before, "nothing was made"


def test_a_person_still_writes(new_stack: NewStack) -> None:
    stack = new_stack("still-written")
    with acting_as("preview", stack):
        stack.preview()
    stack.up()
    assert stack.server_pod(), "the policy concerns one identity only"


def test_what_admission_rejects_fails_the_preview(new_stack: NewStack) -> None:
    stack = new_stack("rejected")
    stack.cluster.apply(*team_is_required(stack.name))
    try:
        until(lambda: policy_works(stack), "a new policy takes a moment")
        with acting_as("preview", stack):
            answer = stack.preview(fails=True)
        assert "the label team is missing" in answer.output, f"in the words of the cluster's own rule:\n{answer.output}"
    finally:
        for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
            stack.cluster.kubectl("delete", kind, stack.name)
    with acting_as("preview", stack):
        until(lambda: stack.preview(fails=False), "without the rule it passes")


def team_is_required(name: str) -> list[Object]:
    """A rule of a cluster's owner, for one namespace object."""
    metadata = {"name": name}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["namespaces"]}
    return [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": metadata,
            "spec": {
                "matchConstraints": {"resourceRules": [{**rule, "resourceNames": [name]}]},
                "validations": [
                    {"expression": "'team' in object.metadata.labels", "message": "the label team is missing"}
                ],
            },
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata,
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]


def policy_works(stack: Stack) -> bool:
    try:
        stack.cluster.kubectl("create", "namespace", stack.name, "--dry-run=server")
    except ClusterError:
        return True
    return False
