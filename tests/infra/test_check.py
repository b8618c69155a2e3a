"""`vllm-infra check`: one line for each question about the live cluster, as it should be and as it should not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from components import naming
from infra import live
from infra.check import Closer, check_lines, look_closer
from infra.check.closer import Right, Unknown, rights_needed
from infra.cli import app
from infra.lines import Line, failed
from infra.live import LISTS, LiveCluster
from tests.infra.api_server import api_server, client_of
from tests.infra.live_objects import (
    STACK,
    an_object,
    cards_by_dra,
    claim,
    cluster,
    device_class,
    host,
    node,
    volume,
    without_dra,
)
from tests.stack_files import CLUSTER_STACKS, config

IMAGE = "vllm/vllm-openai:v0.31.0"
DRA = {"nodes.lab.allocation": "dra"}
OPERATOR = {"monitoring": {"mode": "operator", "labels": {"release": "prometheus"}}}


def with_status(item: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {**item, "status": {**item.get("status", {}), **status}}


def with_spec(item: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {**item, "spec": {**item.get("spec", {}), **spec}}


def a_pod(name: str, cards: int, namespace: str = "team-a", stack: str = "", init: int = 0) -> dict[str, Any]:
    def container(number: int) -> dict[str, Any]:
        return {"name": "one", "resources": {"limits": {"nvidia.com/gpu": str(number)} if number else None}}

    labels = {naming.STACK_LABEL: stack} if stack else None
    spec = {"nodeName": "lab", "containers": [container(cards)], "initContainers": [container(init)] if init else None}
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": spec}


def a_claim_of(pod: str, namespace: str = "team-a", devices: int = 1) -> dict[str, Any]:
    results = [{"driver": "gpu.nvidia.com", "pool": "lab", "device": f"card-{number}"} for number in range(devices)]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": [{"resource": "pods", "name": pod}]}
    return {"metadata": {"name": "claim", "namespace": namespace}, "status": status}


def a_disk(size: str | None, images: Sequence[str] = (), pressure: str = "False") -> dict[str, Any]:
    one = node()
    one["status"]["conditions"].append({"type": "DiskPressure", "status": pressure})
    one["status"]["allocatable"] |= {"ephemeral-storage": size} if size else {}
    one["status"]["images"] = [{"names": [name]} for name in images]
    return one


def lines(live_cluster: LiveCluster, closer: Closer, changes: Mapping[str, Any] | None = None) -> list[Line]:
    return list(check_lines(config(changes=changes), STACK, "https://cluster:6443", live_cluster, closer))


ALLOWED = Closer(rights={Right("create", "apps", "deployments", "ai-infra"): True})
POLICY = an_object("cluster-policy", status={"state": "ready"})
FOREIGN_SERVICE = an_object("vllm-service")
PINNED = {"nodes.lab.nodes": 2, "nodes.lab.nodeNames": ["lab", "lab-1"], "services.qwen.replicas": 2}
PINNED_CACHE = {"services.qwen.cache": {"kind": "storageClass", "storageClass": "fast", "size": "20Gi"}}
FAST = {"StorageClass": [an_object("fast", provisioner="ebs.csi.aws.com")]}
TWO_NODES = [node("lab", labels=host("lab")), node("lab-1", ready="False", labels=host("lab-1"))]
TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}
TOLERATED = {"nodes.lab.taints": [{"key": "team", "effect": "NoSchedule"}]}
EXISTING = {"services.qwen.cache": {"kind": "existingClaim", "claimName": "models"}}
MODELS = an_object("models", spec={"accessModes": ["ReadWriteOnce"]})

# what is in the cluster, what was read beyond, changes of the stack, (question, status, words) of one line
CASES: dict[str, tuple[LiveCluster, Closer, dict[str, Any], tuple[str, str, str]]] = {
    "the cluster answers": (
        cluster(),
        ALLOWED,
        {},
        ("cluster", "ok", "https://cluster:6443 answers, Kubernetes v1.37.2"),
    ),
    "another version": (cluster("v1.36.1"), ALLOWED, {}, ("cluster", "warn", '"1.36"')),
    "all rights": (cluster(), ALLOWED, {}, ("rights", "ok", "may do all 1 things")),
    "a right that is missing": (
        cluster(),
        Closer(rights={Right("create", "apps", "deployments", "ai-infra"): False}),
        {},
        ("rights", "fail", "may not create deployments.apps"),
    ),
    "a right that only a change needs": (
        cluster(),
        Closer(rights={Right("delete", "batch", "jobs", "ai-infra"): False}),
        {},
        ("rights", "warn", "may not delete jobs.batch"),
    ),
    "rights that cannot be asked for": (
        cluster(),
        Closer(rights=Unknown("the cluster answers 403")),
        {},
        ("rights", "warn", "not known: the cluster answers 403"),
    ),
    "no namespace yet": (cluster(), ALLOWED, {}, ("namespace", "ok", "`up` makes it")),
    "somebody else's namespace": (
        cluster(Namespace=[an_object("ai-infra")]),
        ALLOWED,
        {},
        ("namespace", "fail", "cluster.adopt: [Namespace/ai-infra]"),
    ),
    "a namespace that is taken over": (
        cluster(Namespace=[an_object("ai-infra")]),
        ALLOWED,
        {"cluster.adopt": ["Namespace/ai-infra"]},
        ("namespace", "ok", "made by somebody else"),
    ),
    "a namespace that goes": (
        cluster(Namespace=[an_object("ai-infra", {naming.STACK_LABEL: STACK}, status={"phase": "Terminating"})]),
        ALLOWED,
        {},
        ("namespace", "fail", "is being deleted"),
    ),
    "nodes by name": (cluster(), ALLOWED, {}, ("lab nodes", "ok", "lab Ready")),
    "no node": (
        cluster(Node=[node(labels={})]),
        ALLOWED,
        {},
        ("lab nodes", "fail", "1 with nvidia.com/gpu.present=true"),
    ),
    "the only node is down": (
        cluster(Node=[node(ready="Unknown")]),
        ALLOWED,
        {},
        ("lab nodes", "fail", "kubectl describe node lab"),
    ),
    "one of two nodes is down": (
        cluster(Node=TWO_NODES, **FAST),
        ALLOWED,
        {**PINNED, **PINNED_CACHE},
        ("lab nodes", "warn", "lab Ready, lab-1 NotReady"),
    ),
    "a node that is cordoned": (
        cluster(Node=[with_spec(node(), unschedulable=True)]),
        ALLOWED,
        {},
        ("lab nodes", "fail", "kubectl uncordon lab"),
    ),
    "a taint that the pool does not list": (
        cluster(Node=[with_spec(node(), taints=[TAINT])]),
        ALLOWED,
        {},
        ("lab nodes", "fail", "the taint team:NoSchedule"),
    ),
    "a taint that it lists": (
        cluster(Node=[with_spec(node(), taints=[TAINT])]),
        ALLOWED,
        TOLERATED,
        ("lab nodes", "ok", "lab Ready"),
    ),
    "cards": (cluster(), ALLOWED, {}, ("lab GPUs", "ok", "lab 1 nvidia.com/gpu")),
    "no card": (
        cluster(Node=[node(cards=0)]),
        ALLOWED,
        {},
        ("lab GPUs", "fail", "device plugin or GPU Operator running?"),
    ),
    "time-slices": (cluster(Node=[node(cards=4)]), ALLOWED, {}, ("lab GPUs", "warn", "switch time-slicing off")),
    "cards in slices": (cards_by_dra(), ALLOWED, DRA, ("lab GPUs", "ok", "lab 1 devices of gpu.nvidia.com")),
    "no slice": (
        cards_by_dra(ResourceSlice=[]),
        ALLOWED,
        DRA,
        ("lab GPUs", "fail", "DRA driver running on each node?"),
    ),
    "no device class": (
        cards_by_dra(DeviceClass=[device_class("other")]),
        ALLOWED,
        DRA,
        ("lab GPUs", "fail", "no DeviceClass 'gpu.nvidia.com'"),
    ),
    "no DRA": (without_dra(cards_by_dra()), ALLOWED, DRA, ("lab GPUs", "fail", "does not serve resource.k8s.io/v1")),
    "no operator": (cluster(), ALLOWED, {}, ("lab GPU Operator", "ok", "not installed; a device plugin of its own")),
    "an operator that is ready": (
        cluster(),
        Closer(policies=[POLICY]),
        {},
        ("lab GPU Operator", "ok", "ClusterPolicy cluster-policy is ready"),
    ),
    "an operator that is not": (
        cluster(),
        Closer(policies=[an_object("cluster-policy", status={"state": "notReady"})]),
        {},
        ("lab GPU Operator", "warn", "is notReady"),
    ),
    "an operator that says nothing yet": (
        cluster(),
        Closer(policies=[an_object("cluster-policy")]),
        {},
        ("lab GPU Operator", "warn", "no state yet"),
    ),
    "an operator that must not be looked at": (
        cluster(),
        Closer(policies=Unknown("403")),
        {},
        ("lab GPU Operator", "warn", "not known: 403"),
    ),
    "nobody holds a card": (
        cluster(),
        ALLOWED,
        {},
        ("lab free GPUs", "ok", "1 for 1 that this stack uses; held by others: none"),
    ),
    "another's pod holds the card": (
        cluster(),
        Closer(pods=[a_pod("train-0", 1)]),
        {},
        ("lab free GPUs", "fail", "team-a/train-0 (1 on lab)"),
    ),
    "another's init container holds it": (
        cluster(),
        Closer(pods=[a_pod("train-0", 0, init=1)]),
        {},
        ("lab free GPUs", "fail", "team-a/train-0 (1 on lab)"),
    ),
    "another's pod holds one of two cards": (
        cluster(Node=[node(cards=2)]),
        Closer(pods=[a_pod("train-0", 1)]),
        {"nodes.lab.gpusPerNode": 2},
        ("lab free GPUs", "ok", "1 for 1 that this stack uses; held by others: team-a/train-0"),
    ),
    "our own pod holds it": (
        cluster(),
        Closer(pods=[a_pod("qwen-0-abc", 1, "ai-infra", STACK)]),
        {},
        ("lab free GPUs", "ok", "held by others: none"),
    ),
    "a pod of another stack of ours holds it": (
        cluster(),
        Closer(pods=[a_pod("qwen-0-abc", 1, "other", "other")]),
        {},
        ("lab free GPUs", "fail", "other/qwen-0-abc"),
    ),
    "a pod without a card": (cluster(), Closer(pods=[a_pod("web", 0)]), {}, ("lab free GPUs", "ok", "others: none")),
    "another's claim of the card": (
        cards_by_dra(),
        Closer(pods=[a_pod("train-0", 0)], claims=[a_claim_of("train-0")]),
        DRA,
        ("lab free GPUs", "fail", "team-a/train-0 (1 on lab)"),
    ),
    "a claim that no pod uses": (
        cards_by_dra(),
        Closer(pods=[a_pod("web", 0)], claims=[a_claim_of("gone")]),
        DRA,
        ("lab free GPUs", "ok", "others: none"),
    ),
    "claims that must not be looked at": (
        cards_by_dra(),
        Closer(claims=Unknown("403")),
        DRA,
        ("lab free GPUs", "warn", "not known: 403"),
    ),
    "pods that must not be looked at": (
        cluster(),
        Closer(pods=Unknown("403")),
        {},
        ("lab free GPUs", "warn", "not known: 403"),
    ),
    "a card of a node that is down is not free": (
        cluster(Node=TWO_NODES, **FAST),
        ALLOWED,
        {**PINNED, **PINNED_CACHE},
        ("lab free GPUs", "fail", "1 for 2 that this stack uses"),
    ),
    "no runtime class": (cluster(), ALLOWED, {}, ("lab runtime class", "ok", "none is needed")),
    "a runtime class": (
        cluster(RuntimeClass=[an_object("nvidia")]),
        ALLOWED,
        {"cluster.flavour": "k3s"},
        ("lab runtime class", "ok", "nvidia is there"),
    ),
    "a runtime class that is not there": (
        cluster(),
        ALLOWED,
        {"cluster.flavour": "k3s"},
        ("lab runtime class", "fail", "no RuntimeClass 'nvidia'"),
    ),
    "an image that is there": (
        cluster(Node=[a_disk("200Gi", [f"docker.io/{IMAGE}"])]),
        ALLOWED,
        {},
        ("lab disk", "ok", f"lab: 200 GiB, free part not known; image {IMAGE} there"),
    ),
    "an image that is not": (
        cluster(Node=[a_disk("200Gi", ["docker.io/library/other:1"])]),
        ALLOWED,
        {},
        ("lab disk", "ok", "not there yet"),
    ),
    "an image of which nobody knows": (
        cluster(Node=[a_disk("200Gi", [f"image-{number}" for number in range(50)])]),
        ALLOWED,
        {},
        ("lab disk", "ok", "not known to be there"),
    ),
    "a disk that is too small for it": (
        cluster(Node=[a_disk("10Gi", ["other"])]),
        ALLOWED,
        {},
        ("lab disk", "warn", "GiB for the unpacked image"),
    ),
    "a small disk that has it already": (
        cluster(Node=[a_disk("10Gi", [f"docker.io/{IMAGE}"])]),
        ALLOWED,
        {},
        ("lab disk", "ok", "lab: 10 GiB"),
    ),
    "a disk of unknown size": (cluster(Node=[a_disk(None)]), ALLOWED, {}, ("lab disk", "ok", "size not known")),
    "a full disk": (
        cluster(Node=[a_disk("200Gi", pressure="True")]),
        ALLOWED,
        {},
        ("lab disk", "fail", "DiskPressure"),
    ),
    "a claim that is bound": (
        cluster(
            PersistentVolumeClaim=[with_status(with_spec(claim(), volumeName="ai-infra-vllm-model-0"), phase="Bound")],
            PersistentVolume=[volume()],
        ),
        ALLOWED,
        {},
        ("qwen cache", "ok", "claim vllm-model-0 Bound to ai-infra-vllm-model-0"),
    ),
    "a claim that is not there": (cluster(), ALLOWED, {}, ("qwen cache", "ok", "claim vllm-model-0 not there yet")),
    "a folder's free space": (cluster(), ALLOWED, {}, ("qwen cache", "ok", "/srv/ai-infra/vllm-model-cache not known")),
    "a released volume": (
        cluster(PersistentVolume=[volume("Released")]),
        ALLOWED,
        {},
        ("qwen cache", "fail", "kubectl patch pv"),
    ),
    "an existing claim that is not there": (cluster(), ALLOWED, EXISTING, ("qwen cache", "fail", "no claim 'models'")),
    "an existing claim that is bound": (
        cluster(PersistentVolumeClaim=[with_status(MODELS, phase="Bound")]),
        ALLOWED,
        EXISTING,
        ("qwen cache", "ok", "claim models Bound"),
    ),
    "nothing there": (cluster(), ALLOWED, {}, ("objects", "ok", "0 of 10 are there")),
    "a foreign object": (
        cluster(Service=[FOREIGN_SERVICE]),
        ALLOWED,
        {},
        ("objects", "fail", "cluster.adopt: [Service/vllm-service]"),
    ),
    "monitoring's kinds": (
        cluster(Namespace=[an_object("monitoring")]),
        ALLOWED,
        OPERATOR,
        ("monitoring", "ok", "mode operator"),
    ),
    "monitoring's kinds are missing": (
        without_dra(cluster(Namespace=[an_object("monitoring")])),
        ALLOWED,
        OPERATOR,
        ("monitoring", "warn", "helm install prometheus"),
    ),
}


def of(found: Sequence[Line], question: str) -> list[Line]:
    return [line for line in found if line.question == question]


@pytest.mark.parametrize(("live_cluster", "closer", "changes", "expected"), CASES.values(), ids=CASES.keys())
def test_each_question_is_answered(
    live_cluster: LiveCluster, closer: Closer, changes: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    question, status, words = expected
    answers = of(lines(live_cluster, closer, changes), question)
    assert [line.status for line in answers] == [status], f"one answer, {status}: {answers}"
    said = f"{answers[0].found} {answers[0].wanted} {answers[0].remedy}"
    assert words in said, said


@pytest.mark.parametrize(
    "question", ["nodes", "GPUs", "free GPUs", "disk"], ids=["nodes", "cards", "free cards", "disk"]
)
def test_nodes_that_this_stack_makes_are_not_missed(question: str) -> None:
    stack = config("l40s-pair-eks")
    (pool,) = stack.nodes
    found = list(check_lines(stack, "l40s-pair-eks", "https://x", cluster("v1.34.1", Node=[]), ALLOWED))
    answers = of(found, f"{pool} {question}")
    assert all(line.status == "ok" for line in answers), answers
    assert bool(answers) == (question == "nodes"), "what is not made yet has no cards"


def test_a_finding_is_told_once_and_none_is_lost() -> None:
    leaving = with_spec(an_object("old-0", {naming.STACK_LABEL: STACK, naming.COMPONENT_LABEL: "server"}), replicas=1)
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}, "image": IMAGE}
    leaving["spec"]["template"] = {
        "spec": {"nodeSelector": dict(config().nodes["lab"].selector), "containers": [limits]}
    }
    found = lines(cluster("v1.36.1", Deployment=[leaving]), ALLOWED)
    rules = [line.facts["rule"] for line in found if "rule" in line.facts]
    assert sorted(map(str, rules)) == ["LIVE-SWAP", "LIVE-VERSION"], "what has no line of its own gets one at the end"
    assert failed(found), "an error of a rule is a failed check"


# Rights


def test_an_object_that_is_there_is_not_made_again() -> None:
    absent = rights_needed(config(), frozenset(), cluster())
    present = rights_needed(config(), frozenset(), cluster(Namespace=[an_object("ai-infra")]))
    made = Right("create", "", "namespaces", "")
    assert made in absent, "it has to be made"
    assert made not in present, "who may not make namespaces can use one that was made"
    assert Right("patch", "", "namespaces", "") in present, "its labels are the stack's"


@pytest.mark.parametrize("kind", ["namespaces", "persistentvolumes", "persistentvolumeclaims"])
def test_no_right_to_delete_what_is_kept_is_asked_for(kind: str) -> None:
    rights = rights_needed(config(), frozenset({"apiKey"}), cluster())
    assert not [right for right in rights if right.resource == kind and right.verb == "delete"], "it outlives the stack"
    assert [right for right in rights if right.resource == kind and right.verb == "create"], "and is made by it"


def test_secrets_and_claim_templates_count_where_the_stack_has_them() -> None:
    plain = {right.resource for right in rights_needed(config(), frozenset(), cluster())}
    more = {right.resource for right in rights_needed(config(changes=DRA), frozenset({"apiKey"}), cards_by_dra())}
    assert not {"secrets", "resourceclaimtemplates"} & plain, "what is not made needs no right"
    assert {"secrets", "resourceclaimtemplates"} <= more


# The command


class ApiServer:
    """A cluster that answers from objects; ``allowed`` decides about a right, ``refused`` paths answer 403."""

    def __init__(self, found: LiveCluster, pods: Sequence[dict[str, Any]] = (), refused: str | None = None) -> None:
        self.found, self.pods, self.refused = found, pods, refused
        self.granted: set[str] | None = None
        """Verbs; None: everything."""
        self.reviews: list[dict[str, Any]] = []
        self.review_paths: set[str] = set()

    def answer(self, path: str) -> tuple[int, str]:
        plain, _, query = path.partition("?")
        if self.refused and self.refused in path:
            return 403, "{}"
        if plain == "/version":
            return 200, json.dumps({"gitVersion": self.found.version})
        if plain == "/api/v1/pods":
            assert "spec.nodeName%3Dlab" in query, "only the pods of the pool's nodes are read"
            return 200, json.dumps({"items": list(self.pods)})
        if plain == "/apis/apps/v1/deployments":
            return 200, json.dumps({"items": []})
        for kind, template in LISTS.items():
            if plain == template.format(namespace="ai-infra", dra="v1"):
                there = self.found.objects.get(kind)
                return (404, "{}") if there is None else (200, json.dumps({"items": list(there.values())}))
        return 404, "{}"

    def review(self, path: str, question: Any) -> tuple[int, str]:
        attributes = question["spec"]["resourceAttributes"]
        self.review_paths.add(path)
        self.reviews.append(attributes)
        allowed = self.granted is None or attributes["verb"] in self.granted
        return 201, json.dumps({**question, "status": {"allowed": allowed}})


def run(server: ApiServer, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    with api_server(server.answer, server.review) as address, client_of(address) as api:
        monkeypatch.setattr(live, "connect", lambda _: api)
        result = CliRunner().invoke(app, ["check", "--stack", STACK, *arguments])
    assert "Traceback" not in result.output, result.output
    return result


def test_a_cluster_as_the_stack_says_is_exit_code_0(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ApiServer(cluster())
    result = run(server, monkeypatch)
    assert result.exit_code == 0, result.output
    assert {line.split()[0] for line in result.output.splitlines()} == {"ok"}, result.output
    assert server.review_paths == {"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews?dryRun=All"}, (
        "the only thing that is sent, and it is a dry run"
    )
    assert len(server.reviews) == 1, "who may do everything is asked once"


def test_what_would_fail_is_exit_code_1_and_for_a_program_too(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ApiServer(cluster(), [a_pod("train-0", 1)])
    result = run(server, monkeypatch, "--json")
    assert result.exit_code == 1, "the server would stay Pending"
    found = {line["question"]: line for line in json.loads(result.stdout)["lines"]}
    assert [key for key, line in found.items() if line["status"] == "fail"] == ["lab free GPUs"]
    assert found["lab free GPUs"]["holders"] == ["team-a/train-0"]


def test_rights_are_asked_one_by_one_of_who_may_not_do_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ApiServer(cluster())
    server.granted = {"get", "list", "watch", "patch", "delete"}
    result = run(server, monkeypatch)
    assert result.exit_code == 1, "nothing can be made"
    assert "this identity may not create" in result.output, result.output
    asked = {(one["verb"], one["group"], one["resource"], one["namespace"]) for one in server.reviews}
    assert ("create", "apps", "deployments", "ai-infra") in asked
    assert ("create", "", "namespaces", "") in asked, "what has no namespace is asked without one"


def test_what_must_not_be_seen_is_not_known_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(ApiServer(cluster(), refused="/api/v1/pods"), monkeypatch)
    assert result.exit_code == 0, "an identity of one namespace can deploy all the same"
    assert "not known: the cluster answers 403 to a read of /api/v1/pods" in result.output, result.output


def test_a_cluster_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(ApiServer(cluster(), refused="/api/v1/nodes"), monkeypatch)
    assert result.exit_code == 1, "nothing can be compared"
    assert result.output.split()[:2] == ["fail", "cluster"], result.output
    assert "log in again" in result.output, result.output


@pytest.mark.parametrize("stack", CLUSTER_STACKS)
def test_a_cluster_of_its_own_is_not_there_to_be_looked_at(stack: str) -> None:
    result = CliRunner().invoke(app, ["check", "--stack", stack])
    assert result.exit_code == 0, result.output
    assert result.output.startswith(("ok", "warn")), result.output


def test_a_pool_without_cards_is_asked_nothing_about_cards() -> None:
    server = ApiServer(cluster(Node=[node(cards=0)]), refused="/api/v1/pods")
    stack = config(changes={"nodes.lab.gpu": "cpu"})
    with api_server(server.answer, server.review) as address, client_of(address) as api:
        closer = look_closer(api, stack, frozenset(), server.found)
    found = list(check_lines(stack, STACK, "https://x", server.found, closer))
    assert not [line for line in found if "GPU" in line.question], "its nodes compute on their CPUs"
    assert of(found, "lab nodes")[0].status == "ok", "the nodes must be there all the same"
