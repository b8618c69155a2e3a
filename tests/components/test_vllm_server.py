"""The server starts inside its budget, stops in order, and may do no more than it must."""

from __future__ import annotations

from typing import Any

import pytest

from components.secrets import credential
from components.vllm_server import VllmServer
from tests.components.arguments import plan, server_args
from tests.recorder import SECRET_MARK, Recording, record

DEPLOYMENT = "kubernetes:apps/v1:Deployment"
SERVICE = "kubernetes:core/v1:Service"
POLICY = "kubernetes:networking.k8s.io/v1:NetworkPolicy"
SECRET = "kubernetes:core/v1:Secret"


def recorded(changes: dict[str, Any] | None = None, **more: Any) -> Recording:
    return record(lambda: VllmServer("qwen", server_args(changes, **more)))


def deployment(changes: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return recorded(changes, **more).one(DEPLOYMENT).inputs["spec"]


def pod(changes: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return deployment(changes, **more)["template"]["spec"]


def server(changes: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    (container,) = pod(changes, **more)["containers"]
    return container


def variables(changes: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in server(changes, **more)["env"]}


def test_the_lab_is_the_lab_of_its_seed() -> None:
    container = server()
    assert container["image"] == "vllm/vllm-openai:v0.31.0"
    command = container["command"]
    assert command[:3] == ["vllm", "serve", "Qwen/Qwen2.5-7B-Instruct-AWQ"]
    pairs = {
        "--served-model-name": "qwen2.5-7b-awq",
        "--host": "0.0.0.0",  # noqa: S104 - inside the pod
        "--port": "8000",
        "--dtype": "half",
        "--gpu-memory-utilization": "0.8",
        "--max-model-len": "2048",
        "--max-num-seqs": "4",
    }
    for flag, value in pairs.items():
        assert command[command.index(flag) + 1] == value, f"{flag} is {value} in the lab"
    assert "--enforce-eager" in command
    resources = container["resources"]
    assert resources["requests"] == {"cpu": "3", "memory": "4Gi", "ephemeral-storage": "1Gi"}, "2 and one for the GPU"
    assert resources["limits"]["memory"] == "10Gi"
    assert resources["limits"]["cpu"] == "4"
    assert resources["limits"]["nvidia.com/gpu"] == "1"


def test_one_replica_is_stopped_before_its_successor_starts() -> None:
    spec = deployment()
    assert spec["strategy"] == {"type": "Recreate"}, "both would need the same card (LLMKube#192)"
    assert spec["replicas"] == 1


def test_only_the_startup_probe_waits_for_the_start() -> None:
    container = server()
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container[name]
        assert "initialDelaySeconds" not in probe, f"{name}: a delay is a guess, the startup probe is the wait"
        assert probe["httpGet"] == {"path": "/health", "port": "http"}, f"{name}: /v1 asks for the API key"
        assert probe["timeoutSeconds"] >= 5, f"{name}: a busy event loop answers late"

    def window(name: str) -> int:
        return container[name]["periodSeconds"] * container[name]["failureThreshold"]

    assert window("startupProbe") >= plan().clocks.worst_start_seconds, "a slow start must not be killed"
    assert window("livenessProbe") > window("readinessProbe"), "first no traffic, only then a restart"


def test_each_clock_outlasts_the_one_it_waits_for() -> None:
    recording = recorded()
    registration, service = recording.one(DEPLOYMENT), recording.one(SERVICE)
    spec = registration.inputs["spec"]
    probe = spec["template"]["spec"]["containers"][0]["startupProbe"]
    window = probe["periodSeconds"] * probe["failureThreshold"]
    create = int(registration.request.customTimeouts.create.removesuffix("s"))
    update = int(registration.request.customTimeouts.update.removesuffix("s"))
    assert window < spec["progressDeadlineSeconds"] < min(create, update), "the inner clock must speak first"
    assert int(service.request.customTimeouts.create.removesuffix("s")) > create


def test_stopping_fits_into_the_grace_period() -> None:
    spec = pod({"services.qwen.stop": {"preStopSeconds": 15, "drainSeconds": 45}})
    container = spec["containers"][0]
    assert container["lifecycle"]["preStop"] == {"sleep": {"seconds": 15}}
    command = container["command"]
    assert command[command.index("--shutdown-timeout") + 1] == "45"
    assert spec["terminationGracePeriodSeconds"] > 60, "wait and drain, and the engine's own teardown"


def test_an_older_cluster_sleeps_by_a_command() -> None:
    assert server(kubernetes_minor=29)["lifecycle"]["preStop"] == {"exec": {"command": ["sleep", "5"]}}


def test_offline_is_for_the_server() -> None:
    values = variables()
    assert values["HF_HUB_OFFLINE"] == values["TRANSFORMERS_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in variables({"services.qwen.offline": False}), "neighbour: an online server"


def test_every_cache_is_on_the_claim_and_every_other_write_on_scratch_space() -> None:
    container = server()
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/models/hf"]["subPath"] == "hf"
    assert mounts["/models/compile"]["subPath"] == "compile/v0.31.0-rtx-3060-12gb-0"
    writable = tuple(mounts)
    values = variables()
    for name in (
        "HF_HOME",
        "VLLM_CACHE_ROOT",
        "TRITON_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "FLASHINFER_WORKSPACE_BASE",
        "CUDA_CACHE_PATH",
        "HOME",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "VLLM_CONFIG_ROOT",
    ):
        assert str(values[name]).startswith(writable), f"{name} points to a place that cannot be written"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"services.qwen.image.tag": "v0.33.0"}, False),
        ({"services.qwen.image.digest": "sha256:" + "a" * 64}, False),
        ({"services.qwen.engine.maxModelLen": 1024}, True),
        ({"services.qwen.resources.memoryLimit": "12Gi"}, True),
    ],
    ids=["another tag", "another build", "another setting", "other resources"],
)
def test_the_compile_cache_changes_with_the_build_and_with_nothing_else(changes: dict[str, Any], same: bool) -> None:
    def sub_path(container: dict[str, Any]) -> str:
        return next(mount["subPath"] for mount in container["volumeMounts"] if mount["mountPath"] == "/models/compile")

    assert (sub_path(server(changes)) == sub_path(server())) is same, (
        "an upgrade must not load another build's artifacts, and vLLM keys settings itself"
    )


