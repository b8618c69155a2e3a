"""The whole program with a mocked engine, stack by stack: what it registers, in which order, how strictly valid."""

from __future__ import annotations

import json
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pulumi
import pytest

import infra.live
from infra.live import LISTS, LiveCluster
from infra.preflight.live import wanted
from tests.recorder import Recording, Registration, record
from tests.stack_files import SHIPPED, config, pulumi_config

PROGRAM = Path(infra.live.__file__).parent / "__main__.py"
DAEMON_SET = "kubernetes:apps/v1:DaemonSet"
DEPLOYMENT = "kubernetes:apps/v1:Deployment"
JOB = "kubernetes:batch/v1:Job"
NAMESPACE = "kubernetes:core/v1:Namespace"
SECRET = "kubernetes:core/v1:Secret"


def matching_cluster(stack: str, changes: Mapping[str, Any] | None = None) -> LiveCluster:
    """A cluster whose nodes are as the stack declares them, and which holds nothing of it yet."""
    stack_config = config(stack, changes)
    objects: dict[str, dict[str, Any]] = {kind: {} for kind in LISTS}
    objects["RuntimeClass"] = {"nvidia": {"metadata": {"name": "nvidia"}}}
    objects["StorageClass"] = {
        "local-path": {"metadata": {"name": "local-path"}, "provisioner": "rancher.io/local-path"}
    }
    selector = {"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}
    objects["DeviceClass"] = {"gpu.nvidia.com": {"spec": {"selectors": [selector]}}}
    for name, pool in stack_config.nodes.items():
        for number in range(pool.nodes):
            node = pool.node_names[number] if pool.node_names else f"{name}-{number}"
            plugin = pool.kind == "gpu" and pool.allocation == "devicePlugin"
            by_plugin = {"nvidia.com/gpu": str(pool.gpus_per_node)} if plugin else {}
            objects["Node"][node] = {
                "metadata": {"name": node, "labels": {"kubernetes.io/hostname": node, **pool.selector}},
                "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": by_plugin},
            }
            if pool.allocation == "dra":
                cards = [{"name": f"gpu-{card}"} for card in range(pool.gpus_per_node)]
                spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": {"name": node}, "devices": cards}
                objects["ResourceSlice"][node] = {"spec": spec}
    return LiveCluster(f"v{stack_config.cluster.kubernetes_version}.0", objects)


def run(
    monkeypatch: pytest.MonkeyPatch,
    stack: str = "lab-3060",
    changes: Mapping[str, Any] | None = None,
    secrets: Mapping[str, str] | None = None,
    there: Mapping[str, Any] | None = None,
) -> Recording:
    cluster = matching_cluster(stack, changes)
    cluster = LiveCluster(cluster.version, {**cluster.objects, **(there or {})})
    monkeypatch.setattr(infra.live, "look", lambda _: cluster)
    hidden = {f"vllm:{key}": value for key, value in (secrets or {}).items()}
    return record(
        lambda: runpy.run_path(str(PROGRAM), run_name="__main__"),
        config={**pulumi_config(stack, changes), **hidden},
        secrets=list(hidden),
    )


