"""The cache outlives everything, and its seed Job runs where the server will run."""

from __future__ import annotations

from typing import Any

import pulumi_kubernetes as k8s
import pytest

from components.model_cache import KEPT_ANNOTATIONS, ModelCache
from tests.components.arguments import NAMESPACE, cache_args
from tests.recorder import Recording, Registration, record

VOLUME = "kubernetes:core/v1:PersistentVolume"
CLAIM = "kubernetes:core/v1:PersistentVolumeClaim"
CLASS = "kubernetes:storage.k8s.io/v1:StorageClass"
JOB = "kubernetes:batch/v1:Job"
POLICY = "kubernetes:networking.k8s.io/v1:NetworkPolicy"
DYNAMIC = {"services.qwen.cache": {"kind": "storageClass", "storageClass": "local-path", "size": "80Gi"}}
OWN = {
    "services.qwen.cache": {
        "kind": "ownStorageClass",
        "provisioner": "ebs.csi.aws.com",
        "parameters": {"type": "gp3"},
        "size": "80Gi",
    }
}
EXISTING = {"services.qwen.cache": {"kind": "existingClaim", "claimName": "models"}}


def recorded(changes: dict[str, Any] | None = None) -> Recording:
    return record(lambda: ModelCache("qwen", cache_args(changes)))