def test_shared_memory_has_a_size_and_counts_inside_the_limit() -> None:
    (volume,) = (volume for volume in pod()["volumes"] if volume["name"] == "shm")
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}, "the lab's seed has 1Gi"
    roomy = {"services.qwen.resources": {"memoryLimit": "64Gi"}}
    (volume,) = (volume for volume in pod(roomy)["volumes"] if volume["name"] == "shm")
    assert volume["emptyDir"]["sizeLimit"] == "8Gi", "8Gi where the limit has room for it"


def test_every_empty_dir_has_a_limit() -> None:
    unlimited = [v["name"] for v in pod()["volumes"] if "emptyDir" in v and "sizeLimit" not in v["emptyDir"]]
    assert not unlimited, f"{unlimited} could fill the node (LLMKube#1452)"


def test_it_may_do_no_more_than_it_must() -> None:
    spec = pod()
    assert spec["enableServiceLinks"] is False, "a Service called vllm would poison VLLM_PORT (vllm#34199)"
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*spec["containers"], *spec["initContainers"]]:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False, container["name"]
        assert security["capabilities"] == {"drop": ["ALL"]}, container["name"]


@pytest.mark.parametrize(("flavour", "runtime_class"), [("kubeadm", None), ("k3s", "nvidia"), ("microk8s", "nvidia")])
def test_the_gpu_is_visible_on_every_flavour(flavour: str, runtime_class: str | None) -> None:
    assert pod(flavour=flavour).get("runtimeClassName") == runtime_class, "k3s has `nvidia` as a class of its own"


def test_a_start_on_half_a_model_is_stopped() -> None:
    (check,) = pod()["initContainers"]
    assert "seeded/Qwen--Qwen2.5-7B-Instruct-AWQ@default.json" in check["command"][-1]
    assert "cache.seed.enabled" in check["command"][-1], "the message names the field"
    assert not pod({"services.qwen.cache.seed": {"enabled": False}}).get("initContainers"), (
        "a claim that was filled by hand has no marker"
    )