@pytest.mark.parametrize("stack", SHIPPED)
def test_every_object_is_valid_to_the_letter(monkeypatch: pytest.MonkeyPatch, stack: str) -> None:
    version = config(stack).cluster.kubernetes_version
    registered = [item for item in run(monkeypatch, stack).registrations if item.type.startswith("kubernetes:")]
    # A chart's release is no object of Kubernetes, and a kind of an operator has its definition (tests/components).
    foreign = ("kubernetes:helm.sh/", "kubernetes:monitoring.coreos.com/")
    objects = [item for item in registered if not item.type.startswith(foreign)]
    assert len(objects) >= 8, "a stack has namespace, claim, pre-pull, seed, server and address"
    for item in objects:
        manifest = {key: value for key, value in item.inputs.items() if key != "__provider"}
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_misspelt_field_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = dict(run(monkeypatch).one(DEPLOYMENT).inputs)
    manifest["spec"]["template"]["spec"]["containers"][0]["startupProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, "1.37", strict=True)


@pytest.mark.parametrize("stack", SHIPPED)
def test_the_live_look_up_knows_every_object_with_a_fixed_name(monkeypatch: pytest.MonkeyPatch, stack: str) -> None:
    registered = {
        (item.type.split(":")[-1], item.inputs["metadata"]["name"])
        for item in run(monkeypatch, stack).registrations
        if item.type.startswith("kubernetes:") and "name" in item.inputs.get("metadata", {})
    }
    looked_at = {(kind, name) for kind, name, _ in wanted(config(stack))}
    assert registered == looked_at, "an object that is not looked at could be somebody else's"


def order(recording: Recording, first: Registration, second: Registration) -> bool:
    """Whether ``second`` waits for ``first``."""
    return f"{first.type}::{first.name}" in recording.dependencies(second)


def test_each_thing_waits_for_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = run(monkeypatch)
    namespace, claim = recording.one(NAMESPACE), recording.one("kubernetes:core/v1:PersistentVolumeClaim")
    volume = recording.one("kubernetes:core/v1:PersistentVolume")
    pre_pull, seed = recording.one(DAEMON_SET), recording.one(JOB)
    server, service = recording.one(DEPLOYMENT), recording.one("kubernetes:core/v1:Service")
    for first, second, reason in (
        (namespace, claim, "a claim is in the namespace"),
        (volume, claim, "the claim names the volume"),
        (namespace, pre_pull, "the DaemonSet is in the namespace"),
        (claim, seed, "the download needs a place"),
        (pre_pull, seed, "the download runs in the image"),
        (pre_pull, server, "a Recreate update must not wait for a pull"),
        (seed, server, "an offline server needs the whole model"),
        (claim, server, "the server mounts the claim"),
        (server, service, "the address is given out when there is somebody behind it"),
    ):
        assert order(recording, first, second), reason


def test_a_pair_is_filled_and_changed_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = run(monkeypatch, "l40s-pair")
    jobs, servers = (
        sorted(recording.all(type_), key=lambda item: item.inputs["metadata"]["name"]) for type_ in (JOB, DEPLOYMENT)
    )
    assert len(jobs) == len(servers) == 2, "a download and a server for each replica"
    assert order(recording, jobs[0], jobs[1]), "the hub's rate is one for all"
    assert order(recording, servers[0], servers[1]), "one serves while the other is changed"
    for job, server in zip(jobs, servers, strict=True):
        assert order(recording, job, server), "each server waits for its own download"
        assert order(recording, recording.one(DAEMON_SET), server), "and for the image"
    assert not order(recording, jobs[1], servers[0]), "the first serves before the second has its model"


def test_replicas_that_share_a_claim_fill_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {
        "services.qwen.cache": {"kind": "existingClaim", "claimName": "models", "accessMode": "ReadWriteMany"},
        "services.qwen.replicas": 2,
        "nodes.lab.nodes": 2,
    }
    claim = {"metadata": {"name": "models"}, "spec": {"accessModes": ["ReadWriteMany"]}}
    recording = run(monkeypatch, changes=changes, there={"PersistentVolumeClaim": {"models": claim}})
    job = recording.one(JOB)
    for server in recording.all(DEPLOYMENT):
        assert order(recording, job, server), "both wait for the one download"
        volumes = server.inputs["spec"]["template"]["spec"]["volumes"]
        claims = [volume["persistentVolumeClaim"]["claimName"] for volume in volumes if volume["name"] == "cache"]
        assert claims == ["models"], "the claim is used under the name that it has"


@pytest.mark.parametrize("stack", SHIPPED)
def test_each_server_explains_a_failed_start(monkeypatch: pytest.MonkeyPatch, stack: str) -> None:
    for server in run(monkeypatch, stack).all(DEPLOYMENT):
        hooks = list(server.request.hooks.on_error)
        assert hooks == [f"explain-{server.inputs['metadata']['name']}-server"], (
            "the engine says only that time ran out"
        )


@pytest.mark.parametrize("stack", SHIPPED)
def test_each_download_explains_its_failure(monkeypatch: pytest.MonkeyPatch, stack: str) -> None:
    jobs = run(monkeypatch, stack).all(JOB)
    hooks = [hook for job in jobs for hook in job.request.hooks.on_error]
    assert len(hooks) == len(jobs) == len(set(hooks)), (
        "the engine shows an exit code only, and knows a hook by its name"
    )
    assert all(hook.endswith("-download") for hook in hooks), f"a server's hook has another name: {hooks}"


def test_a_pool_without_pre_pull_registers_none(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = run(monkeypatch, changes={"nodes.lab.imageDelivery": "none"})
    assert not recording.all(DAEMON_SET), "imageDelivery: none leaves the pull to the kubelet"
    assert recording.one(DEPLOYMENT), "and the server is deployed all the same"


def test_the_namespace_is_kept_and_says_what_it_admits(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"services.qwen.security": {"runAsUser": 10001}, "services.qwen.cache.owner": 10001}
    hosted = {"services.qwen.cache.seed": {"hostNetwork": True}}
    for given, level in (({}, "baseline"), (changes, "restricted"), (hosted, "privileged")):
        namespace = run(monkeypatch, changes=given).one(NAMESPACE)
        assert namespace.request.retainOnDelete, "claims live in it"
        assert namespace.inputs["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == level, (
            f"{given}: the strictest level that admits every pod"
        )


def test_the_cluster_is_named_and_never_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = run(monkeypatch).one("pulumi:providers:kubernetes").inputs
    assert provider["context"] == provider["clusterIdentifier"] == "lab-3060"
    assert "kubeconfig" not in provider, "its content would land in the state"
    assert json.loads(str(provider["upsertExistingObjects"]).lower()) is True, "what was kept must be adopted"


def test_the_token_is_given_to_the_download_only(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = run(monkeypatch, secrets={"hfToken": "hf_hidden"})

    def names(item: Registration) -> set[str]:
        return {variable["name"] for variable in item.inputs["spec"]["template"]["spec"]["containers"][0]["env"]}

    assert "HF_TOKEN" in names(recording.one(JOB)), "the download needs it"
    assert "HF_TOKEN" not in names(recording.one(DEPLOYMENT)), "an offline server does not"
    texts = [str(item.raw_inputs) for item in recording.registrations if not item.type.endswith(":Secret")]
    assert not [text for text in texts if "hf_hidden" in text], "the value is in the Secret and nowhere else"


STANDALONE = {
    "mode": "standalone",
    "prometheusImage": "registry.example/prometheus:v3.16.0",
    "alertmanagerImage": "registry.example/alertmanager:v0.35.0",
    "receiver": {"kind": "slack", "channel": "#inference"},
}
TWO_RECEIVERS = {"alertWebhookUrl": "https://hooks.example.com/old", "alertSlackUrl": "https://slack.example.com/new"}


def test_alerts_go_where_the_receiver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = run(monkeypatch, changes={"monitoring": STANDALONE}, secrets=TWO_RECEIVERS)
    secret = recording.one(SECRET, "alert-receiver")
    assert secret.inputs["stringData"] == {"credential": TWO_RECEIVERS["alertSlackUrl"]}, (
        "an address that is left over from another receiver is nobody's"
    )
    assert order(recording, recording.one(DEPLOYMENT, "qwen-deployment-0"), secret), "a refused Secret blocks no server"


def test_a_receiver_is_a_matter_of_standalone_monitoring(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = {"mode": "operator", "labels": {"release": "prometheus"}}
    recording = run(monkeypatch, changes={"monitoring": operator}, secrets=TWO_RECEIVERS)
    assert not recording.all(SECRET), "an Alertmanager of somebody else has receivers of its own"


def test_what_a_stack_exports_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = run(monkeypatch).exports
    assert set(exports) == {"services"}, "a change of an export is a line of every diff"
    qwen = exports["services"]["qwen"]
    assert qwen["address"] == "http://vllm-service.ai-infra.svc:8000/v1"
    assert {"model", "gpu", "release", "kvTokens", "nvidiaSmiMiB", "startupBudgetSeconds", "downtimeSeconds"} < set(
        qwen
    )
    assert "dollarsPerHour" not in qwen, "a cost of a pool without a price would be invented"
    priced = run(monkeypatch, changes={"nodes.lab.pricePerHour": 0.5}).exports["services"]["qwen"]
    assert priced["dollarsPerHour"] == 0.5, "one of the node's one GPU is all of its price"


def test_warnings_are_said_before_anything_is_registered_and_again_on_their_resource(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[tuple[str, str | None]] = []
    monkeypatch.setattr(pulumi.log, "warn", lambda text, resource=None: said.append((text, _token(resource))))
    run(monkeypatch)
    pin = [(index, where) for index, (text, where) in enumerate(said) if "image.digest" in text]
    assert [where for _, where in pin] == [None, "vllm:index:VllmServer"], "once for all, then on the server"


def _token(resource: pulumi.Resource | None) -> str | None:
    return resource.pulumi_resource_type if resource is not None else None


REFUSED = {
    "a fault of the file": {"services.qwen.engine.maxModelLne": 4096},
    "a plan that does not fit": {"services.qwen.engine.gpuMemoryUtilization": 0.4},
    "an unknown model": {"services.qwen.model.id": "Qwen/Qwen2.5-7B-Instruct-AWK"},
    "an unknown GPU": {"nodes.lab.gpu": "rtx-3060"},
    "an unknown release": {"services.qwen.image.tag": "latest"},
}


@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED.keys())
def test_a_refused_stack_registers_nothing(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    monkeypatch.setattr(infra.live, "look", lambda _: matching_cluster("lab-3060"))
    registered: list[Registration] = []
    said: list[str] = []
    monkeypatch.setattr(pulumi.log, "error", said.append)

    def program() -> None:
        with pytest.raises(SystemExit) as refused:
            runpy.run_path(str(PROGRAM), run_name="__main__")
        assert refused.value.code == 32, "with any other code the engine adds `an unhandled error occurred`"
        assert "nothing was created, changed or lost" in said[-1]

    registered += record(program, config=pulumi_config("lab-3060", changes)).registrations
    assert not registered, f"{[item.name for item in registered]} were registered before the check was over"
