"""What the cluster holds already, or whether it is there at all: one clear message in the preview."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import NewStack
from tests.engine.driver import CONTEXT, Answer, Object, Stack

pytestmark = pytest.mark.engine

OWN = "pulumi-vllm/stack=%s,app.kubernetes.io/component=server"
CACHE = {"kind": "storageClass", "storageClass": "local-path", "size": "20Gi", "claimName": "weights"}


def _metadata(name: str, stack: Stack | None = None, **labels: str) -> Object:
    return {"name": name, "labels": labels, **({"namespace": stack.name} if stack else {})}


def _namespace(stack: Stack) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": _metadata(stack.name, team="others")}


def _claim(stack: Stack) -> Object:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local-path",
        "resources": {"requests": {"storage": "20Gi"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _metadata("weights-0", stack),
        "spec": spec,
    }


def _service(stack: Stack) -> Object:
    spec = {"selector": {"app": "others"}, "ports": [{"port": 8000}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata("vllm-service", stack), "spec": spec}


def _deployment(stack: Stack) -> Object:
    labels = {"app": "others"}
    spec = {
        "replicas": 0,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "one", "image": "one"}]}},
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": _metadata("qwen-0", stack), "spec": spec}


def _refused(stack: Stack, *said: str) -> Answer:
    """The preview ends with one message that holds every text of ``said``; nothing is planned."""
    answer = stack.preview(fails=True)
    assert answer.code == 1, "CI sees a refusal by the exit code"
    for text in said:
        assert text in answer.output, f"the message must name {text!r}:\n{answer.output}"
    assert "1 error(s)" in answer.output, f"one cause, one message:\n{answer.output}"
    assert "Traceback" not in answer.output, "a refusal is no crash"
    assert answer.changes == (), "nothing is even planned"
    return answer


def test_a_foreign_namespace_is_taken_over_only_when_the_stack_says_so(new_stack: NewStack) -> None:
    stack = new_stack("foreign")
    foreign = _namespace(stack)
    # A label that the stack sets as well: two who say different things about one field.
    foreign["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "privileged"
    stack.cluster.apply(foreign)
    stack.wait("serviceaccount/default", "create")
    before = stack.versions()
    way_out = f"Namespace/{stack.name}"
    _refused(stack, "cluster.namespace", "was not made by this stack", f"cluster.adopt: [{way_out}]")
    assert stack.versions() == before, "a refusal touches nothing"

    uid = stack.get("namespace", stack.name)["metadata"]["uid"]
    stack.write({"cluster.adopt": [way_out]})
    stack.up()
    namespace = stack.get("namespace", stack.name)["metadata"]
    assert namespace["uid"] == uid, "the one that was there"
    assert namespace["labels"]["team"] == "others", "what others wrote on it stays"
    stack.preview("--expect-no-changes")
    stack.destroy()
    assert stack.get("namespace", stack.name)["metadata"]["uid"] == uid, "and it outlives the stack"


@pytest.mark.parametrize(
    ("name", "make", "field", "kind"),
    [
        ("foreign-claim", _claim, "services.qwen.cache.claimName", "PersistentVolumeClaim/weights-0"),
        ("foreign-service", _service, "services.qwen.exposure.serviceName", "Service/vllm-service"),
    ],
)
def test_a_foreign_object_is_taken_over_only_when_the_stack_says_so(
    new_stack: NewStack, name: str, make: Any, field: str, kind: str
) -> None:
    stack = new_stack(name)
    namespace = f"Namespace/{stack.name}"
    stack.cluster.apply(_namespace(stack), make(stack))
    stack.wait("serviceaccount/default", "create")
    before = stack.versions()
    stack.write({"cluster.adopt": [namespace], "services.qwen.cache": CACHE})
    _refused(stack, field, " '".join(kind.split("/")) + "' exists already", f"cluster.adopt: [{kind}]")
    assert stack.versions() == before, "a refusal touches nothing"

    stack.write({"cluster.adopt": [namespace, kind], "services.qwen.cache": CACHE})
    uid = stack.get(*kind.split("/"))["metadata"]["uid"]
    stack.up()
    assert stack.get(*kind.split("/"))["metadata"]["uid"] == uid, "the one that was there"
    selector = stack.get("service", "vllm-service")["spec"]["selector"]
    assert "app" not in selector, "an address that was taken over leads to our server, whatever it led to before"
    stack.preview("--expect-no-changes")


def test_a_claim_grows_only_once_it_is_bound(new_stack: NewStack) -> None:
    stack = new_stack("unbound")
    stack.cluster.apply(_namespace(stack), _claim(stack))
    stack.wait("serviceaccount/default", "create")
    adopted = [f"Namespace/{stack.name}", "PersistentVolumeClaim/weights-0"]
    larger = {"cluster.adopt": adopted, "services.qwen.cache": {**CACHE, "size": "30Gi"}}
    stack.write(larger)
    before = stack.versions()
    _refused(stack, "services.qwen.cache.size", "20Gi", "30Gi", "only a bound claim can grow", "delete it")
    assert stack.versions() == before, "a refusal touches nothing"

    stack.write({"cluster.adopt": adopted, "services.qwen.cache": CACHE})
    stack.up()
    stack.write(larger)
    stack.up()
    found = stack.get("pvc", "weights-0")["spec"]["resources"]["requests"]["storage"]
    assert found == "30Gi", "what a stack takes over, it may also change"
    stack.preview("--expect-no-changes")


def test_a_foreign_deployment_is_never_taken_over(new_stack: NewStack) -> None:
    stack = new_stack("foreign-server")
    stack.cluster.apply(_namespace(stack), _deployment(stack))
    stack.wait("serviceaccount/default", "create")
    before = stack.versions()
    stack.write({"cluster.adopt": [f"Namespace/{stack.name}"]})
    _refused(stack, "services.qwen", "Deployment 'qwen-0' exists already", "choose another name")
    assert stack.versions() == before, "a refusal touches nothing"
    stack.write(
        {
            "cluster.adopt": [f"Namespace/{stack.name}"],
            "services.chat": stack.sections()["services"]["qwen"],
            "services.qwen": None,
        }
    )
    stack.preview()


def test_a_released_volume_is_used_again_only_by_hand(new_stack: NewStack) -> None:
    stack = new_stack("released")
    stack.up()
    volume = f"{stack.name}-vllm-model-0"
    uid = stack.get("pv", volume)["metadata"]["uid"]
    stack.destroy()
    stack.cluster.kubectl("delete", "pvc", "vllm-model-0", "-n", stack.name)
    stack.wait(f"pv/{volume}", "jsonpath={.status.phase}=Released")
    before = stack.versions()
    answer = _refused(stack, "services.qwen.cache", volume, "is Released", "/srv/ai-infra/vllm-model-cache")
    assert stack.versions() == before, "whose files these are is for a person to say"

    command = re.search(r"kubectl (patch pv .*?\]')", answer.output)
    assert command, f"the one patch that clears it:\n{answer.output}"
    stack.cluster.kubectl(*shlex.split(command[1]))
    stack.up()
    assert stack.get("pv", volume)["metadata"]["uid"] == uid, "the volume with the files"
    assert stack.get("pvc", "vllm-model-0")["status"]["phase"] == "Bound", "a new claim on it"
    stack.preview("--expect-no-changes")


def test_a_service_is_taken_over_only_when_its_ports_can_stand_beside_ours(new_stack: NewStack) -> None:
    stack = new_stack("foreign-port")
    service = _service(stack)
    service["spec"]["ports"] = [{"port": 80}]
    stack.cluster.apply(_namespace(stack), service)
    stack.wait("serviceaccount/default", "create")
    stack.write({"cluster.adopt": [f"Namespace/{stack.name}", "Service/vllm-service"]})
    answer = _refused(stack, "services.qwen.exposure.serviceName", "its port 80, without a name, beside 8000")

    stack.cluster.kubectl(*_way_out(answer))
    stack.up()
    ports = stack.get("service", "vllm-service")["spec"]["ports"]
    assert {port["port"]: port["name"] for port in ports} == {80: "other", 8000: "http"}, "its port stays beside ours"
    # The provider compares lists by position, and so says once more what is ours; then it is quiet.
    stack.up()
    stack.preview("--expect-no-changes")


def test_a_stack_moves_to_another_namespace_once_the_old_server_gives_its_card_back(new_stack: NewStack) -> None:
    stack = new_stack("moving")
    stack.up()
    moved = f"{stack.name}-moved"
    stack.write({"cluster.namespace": moved})
    answer = _refused(stack, "cluster.namespace", f"the card that qwen-0 in namespace '{stack.name}' holds")
    assert stack.server_pod()["status"]["phase"] == "Running", "until then it serves"

    stack.cluster.kubectl(*_way_out(answer))
    stack.up()
    servers = stack.cluster.kubectl(
        "get", "deployments", "--all-namespaces", "--output=name", "--selector", OWN % stack.name
    )
    assert servers.split() == ["deployment.apps/qwen-0"], "one server, and none is left where it was"
    assert "vllm-model-0" in stack.cluster.kubectl("get", "pvc", "--namespace", stack.name), "the old claim is kept"
    stack.preview("--expect-no-changes")


def _way_out(answer: Answer) -> list[str]:
    """The arguments of the kubectl command in a remedy."""
    found = re.search(r"kubectl (--namespace \S+ (?:scale|patch) .*?)(?: \(|$)", answer.output, re.MULTILINE)
    assert found, f"no command in:\n{answer.output}"
    return shlex.split(found[1])


def test_a_cluster_that_cannot_be_reached_is_not_taken_for_an_empty_one(new_stack: NewStack) -> None:
    stack = new_stack("unreachable")
    stack.up()
    before, resources = stack.versions(), len(stack.export()["resources"])
    # The discard port: nothing listens there.
    stack.variables["KUBECONFIG"] = str(_kubeconfig(stack.folder / "kubeconfig", "https://127.0.0.1:9"))
    _refused(stack, "cluster.context", f"the cluster of context '{CONTEXT}' cannot be reached", "refused")
    answer = stack.up(fails=True)
    assert answer.changes == (), "nothing is deleted because nothing was found"
    assert stack.versions() == before, "no object was touched"
    assert len(stack.export()["resources"]) == resources, "the state still knows everything"

    del stack.variables["KUBECONFIG"]
    stack.preview("--expect-no-changes")


def _kubeconfig(file: Path, server: str) -> Path:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "gone", "cluster": {"server": server}}],
        "users": [{"name": "gone", "user": {}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": "gone", "user": "gone"}}],
        "current-context": CONTEXT,
    }
    file.write_text(json.dumps(content))
    return file


def test_another_context_is_another_cluster(new_stack: NewStack) -> None:
    stack = new_stack("context")
    stack.write({"cluster.context": "production"})
    _refused(stack, "cluster.context", "the stack expects 'production'", CONTEXT, "rename-context")
    assert stack.name not in stack.cluster.kubectl("get", "namespaces", "-o", "name"), "nothing was made elsewhere"
    stack.write()
    stack.preview()