def test_a_user_of_its_own_makes_its_compile_folder_on_a_nodes_folder_itself() -> None:
    user = {"services.qwen.security": {"runAsUser": 1000}, "services.qwen.cache.owner": 1000}
    first, second = pod(user)["initContainers"]
    assert (first["name"], second["name"]) == ("compile-cache-folder", "model-is-there")
    mounted = {mount["mountPath"]: mount.get("subPath", "") for mount in server(user)["volumeMounts"]}
    folder = f"/models/{mounted['/models/compile']}"
    assert f'mkdir -p "{folder}"' in first["command"][2], "the kubelet would make the sub-path as root"
    assert first["volumeMounts"] == [{"name": "cache", "mountPath": "/models"}], "above the sub-path"
    assert "security.runAsUser" in first["command"][2], "a folder that it cannot write is named with the field"


@pytest.mark.parametrize(
    ("why", "changes"),
    [
        ("the image's user is root", {}),
        (
            "the kubelet hands a CSI volume to the pod's group",
            {
                "services.qwen.security": {"runAsUser": 1000},
                "services.qwen.cache": {"kind": "storageClass", "storageClass": "gp3", "size": "20Gi"},
            },
        ),
    ],
)
def test_no_compile_folder_is_made_where_the_server_can_write_the_kubelets(why: str, changes: dict[str, Any]) -> None:
    assert [one["name"] for one in pod(changes)["initContainers"]] == ["model-is-there"], why


def test_the_service_selects_the_instance_and_no_version() -> None:
    recording = recorded()
    service = recording.one(SERVICE).inputs
    template = recording.one(DEPLOYMENT).inputs["spec"]["template"]["metadata"]["labels"]
    assert service["metadata"]["name"] == "vllm-service"
    assert service["spec"]["type"] == "ClusterIP"
    assert service["spec"]["selector"].items() <= template.items(), "the Service would find no pod"
    assert service["spec"]["ports"] == [{"name": "http", "port": 8000, "targetPort": "http", "protocol": "TCP"}]
    other = recorded({"services.qwen.image.tag": "v0.33.0"}).one(SERVICE).inputs
    assert other["spec"] == service["spec"], "a new image must not touch the address"


def test_names_and_selectors_carry_the_replicas_number() -> None:
    inputs = recorded().one(DEPLOYMENT).inputs
    assert inputs["metadata"]["name"] == "qwen-0"
    assert inputs["spec"]["selector"]["matchLabels"]["pulumi-vllm/replica"] == "0", "a second replica can join later"


def test_only_named_clients_may_call_and_an_offline_server_calls_nobody() -> None:
    changes = {"services.qwen.exposure.allowFrom": {"namespaces": ["apps"], "cidrs": ["10.1.0.0/16"]}}
    spec = recorded(changes).one(POLICY).inputs["spec"]
    (rule,) = spec["ingress"]
    assert rule["from"] == [
        {"podSelector": {}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "apps"}}},
        {"ipBlock": {"cidr": "10.1.0.0/16"}},
    ], "the own namespace and whom the stack lists"
    assert rule["ports"] == [{"port": "http", "protocol": "TCP"}]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec.get("egress", []) == [], "an offline server has nobody to call"
    online = recorded({"services.qwen.offline": False}).one(POLICY).inputs["spec"]
    assert online["egress"] == [{}], "neighbour: an online server reaches the hub"


def with_api_key() -> Recording:
    def program() -> None:
        key = credential("api-key", "ai-infra", {}, {"key": "sk-hidden"}, None)
        VllmServer("qwen", server_args(api_key=key))

    return record(program)


def test_a_secret_is_referred_to_and_never_written() -> None:
    recording = with_api_key()
    container = recording.one(DEPLOYMENT).inputs["spec"]["template"]["spec"]["containers"][0]
    (variable,) = (item for item in container["env"] if item["name"] == "VLLM_API_KEY")
    reference = variable["valueFrom"]["secretKeyRef"]
    assert reference == {"name": "api-key-generated", "key": "key"}, "by reference, and not optional"
    assert "sk-hidden" not in str(recording.one(DEPLOYMENT).raw_inputs), "the value must be nowhere in the pod"