def job(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    return recorded(changes).one(JOB).inputs["spec"]


def environment(changes: dict[str, Any] | None = None) -> dict[str, str]:
    (container,) = job(changes)["template"]["spec"]["containers"]
    return {item["name"]: item.get("value") for item in container["env"]}


def test_the_static_pair_binds_by_name_and_to_nobody_else() -> None:
    recording = recorded()
    volume, claim = recording.one(VOLUME).inputs, recording.one(CLAIM).inputs
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain", "the folder's content must survive the claim"
    assert volume["spec"]["hostPath"] == {"path": "/srv/ai-infra/vllm-model-cache", "type": "Directory"}, (
        "a missing folder must be an error and not an empty new folder"
    )
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"], "the claim names its volume"
    assert volume["spec"]["claimRef"] == {"namespace": NAMESPACE, "name": claim["metadata"]["name"]}, (
        "another claim could otherwise take the volume first"
    )
    for place in (volume["spec"], claim["spec"]):
        assert place["storageClassName"] == "", "the cluster's default class must stay out of it"
        assert place["accessModes"] == ["ReadWriteOnce"], "volume and claim must agree"
    assert volume["spec"]["capacity"]["storage"] == claim["spec"]["resources"]["requests"]["storage"] == "20Gi"


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, [("nvidia.com/gpu.present", "true"), ("nvidia.com/gpu.product", "NVIDIA-GeForce-RTX-3060")]),
        ({"services.qwen.cache.node": "lab-1"}, [("kubernetes.io/hostname", "lab-1")]),
    ],
    ids=["the pool's only node", "a named node"],
)
def test_the_static_volume_is_tied_to_the_node_that_has_the_folder(
    changes: dict[str, Any], wanted: list[tuple[str, str]]
) -> None:
    affinity = recorded(changes).one(VOLUME).inputs["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    (term,) = affinity
    labels = [(item["key"], *item["values"]) for item in term["matchExpressions"]]
    assert labels == wanted, "a pod on another node would find another folder"


@pytest.mark.parametrize("type_", [VOLUME, CLAIM])
def test_what_holds_the_weights_is_kept_and_never_protected(type_: str) -> None:
    registration = recorded().one(type_)
    assert registration.request.retainOnDelete, "destroy must leave it in the cluster"
    assert not registration.request.protect, "protect would make every destroy an error"
    annotations = registration.inputs["metadata"]["annotations"]
    assert annotations == KEPT_ANNOTATIONS, "its await would hang, and its owner must stay the same"


@pytest.mark.parametrize(
    ("changes", "class_name", "classes"),
    [(DYNAMIC, "local-path", 0), (OWN, "ai-infra-qwen-cache", 1)],
    ids=["an existing class", "a class of our own"],
)
def test_a_dynamic_claim_names_its_class(changes: dict[str, Any], class_name: str, classes: int) -> None:
    recording = recorded(changes)
    spec = recording.one(CLAIM).inputs["spec"]
    assert spec["storageClassName"] == class_name, "the claim must be served by the named class"
    assert "volumeName" not in spec, "the class decides the volume"
    assert len(recording.all(CLASS)) == classes, "only our own class is ours to create"
    assert not recording.all(VOLUME), "the class makes the volume"


def test_a_class_of_our_own_keeps_zone_and_files() -> None:
    inputs = recorded(OWN).one(CLASS).inputs
    assert inputs["volumeBindingMode"] == "WaitForFirstConsumer", "the volume must be made where the GPU is"
    assert inputs["reclaimPolicy"] == "Retain", "the files must survive the claim"
    assert inputs["allowVolumeExpansion"] is True, "the claim must be able to grow"
    assert inputs["parameters"] == {"type": "gp3"}, "the provisioner's parameters are the stack's"


def test_an_existing_claim_is_used_and_never_registered() -> None:
    recording = recorded(EXISTING)
    assert not recording.all(CLAIM), "a claim of somebody else is not ours to change"
    (volume,) = (
        item for item in recording.one(JOB).inputs["spec"]["template"]["spec"]["volumes"] if item["name"] == "cache"
    )
    assert volume["persistentVolumeClaim"]["claimName"] == "models", "the Job fills the named claim"


def test_the_logical_name_of_a_claim_follows_the_object() -> None:
    first = record(lambda: ModelCache("qwen", cache_args())).one(CLAIM)
    second = record(lambda: ModelCache("renamed", cache_args())).one(CLAIM)
    assert first.name == second.name == "ai-infra/vllm-model-0", (
        "a renamed YAML key must be the same claim, not a deleted and a new one"
    )


def test_the_seed_runs_where_the_server_will_run_and_needs_no_gpu() -> None:
    changes = {
        "nodes.lab.taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}],
        "services.qwen.cache.node": "lab-1",
    }
    spec = job(changes)["template"]["spec"]
    assert spec["nodeSelector"]["kubernetes.io/hostname"] == "lab-1", "the claim's first pod decides its node"
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    (container,) = spec["containers"]
    assert "nvidia.com/gpu" not in container["resources"]["limits"], "a download needs no GPU"
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"], "nor may it be given one"
    assert container["image"] == "vllm/vllm-openai:v0.31.0", "the image that is on the node already"


def test_the_seed_is_tried_again_and_given_up_at_last() -> None:
    spec = job()
    assert spec["backoffLimit"] == 2, "the seed asks for two retries"
    assert spec["activeDeadlineSeconds"] > 960, "5.57 GB at 5.8 MB/s take 16 minutes; the deadline must allow that"
    assert "ttlSecondsAfterFinished" not in spec, "a Job that vanishes would be created again by the next up"
    annotations = recorded().one(JOB).inputs["metadata"]["annotations"]
    assert annotations["pulumi.com/replaceUnready"] == "true", "a failed Job must not stay in the way"


def test_pulumi_waits_longer_than_the_job_may_take() -> None:
    registration = recorded().one(JOB)
    deadline = registration.inputs["spec"]["activeDeadlineSeconds"]
    assert int(registration.request.customTimeouts.create.removesuffix("s")) > deadline, (
        "the Job must end by its own clock, with a reason, before Pulumi gives up"
    )


def test_another_revision_image_or_setting_is_another_job() -> None:
    changed: list[dict[str, Any]] = [
        {},
        {"services.qwen.model.revision": "a" * 40},
        {"services.qwen.model.revision": "b" * 40},
        {"services.qwen.image.tag": "v0.33.0"},
        {"services.qwen.cache.seed": {"endpoint": "https://hub.example.com"}},
        {"services.qwen.security": {"runAsUser": 1000}, "services.qwen.cache.owner": 1000},
    ]
    names = {recorded(changes).one(JOB).inputs["metadata"]["name"] for changes in changed}
    assert len(names) == len(changed), "a Job's template cannot change, and under the same name the old is in the way"
    again = recorded({"services.qwen.engine.maxModelLen": 1024}).one(JOB).inputs["metadata"]["name"]
    assert again == recorded().one(JOB).inputs["metadata"]["name"], "what the download has no part in changes no Job"


def test_the_seed_waits_for_claim_and_image() -> None:
    def program() -> None:
        image = k8s.core.v1.ConfigMap("the-image")
        ModelCache("qwen", cache_args(seed_after=[image]))

    recording = record(program)
    dependencies = recording.dependencies(recording.one(JOB))
    assert f"{CLAIM}::ai-infra/vllm-model-0" in dependencies, "there must be a place to download to"
    assert "kubernetes:core/v1:ConfigMap::the-image" in dependencies, "the Job runs the image that was pulled"


def test_without_a_proxy_no_proxy_variable_is_set() -> None:
    assert not [name for name in environment() if "proxy" in name.lower()], "an empty proxy breaks the download"


def test_proxy_variables_come_in_both_spellings_and_spare_the_cluster() -> None:
    proxy = {"http": "http://10.0.0.5:3128", "https": "http://10.0.0.5:3128", "noProxy": ["hub.internal"]}
    values = environment({"services.qwen.cache.seed": {"proxy": proxy}})
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        assert values[name] == values[name.lower()], f"{name}: libraries read one or the other spelling"
    assert values["NO_PROXY"].split(",") == ["localhost", "127.0.0.1", ".svc", ".cluster.local", "hub.internal"]


def test_the_host_network_brings_its_dns_policy() -> None:
    spec = job({"services.qwen.cache.seed": {"hostNetwork": True}})["template"]["spec"]
    assert spec["hostNetwork"] is True
    assert spec["dnsPolicy"] == "ClusterFirstWithHostNet", "cluster names would not resolve"
    assert "hostNetwork" not in job()["template"]["spec"], "the pod network is the default"


def test_the_seed_is_online() -> None:
    assert "HF_HUB_OFFLINE" not in environment(), "an offline download finds nothing"


def test_a_switched_off_seed_registers_no_job() -> None:
    recording = recorded({"services.qwen.cache.seed": {"enabled": False}})
    assert not recording.all(JOB), "the claim is said to be filled already"
    assert not recording.all(POLICY), "and its policy selects nothing"
    assert recording.one(CLAIM), "the claim is still ours"


@pytest.mark.parametrize(("changes", "group"), [(DYNAMIC, 10001), ({"services.qwen.cache.owner": 10001}, None)])
def test_a_user_owns_what_the_seed_writes(changes: dict[str, Any], group: int | None) -> None:
    security = job({**changes, "services.qwen.security": {"runAsUser": 10001}})["template"]["spec"]["securityContext"]
    assert security["runAsUser"] == 10001, "server and seed must be the same user"
    assert security["runAsNonRoot"] is True
    assert security.get("fsGroup") == group, "a CSI volume is handed over by its group, a folder cannot be"


PAIR = {
    "services.qwen.replicas": 2,
    "nodes.lab.nodes": 2,
    "nodes.lab.nodeNames": ["lab-0", "lab-1"],
}


def pair(changes: dict[str, Any]) -> Recording:
    def program() -> None:
        first = ModelCache("qwen", cache_args({**PAIR, **changes}))
        ModelCache("qwen/1", cache_args({**PAIR, **changes}, replica=1, first=first))

    return record(program)


def by_name(recording: Recording, type_: str) -> list[Registration]:
    """In the order of their replicas; registrations come in as they please."""
    return sorted(recording.all(type_), key=lambda item: item.inputs["metadata"]["name"])


def test_each_replica_has_a_claim_and_a_download_on_its_own_node() -> None:
    recording = pair(DYNAMIC)
    claims = [item.inputs["metadata"]["name"] for item in by_name(recording, CLAIM)]
    assert claims == ["qwen-cache-0", "qwen-cache-1"]
    for replica, item in enumerate(by_name(recording, JOB)):
        spec = item.inputs["spec"]["template"]["spec"]
        assert item.inputs["metadata"]["name"].startswith(f"qwen-seed-{replica}-")
        assert spec["nodeSelector"]["kubernetes.io/hostname"] == f"lab-{replica}", "it decides where the volume is"
        (volume,) = (volume for volume in spec["volumes"] if volume["name"] == "cache")
        assert volume["persistentVolumeClaim"]["claimName"] == f"qwen-cache-{replica}"


def test_what_the_replicas_share_is_made_once() -> None:
    recording = pair(OWN)
    assert len(recording.all(CLASS)) == len(recording.all(POLICY)) == 1, "they have one name: two would be one object"
    second = recording.dependencies(by_name(recording, JOB)[1])
    assert f"{POLICY}::qwen-seed-network-policy" in second, "the second download is guarded by the same policy"
    claim = recording.dependencies(by_name(recording, CLAIM)[1])
    assert f"{CLASS}::qwen-storage-class" in claim, "the second claim is served by the same class"


def test_the_folder_of_each_replica_is_tied_to_its_node() -> None:
    volumes = [item.inputs["spec"] for item in by_name(pair({}), VOLUME)]
    assert [volume["claimRef"]["name"] for volume in volumes] == ["vllm-model-0", "vllm-model-1"]
    nodes = [volume["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"] for volume in volumes]
    assert [one[0]["values"] for one in nodes] == [["lab-0"], ["lab-1"]]


@pytest.mark.parametrize(
    ("changes", "pruned"),
    [
        (DYNAMIC, True),
        ({"services.qwen.cache": {"kind": "existingClaim", "claimName": "models"}}, False),
        ({"services.qwen.cache.node": "lab-0"}, False),
        ({}, True),
        ({"nodes.lab.nodes": 1, "nodes.lab.nodeNames": ["lab-0"], "nodes.lab.gpusPerNode": 2}, False),
    ],
    ids=["a claim for each", "one claim for all", "one folder for all", "a folder for each", "both on one node"],
)
def test_a_shared_folder_is_not_pruned(changes: dict[str, Any], pruned: bool) -> None:
    root = environment({**PAIR, **changes})["SEED_COMPILE_CACHE"]
    assert bool(root) is pruned, "one replica cannot know which compile caches the others use"
