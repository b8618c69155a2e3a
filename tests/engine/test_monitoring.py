"""Monitoring on the real API server: what is admitted, what a change touches, and that it never blocks a server."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sim import crds
from sim.cluster import Cluster, ClusterError
from sim.demo import watched_by
from tests.engine.conftest import NewStack
from tests.engine.driver import Answer, Object, Stack, acting_as, until

pytestmark = pytest.mark.engine

OPERATOR_KINDS = ("ServiceMonitor", "PrometheusRule")
OPERATOR = {"mode": "operator", "labels": {"release": "prometheus"}, "prometheusNamespace": "monitoring"}
ANNOTATIONS = {"mode": "annotations", "prometheusNamespace": "monitoring"}
STANDALONE = {
    "mode": "standalone",
    "prometheusImage": "quay.io/prometheus/prometheus:v3.5.0",
    "alertmanagerImage": "quay.io/prometheus/alertmanager:v0.28.1",
    "storageClass": "local-path",
    "receiver": {"kind": "webhook"},
}
SERVERS = ("vllm-prometheus", "vllm-alertmanager")
WEBHOOK, OTHER_WEBHOOK = "https://hooks.example.com/correct-horse", "https://hooks.example.com/battery-staple"
QUEUE = {"monitoring.alerts": {"queueBacklog": {"waitingPerReplica": 7}}}
OWN_NAMESPACE = "that of the stack"


@pytest.fixture(scope="module")
def stack(shared_stack: NewStack) -> Stack:
    made = shared_stack("monitored")
    made.up()
    return made


def touched(answer: Answer) -> dict[tuple[str, str], str]:
    """(kind, logical name) → what happened, or would, to each resource in the cluster."""
    return {
        (event.type.rpartition(":")[2], event.name): event.operation
        for event in answer.changes
        if event.type.startswith("kubernetes:")
    }


def inputs(stack: Stack, kind: str) -> list[Object]:
    """What the program sent for each object of a kind that monitoring makes."""
    sent = [
        one["inputs"] for one in stack.export()["resources"] if one["type"].endswith(f":{kind}") and "inputs" in one
    ]
    return [one for one in sent if is_monitoring(one)]


def is_monitoring(thing: Object) -> bool:
    labels = thing["metadata"].get("labels", {})
    return bool(labels.get("app.kubernetes.io/component") == "monitoring")


def kinds_of_monitoring(stack: Stack) -> list[str]:
    """The kind of each object that monitoring has in the state."""
    return sorted(
        one["inputs"]["kind"]
        for one in stack.export()["resources"]
        if one["type"].startswith("kubernetes:") and is_monitoring(one["inputs"])
    )


def missing(sent: Any, found: Any, path: str = "") -> list[str]:
    """Where ``found`` lacks something of ``sent``; what the API server adds of itself is no difference."""
    if isinstance(sent, dict) and isinstance(found, dict):
        return [
            place for key, value in sent.items() for place in missing(value, found.get(key, "nothing"), f"{path}.{key}")
        ]
    if isinstance(sent, list) and isinstance(found, list) and len(sent) == len(found):
        return [
            place
            for number, (one, other) in enumerate(zip(sent, found, strict=True))
            for place in missing(one, other, f"{path}[{number}]")
        ]
    return [] if sent == found else [f"{path}: sent {sent!r}, found {found!r}"]


# --- what is admitted


@pytest.mark.parametrize("kind", [*OPERATOR_KINDS, "ConfigMap", "NetworkPolicy"])
def test_what_is_sent_is_what_is_there(stack: Stack, kind: str) -> None:
    sent = inputs(stack, kind)
    assert len(sent) == 1, f"the demo has one service: {sent}"
    for one in sent:
        live = stack.get(kind, one["metadata"]["name"])
        assert missing(one, live) == [], (
            "the API server drops a field that the definition does not know, and says nothing"
        )


@pytest.mark.parametrize("kind", OPERATOR_KINDS)
def test_the_definition_knows_every_field(stack: Stack, kind: str) -> None:
    (sent,) = inputs(stack, kind)
    check = ("apply", "--dry-run=server", "--validate=strict", "--server-side", "--force-conflicts", "-f", "-")
    stack.cluster.kubectl(*check, text=json.dumps(sent))
    with pytest.raises(ClusterError, match="not declared in schema"):
        stack.cluster.kubectl(*check, text=json.dumps({**sent, "spec": {**sent["spec"], "noSuchField": 1}}))


def test_the_operator_finds_them_by_its_labels(stack: Stack) -> None:
    for kind in OPERATOR_KINDS:
        found = stack.find(kind, f"release=prometheus,pulumi-vllm/stack={stack.name}")
        assert [one["metadata"]["name"] for one in found] == ["qwen"], f"{kind}: what the Prometheus object selects"
    (dashboard,) = stack.find("configmap", "grafana_dashboard=1")
    (document,) = (json.loads(text) for text in dashboard["data"].values())
    assert document["panels"], "Grafana's sidecar loads it"


def test_the_monitor_selects_the_one_service_and_a_port_that_it_has(stack: Stack) -> None:
    monitor = stack.get("ServiceMonitor", "qwen")["spec"]
    selector = ",".join(f"{key}={value}" for key, value in monitor["selector"]["matchLabels"].items())
    (service,) = stack.find("service", selector)
    assert service["metadata"]["name"] == "vllm-service", "the labels are those of the Service that is there"
    ports = {port["name"] for port in service["spec"]["ports"]}
    assert {endpoint["port"] for endpoint in monitor["endpoints"]} <= ports, "an unknown port is scraped by nobody"


def test_prometheus_may_read_from_its_namespace(stack: Stack) -> None:
    policy = stack.get("networkpolicy", "qwen-metrics")["spec"]
    pod = stack.server_pod()["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= pod.items(), "it is about the server"
    (source,) = policy["ingress"][0]["from"]
    selector = ",".join(f"{key}={value}" for key, value in source["namespaceSelector"]["matchLabels"].items())
    found = json.loads(stack.cluster.kubectl("get", "namespaces", f"--selector={selector}", "-o", "json"))["items"]
    assert [one["metadata"]["name"] for one in found] == ["monitoring"], "and the namespace is in the cluster"


def test_the_demo_says_what_watches_it(stack: Stack) -> None:
    names, command = watched_by(stack.cluster, stack.name)
    for kind, name in (("ServiceMonitor", "qwen"), ("PrometheusRule", "qwen"), ("ConfigMap", "qwen-dashboard")):
        assert f"{kind}/{name}" in names, "a newcomer sees what was made"
    shown = stack.cluster.kubectl(*command.partition("kubectl ")[2].split())
    assert "VLLMQueueBacklog" in shown, "and the command shows what it says"


def test_nothing_changes_by_itself(stack: Stack) -> None:
    stack.preview("--expect-no-changes")
    before = stack.versions()
    assert any(name.startswith("PrometheusRule/") for name in before), "the versions cover monitoring"
    assert stack.up().changes == (), "the program says the same, so nothing is written"
    assert stack.versions() == before, "no object was touched"


# --- what a change touches


def test_another_threshold_changes_the_rule_and_where_it_is_drawn(new_stack: NewStack) -> None:
    stack = new_stack("threshold")
    stack.up()
    before, pod = stack.versions(), stack.server_pod()["metadata"]["uid"]
    stack.write(QUEUE)
    expected = {
        ("PrometheusRule", "qwen-PrometheusRule"): "update",
        ("ConfigMap", "qwen-dashboard"): "update",
    }
    assert touched(stack.preview()) == expected, "rule and dashboard in place, neither deleted and made again"
    assert touched(stack.up()) == expected, "as the preview said"
    after = stack.versions()
    assert {name for name in before if before[name] != after.get(name)} == {
        "PrometheusRule/qwen",
        "ConfigMap/qwen-dashboard",
    }, "nothing else was written"
    assert stack.server_pod()["metadata"]["uid"] == pod, "a threshold restarts no server"
    (group,) = [
        rule
        for groups in stack.get("PrometheusRule", "qwen")["spec"]["groups"]
        for rule in groups["rules"]
        if rule.get("alert") == "VLLMQueueBacklog"
    ]
    assert "> 7" in group["expr"], "the threshold of the stack file"
    stack.preview("--expect-no-changes")


CHANGES: Mapping[str, tuple[dict[str, Any], dict[tuple[str, str], str]]] = {
    "taken out of the stack file": (
        {"monitoring": None},
        {
            ("ServiceMonitor", "qwen-ServiceMonitor"): "delete",
            ("PrometheusRule", "qwen-PrometheusRule"): "delete",
            ("ConfigMap", "qwen-dashboard"): "delete",
            ("NetworkPolicy", "qwen-metrics-policy"): "delete",
        },
    ),
    "mode annotations": (
        {"monitoring": ANNOTATIONS},
        {
            ("Service", "vllm-service-service"): "update",
            ("ConfigMap", "qwen-rules"): "create",
            ("ConfigMap", "qwen-scrape"): "create",
            ("ServiceMonitor", "qwen-ServiceMonitor"): "delete",
            ("PrometheusRule", "qwen-PrometheusRule"): "delete",
        },
    ),
    "Prometheus in the stack's own namespace": (
        {"monitoring.prometheusNamespace": OWN_NAMESPACE},
        {("NetworkPolicy", "qwen-metrics-policy"): "delete"},
    ),
    "other labels": (
        {"monitoring.labels": {"team": "inference"}},
        {
            ("ServiceMonitor", "qwen-ServiceMonitor"): "update",
            ("PrometheusRule", "qwen-PrometheusRule"): "update",
        },
    ),
}


@pytest.mark.parametrize(("changes", "expected"), CHANGES.values(), ids=CHANGES.keys())
def test_a_preview_shows_what_one_wants_to_approve(
    stack: Stack, changes: dict[str, Any], expected: dict[tuple[str, str], str]
) -> None:
    stack.write({path: stack.name if value == OWN_NAMESPACE else value for path, value in changes.items()})
    try:
        answer = stack.preview()
    finally:
        stack.write()
    assert touched(answer) == expected, f"monitoring only, and of the server nothing:\n{answer.output}"


def test_modes_can_be_changed_back_and_forth(new_stack: NewStack) -> None:
    stack = new_stack("modes")
    stack.up()
    pod = stack.server_pod()["metadata"]["uid"]
    stack.write({"monitoring": ANNOTATIONS})
    stack.up()
    assert kinds_of_monitoring(stack) == ["ConfigMap", "ConfigMap", "ConfigMap", "NetworkPolicy"], (
        "rules, job, dashboard"
    )
    for sent in inputs(stack, "ConfigMap"):
        assert missing(sent, stack.get("configmap", sent["metadata"]["name"])) == [], "as it was sent"
    annotations = stack.get("service", "vllm-service")["metadata"]["annotations"]
    assert annotations["prometheus.io/scrape"] == "true", "what a hand-run Prometheus looks for"
    assert [kind for kind in OPERATOR_KINDS if stack.find(kind)] == [], "scraped once, not twice"

    stack.write({"monitoring": {**ANNOTATIONS, "alerts": QUEUE["monitoring.alerts"]}})
    assert touched(stack.up()) == {
        ("ConfigMap", "qwen-rules"): "update",
        ("ConfigMap", "qwen-dashboard"): "update",
    }, "the file is changed where it is: Prometheus never finds it gone"

    stack.write({"monitoring": {"mode": "none"}})
    stack.up()
    assert kinds_of_monitoring(stack) == [], "nothing is left"
    annotations = stack.get("service", "vllm-service")["metadata"].get("annotations", {})
    assert not [name for name in annotations if name.startswith("prometheus.io/")], "nor on the Service"

    stack.write()
    stack.up()
    assert [kind for kind in OPERATOR_KINDS if not stack.find(kind)] == [], "and it comes back"
    assert stack.server_pod()["metadata"]["uid"] == pod, "all that without touching the server"
    stack.preview("--expect-no-changes")


def test_destroy_takes_monitoring_and_keeps_claims(new_stack: NewStack) -> None:
    stack = new_stack("unmonitored")
    stack.up()
    kept = stack.kept()
    answer = stack.destroy()
    ended = answer.position("end", "PrometheusRule", last=True)
    assert ended < answer.position("start", "Deployment"), "monitoring goes before what it watches"
    assert [kind for kind in OPERATOR_KINDS if stack.find(kind)] == [], (
        "no alert about a server that is gone on purpose"
    )
    assert not stack.find("configmap", "grafana_dashboard"), "no dashboard without data"
    assert stack.kept() == kept, "namespace, volume and claim stay"


# --- what never blocks a server


@contextmanager
def rules_are_refused(stack: Stack) -> Iterator[None]:
    """Inside, the cluster's owner admits no PrometheusRule in the stack's namespace."""
    name = f"no-rules-{stack.name}"
    rule = {
        "apiGroups": ["monitoring.coreos.com"],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["prometheusrules"],
    }
    where = {"matchLabels": {"kubernetes.io/metadata.name": stack.name}}
    policy = {
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": where},
        "validations": [{"expression": "false", "message": "rules belong to the platform team"}],
    }
    group = "admissionregistration.k8s.io/v1"
    binding = {"policyName": name, "validationActions": ["Deny"]}
    stack.cluster.apply(
        {"apiVersion": group, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": policy},
        {"apiVersion": group, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name}, "spec": binding},
    )
    try:
        until(lambda: not _admits_rules(stack), "a new policy takes a moment")
        yield
    finally:
        for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
            stack.cluster.kubectl("delete", kind, name)
        until(lambda: _admits_rules(stack), "and so does its end")


def _admits_rules(stack: Stack) -> bool:
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "tried", "namespace": stack.name},
        "spec": {"groups": []},
    }
    try:
        stack.cluster.kubectl("create", "--dry-run=server", "-f", "-", text=json.dumps(rule))
    except ClusterError:
        return False
    return True


def test_a_refused_rule_does_not_hold_the_server_up(new_stack: NewStack) -> None:
    stack = new_stack("refused-rule")
    stack.write({"services.qwen.image.tag": "v0.31.0"})
    stack.up()
    before = stack.get("PrometheusRule", "qwen")["metadata"]["resourceVersion"]
    stack.write({"services.qwen.image.tag": "v0.33.0", **QUEUE})
    with rules_are_refused(stack):
        answer = stack.preview(fails=True)
        assert "rules belong to the platform team" in answer.output, f"a preview says it first:\n{answer.output}"
        answer = stack.up(fails=True)
        assert "rules belong to the platform team" in answer.output, f"`up` says what failed, and why:\n{answer.output}"
        image = stack.server_pod()["spec"]["containers"][0]["image"]
        assert image.endswith(":v0.33.0"), "the server is updated all the same"
        assert stack.get("PrometheusRule", "qwen")["metadata"]["resourceVersion"] == before, (
            "the old rule still watches"
        )
    stack.up()
    assert stack.get("PrometheusRule", "qwen")["metadata"]["resourceVersion"] != before, "the next `up` makes up for it"
    stack.preview("--expect-no-changes")


@pytest.fixture
def bare(tmp_path_factory: pytest.TempPathFactory, testrun_uid: str, worker_id: str) -> Iterator[Cluster]:
    """A cluster of this test's own, in which nobody installed prometheus-operator's kinds."""
    one = Cluster(f"bare-{testrun_uid[:8]}-{worker_id}", tmp_path_factory.mktemp("bare") / "cluster")
    one.up()
    try:
        without_kinds(one)
        yield one
    finally:
        one.down()


def without_kinds(cluster: Cluster) -> None:
    cluster.kubectl("delete", "-f", str(crds.monitoring_crds()), "--wait=true")
    until(
        lambda: "monitoring.coreos.com" not in cluster.kubectl("get", "--raw", "/apis"), "the group goes with its kinds"
    )


def with_kinds(cluster: Cluster) -> None:
    cluster.kubectl("apply", "--server-side", "-f", str(crds.monitoring_crds()))
    cluster.kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=60s")


def test_kinds_that_come_and_go(bare: Cluster, tmp_path: Path) -> None:
    stack = Stack(bare, tmp_path / "bare", "bare")
    stack.prepare()
    answer = stack.up()
    _is_said(answer)
    assert kinds_of_monitoring(stack) == ["ConfigMap", "NetworkPolicy"], "what needs no operator is there"
    pod = stack.server_pod()
    assert {one["type"]: one["status"] for one in pod["status"]["conditions"]}["Ready"] == "True", "and the server"
    stack.preview("--expect-no-changes")

    with_kinds(bare)
    answer = stack.up()
    created = {(kind, f"qwen-{kind}"): "create" for kind in OPERATOR_KINDS}
    assert touched(answer) == created, "once somebody installed them, the next `up` makes what was left out"
    assert "does not serve" not in answer.output, "and nothing is said any more"

    without_kinds(bare)
    answer = stack.preview()
    _is_said(answer)
    deleted = dict.fromkeys(created, "delete")
    assert touched(answer) == deleted, "Kubernetes deleted the objects with their kind; the state is told"
    assert touched(stack.up()) == deleted, "which works although nobody knows their kind any more"
    assert stack.server_pod()["metadata"]["uid"] == pod["metadata"]["uid"], "all that without touching the server"
    stack.preview("--expect-no-changes")

    with_kinds(bare)
    stack.up()
    without_kinds(bare)
    stack.destroy()
    assert stack.export().get("resources", []) == [], "nor do they hold up a destroy"


def _is_said(answer: Answer) -> None:
    for text in ("does not serve ServiceMonitor, PrometheusRule", "helm install prometheus", "mode annotations"):
        assert text in answer.output, f"the look-up must say {text!r}:\n{answer.output}"


def test_monitors_that_cannot_be_seen_are_not_taken_for_absent(new_stack: NewStack) -> None:
    stack = new_stack("hidden")
    stack.up()
    with acting_without(stack, "monitoring.coreos.com", []):
        before = stack.versions()
        answer = stack.preview(fails=True)
        assert "answers 403 to a read of /apis/monitoring.coreos.com/v1" in answer.output, answer.output
        assert "does not serve" not in answer.output, "forbidden is not absent"
        assert answer.changes == (), "nothing would be deleted because it was not seen"
        assert stack.versions() == before, "no object was touched"
    with acting_without(stack, "monitoring.coreos.com", ["list", "get", "patch"]):
        stack.preview("--expect-no-changes")


@contextmanager
def acting_without(stack: Stack, group: str, verbs: list[str]) -> Iterator[None]:
    """Inside, look-up and engine are an identity that may do all but, in ``group``, only ``verbs``."""
    served = [entry["name"] for entry in json.loads(stack.cluster.kubectl("get", "--raw", "/apis"))["groups"]]
    rules = [{"apiGroups": ["", *(one for one in served if one != group)], "resources": ["*"], "verbs": ["*"]}]
    if verbs:
        rules.append({"apiGroups": [group], "resources": ["*"], "verbs": verbs})
    name = f"restricted-{stack.name}"
    rbac = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subject = {"kind": "ServiceAccount", "name": "restricted", "namespace": stack.name}
    api = "rbac.authorization.k8s.io/v1"
    metadata = {"name": name}
    stack.cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "restricted", "namespace": stack.name}},
        {"apiVersion": api, "kind": "ClusterRole", "metadata": metadata, "rules": rules},
        {"apiVersion": api, "kind": "ClusterRoleBinding", "metadata": metadata, "roleRef": rbac, "subjects": [subject]},
    )
    try:
        with acting_as("restricted", stack, stack.name):
            yield
    finally:
        for kind in ("clusterrolebinding", "clusterrole"):
            stack.cluster.kubectl("delete", kind, name)


# --- a Prometheus of the stack's own


@pytest.fixture(scope="module")
def standalone(shared_stack: NewStack) -> Stack:
    made = shared_stack("standalone")
    made.write({"monitoring": STANDALONE})
    made.set_secret("alertWebhookUrl", WEBHOOK)
    made.up()
    return made


def test_a_prometheus_of_its_own_is_admitted_and_scheduled(standalone: Stack) -> None:
    stack = standalone
    for name in SERVERS:
        (pod,) = stack.find("pod", f"app.kubernetes.io/instance={name}")
        ready = {one["type"]: one["status"] for one in pod["status"]["conditions"]}["Ready"]
        assert ready == "True", f"{name}: `up` ends when it is ready"
        assert stack.get("pvc", name)["status"]["phase"] == "Bound", f"{name}: its pod runs on its claim"
        (slice_,) = stack.find("endpointslice", f"kubernetes.io/service-name={name}")
        assert slice_["endpoints"][0]["addresses"] == [pod["status"]["podIP"]], f"{name}: the Service leads to it"
    for kind in ("ConfigMap", "Deployment", "NetworkPolicy", "Role", "Service", "ServiceAccount"):
        for sent in inputs(stack, kind):
            live = stack.get(kind, sent["metadata"]["name"])
            assert missing(sent, live) == [], f"{kind}: as it was sent"
    stack.preview("--expect-no-changes")


def test_the_own_prometheus_may_read_what_its_configuration_discovers(standalone: Stack) -> None:
    who = f"--as=system:serviceaccount:{standalone.name}:vllm-prometheus"
    for what, namespace, answer in (
        ("endpointslices.discovery.k8s.io", standalone.name, "yes"),
        ("pods", standalone.name, "yes"),
        ("secrets", standalone.name, "no"),
        ("pods", "kube-system", "no"),
    ):
        # Exit code 1 is the answer no.
        try:
            said = standalone.cluster.kubectl("auth", "can-i", "list", what, who, "-n", namespace).strip()
        except ClusterError:
            said = "no"
        assert said == answer, f"may it list {what} in {namespace}?"


def test_the_receivers_credential_is_a_file_of_a_secret(standalone: Stack) -> None:
    stack = standalone
    (secret,) = stack.secrets("credential")
    assert base64.b64decode(secret["data"]["credential"]).decode() == WEBHOOK, "the Secret holds what was set"
    (pod,) = stack.find("pod", "app.kubernetes.io/instance=vllm-alertmanager")
    mounted = [one["secret"]["secretName"] for one in pod["spec"]["volumes"] if "secret" in one]
    assert mounted == [secret["metadata"]["name"]], "Alertmanager reads it there"
    (other,) = stack.find("pod", "app.kubernetes.io/instance=vllm-prometheus")
    assert not [one for one in other["spec"]["volumes"] if "secret" in one], "Prometheus has no use for it"
    _is_nowhere_readable(stack, WEBHOOK)


def _is_nowhere_readable(stack: Stack, value: str) -> None:
    files = [file for place in ("backend", "logs", "stacks") for file in (stack.folder / place).rglob("*")]
    texts = {file: file.read_text() for file in files if file.is_file()}
    assert any('"ciphertext"' in text for text in texts.values()), "the state holds it, encrypted"
    for spelling in (value, base64.b64encode(value.encode()).decode()):
        assert [file.name for file, text in texts.items() if spelling in text] == [], "in the clear in the Secret only"
    manifests = stack.cluster.kubectl("get", "pods,deployments,configmaps,events", "-n", stack.name, "-o", "yaml")
    assert value not in manifests, "by name only"


def test_what_was_measured_outlives_the_stack(new_stack: NewStack) -> None:
    stack = new_stack("measured")
    stack.write({"monitoring": STANDALONE})
    stack.set_secret("alertWebhookUrl", WEBHOOK)
    stack.up()
    kept = stack.kept()
    assert {f"PersistentVolumeClaim/{name}" for name in SERVERS} <= kept.keys(), "samples and silences"

    stack.set_secret("alertWebhookUrl", OTHER_WEBHOOK)
    answer = stack.up()
    changed = {name for kind, name in touched(answer) if kind == "Deployment"}
    assert changed == {"vllm-alertmanager-deployment"}, "only who reads the credential is rolled"
    (secret,) = stack.secrets("credential")
    assert base64.b64decode(secret["data"]["credential"]).decode() == OTHER_WEBHOOK, "one Secret, the old one is gone"

    stack.destroy()
    assert stack.kept() == kept, "the same claims"
    assert not stack.find("deployment"), "and nothing that runs"
    stack.up()
    assert stack.kept() == kept, "taken over, not made again"
    stack.preview("--expect-no-changes")

    stack.write({"monitoring": {**STANDALONE, "storageClass": "other"}})
    answer = stack.preview(fails=True)
    assert "claim 'vllm-prometheus' is of class 'local-path'" in answer.output, (
        f"a claim keeps its class:\n{answer.output}"
    )

    stack.write()
    stack.up()
    assert stack.kept() == kept, "another mode leaves what was measured"