def test_the_secrets_value_is_marked_on_the_wire_and_its_name_is_generated() -> None:
    secret = with_api_key().one(SECRET)
    assert SECRET_MARK in secret.raw_inputs["stringData"], "the state would hold it in the clear"
    assert "name" not in secret.raw_inputs["metadata"], "another content must be another name, which rolls the pod"
    assert secret.inputs["immutable"] is True
    assert not secret.request.deleteBeforeReplace, "the old one must be there while the old pod is"


def test_without_an_api_key_nothing_refers_to_one() -> None:
    assert "VLLM_API_KEY" not in variables(), "neighbour: a stack without vllm:apiKey"


def test_it_reports_its_address_once() -> None:
    outputs = recorded().component_outputs
    assert outputs["vllm:index:VllmServer::qwen"] == {"address": "http://vllm-service.ai-infra.svc:8000/v1"}


PAIR = {"services.qwen.replicas": 2, "nodes.lab.nodes": 2, "nodes.lab.nodeNames": ["lab-0", "lab-1"]}
UNPINNED = {**PAIR, "nodes.lab.nodeNames": None}
HOSTNAME = "kubernetes.io/hostname"
DRA = {"nodes.lab.allocation": "dra"}


def deployments(changes: dict[str, Any] | None = None, **more: Any) -> list[dict[str, Any]]:
    return [item.inputs for item in recorded(changes, **more).all(DEPLOYMENT)]


def test_each_replica_has_its_own_deployment_claim_node_and_compile_cache() -> None:
    found = deployments(PAIR)
    assert [item["metadata"]["name"] for item in found] == ["qwen-0", "qwen-1"]
    for replica, item in enumerate(found):
        spec = item["spec"]["template"]["spec"]
        number = str(replica)
        assert item["spec"]["replicas"] == 1, "two pods of one Deployment could not have a claim each"
        assert item["spec"]["selector"]["matchLabels"]["pulumi-vllm/replica"] == number
        assert item["spec"]["template"]["metadata"]["labels"]["pulumi-vllm/replica"] == number
        assert spec["nodeSelector"]["kubernetes.io/hostname"] == f"lab-{replica}", "pinned: its volume is there"
        (volume,) = (volume for volume in spec["volumes"] if volume["name"] == "cache")
        assert volume["persistentVolumeClaim"]["claimName"] == f"vllm-model-{replica}"
        mounts = {mount["mountPath"]: mount.get("subPath") for mount in spec["containers"][0]["volumeMounts"]}
        assert mounts["/models/compile"].endswith(f"-{replica}"), "two engines must not write one compile cache"


@pytest.mark.parametrize(
    ("changes", "nodes"),
    [
        ({**PAIR, "services.qwen.firstNode": 1}, [(HOSTNAME, "lab-1"), (HOSTNAME, "lab-0")]),
        ({**UNPINNED, "nodes.lab.ordinalLabel": "ordinal"}, [("ordinal", "0"), ("ordinal", "1")]),
        (UNPINNED, [None, None]),
        ({"nodes.lab.nodeNames": ["lab"]}, [(HOSTNAME, "lab")]),
    ],
    ids=["from another node on", "by an ordinal label", "not pinned", "one replica"],
)
def test_replicas_are_pinned_as_the_pool_says(changes: dict[str, Any], nodes: list[tuple[str, str] | None]) -> None:
    of_the_pool = {"nvidia.com/gpu.present", "nvidia.com/gpu.product", "kubernetes.io/arch"}
    selectors = [item["spec"]["template"]["spec"]["nodeSelector"] for item in deployments(changes)]
    pins = [{key: value for key, value in one.items() if key not in of_the_pool} for one in selectors]
    assert pins == [{} if node is None else dict([node]) for node in nodes], "seed Job and server follow one rule"


def test_replicas_are_changed_one_after_the_other() -> None:
    recording = recorded({**PAIR, "services.qwen.replicas": 3, "nodes.lab.gpusPerNode": 2})
    names = [f"qwen-deployment-{replica}" for replica in range(3)]
    dependencies = [recording.dependencies(recording.one(DEPLOYMENT, name)) for name in names]
    waits = [{name for name in names if f"{DEPLOYMENT}::{name}" in each} for each in dependencies]
    assert waits[0] == set(), "the first waits for no other"
    for before, replica in ((0, 1), (1, 2)):
        assert names[before] in waits[replica], "each waits for the one before: a failure stops the rest"


def test_the_address_waits_for_the_first_replica_only() -> None:
    recording = recorded(PAIR)
    waits = recording.dependencies(recording.one(SERVICE))
    assert f"{DEPLOYMENT}::qwen-deployment-0" in waits, "somebody must be there to answer"
    assert f"{DEPLOYMENT}::qwen-deployment-1" not in waits, "a second replica that fails must not take the address away"
    assert "pulumi-vllm/replica" not in recording.one(SERVICE).inputs["spec"]["selector"], "one Service for all"


def test_a_disruption_budget_lets_one_replica_go_and_only_where_there_are_two() -> None:
    spec = recorded(PAIR).one("kubernetes:policy/v1:PodDisruptionBudget").inputs["spec"]
    assert spec["minAvailable"] == 1
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow", "a pod that is not ready must not block a drain"
    template = deployments(PAIR)[1]["spec"]["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= template.items(), "it counts the replicas of this service"
    assert not recorded().all("kubernetes:policy/v1:PodDisruptionBudget"), "with one replica no drain could proceed"


# minor of Kubernetes: API version, and where in a request its fields are
DRA_VERSIONS = {32: ("v1beta1", None), 33: ("v1beta2", "exactly"), 34: ("v1", "exactly"), 37: ("v1", "exactly")}


@pytest.mark.parametrize(("minor", "expected"), DRA_VERSIONS.items())
def test_a_claim_template_has_the_version_and_shape_that_the_cluster_serves(
    minor: int, expected: tuple[str, str | None]
) -> None:
    version, nested = expected
    template = recorded(DRA, kubernetes_minor=minor).one(f"kubernetes:resource.k8s.io/{version}:ResourceClaimTemplate")
    (request,) = template.inputs["spec"]["spec"]["devices"]["requests"]
    fields = request[nested] if nested else request
    assert fields["deviceClassName"] == "gpu.nvidia.com"
    assert (fields["allocationMode"], fields["count"]) == ("ExactCount", 1), "whole cards, as many as the replica has"
    if nested:
        assert "deviceClassName" not in request, f"{version} knows no such field there"
    assert template.inputs["apiVersion"] == f"resource.k8s.io/{version}"


def test_a_pod_claims_its_card_by_a_template_whose_name_changes_with_it() -> None:
    two = {"services.qwen.gpus": 2, "nodes.lab.gpusPerNode": 2, "nodes.lab.deviceClass": "big.nvidia.com"}
    recording = recorded({**PAIR, **DRA, **two})
    template = recording.one("kubernetes:resource.k8s.io/v1:ResourceClaimTemplate")
    assert "name" not in template.inputs["metadata"], "its spec cannot be changed: another spec is another name"
    assert list(template.request.replaceOnChanges) == ["spec"]
    assert not template.request.deleteBeforeReplace, "the old one must be there while the old pods are"
    (request,) = template.inputs["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["count"] == 2
    assert request["exactly"]["deviceClassName"] == "big.nvidia.com"
    for item in recording.all(DEPLOYMENT):
        spec = item.inputs["spec"]["template"]["spec"]
        assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "qwen-gpus-generated"}]
        resources = spec["containers"][0]["resources"]
        assert resources["claims"] == [{"name": "gpu"}]
        assert "nvidia.com/gpu" not in resources["limits"], "the plugin would hand out a second card"


def test_a_device_plugin_needs_no_claims() -> None:
    recording = recorded()
    assert not [item for item in recording.registrations if "ResourceClaim" in item.type]
    spec = recording.one(DEPLOYMENT).inputs["spec"]["template"]["spec"]
    assert "resourceClaims" not in spec, "neighbour of DRA: the plugin counts"
    assert "claims" not in spec["containers"][0]["resources"]


def test_a_replica_counts_as_changed_only_when_its_new_pod_serves() -> None:
    for item in [*deployments(PAIR), *deployments()]:
        wait = item["metadata"]["annotations"]["pulumi.com/waitFor"]
        for status in ("updatedReplicas == 1", "availableReplicas == 1"):
            assert status in wait, "the provider's own test ends with the old pod: `up` would succeed without a server"
