"""Each kind of failure with a text as it is seen, and with a neighbour that is something else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from infra.diagnosis import LOG, MOUNT, PULL, UNSCHEDULABLE, Cause, StartFacts, causes, diagnose
from tests.infra.diagnosis.starts import (
    ENGINE,
    LAST,
    NORMAL,
    died,
    refused_to_start,
    unconfigured,
    unmounted,
    unplaced,
    unpulled,
)
from tests.stack_files import STACKS

# id, how the text is seen, the text, a field that mends it, and a neighbouring text that is not this.
SEEN: list[tuple[str, Callable[[str], StartFacts], str, str, str]] = [
    (
        "gpus-taken",
        unplaced,
        (
            "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) didn't match Pod's node "
            "affinity/selector. preemption: 0/3 nodes are available: 3 Preemption is not helpful for "
            "scheduling."
        ),
        "services.chat.gpus",
        "0/3 nodes are available: 3 Insufficient memory.",
    ),
    (
        "devices-taken",
        unplaced,
        (
            "0/3 nodes are available: 1 cannot allocate all claims, 2 node(s) didn't match Pod's node "
            "affinity/selector. still not schedulable, preemption: 0/3 nodes are available: 3 Preemption is not "
            "helpful for scheduling."
        ),
        "nodes.POOL.deviceClass",
        "0/3 nodes are available: 3 Insufficient memory.",
    ),
    (
        "no-such-node",
        unplaced,
        "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.",
        "nodes.POOL.selector",
        (
            "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) didn't match Pod's node "
            "affinity/selector."
        ),
    ),
    (
        "taint",
        unplaced,
        "0/2 nodes are available: 2 node(s) had untolerated taint(s) {nvidia.com/gpu: present}.",
        "nodes.POOL.taints",
        "0/2 nodes are available: 2 node(s) had untolerated taint {node.kubernetes.io/unreachable: }.",
    ),
    (
        "node-not-ready",
        unplaced,
        (
            "0/2 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/disk-pressure: "
            "}, 1 node(s) didn't match Pod's node affinity/selector."
        ),
        "nodes.POOL.nodes",
        ("0/2 nodes are available: 2 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }."),
    ),
    (
        "volume-elsewhere",
        unplaced,
        (
            "0/2 nodes are available: 1 node(s) had volume node affinity conflict, 1 node(s) didn't "
            "match Pod's node affinity/selector."
        ),
        "services.chat.cache.node",
        ("0/2 nodes are available: 1 node(s) had volume node affinity conflict, 1 Insufficient nvidia.com/gpu."),
    ),
    (
        "claim-pending",
        unplaced,
        "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
        "services.chat.cache.storageClass",
        "0/1 nodes are available: 1 Insufficient ephemeral-storage.",
    ),
    (
        "claim-absent",
        unplaced,
        '0/1 nodes are available: persistentvolumeclaim "chat-cache-0" not found.',
        "services.chat.cache.claimName",
        "0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind.",
    ),
    (
        "node-too-small",
        unplaced,
        "0/1 nodes are available: 1 Insufficient cpu.",
        "services.chat.resources",
        "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
    ),
    (
        "image-not-found",
        unpulled,
        (
            "rpc error: code = NotFound desc = failed to pull and unpack image "
            '"docker.io/vllm/vllm-openai:v0.310": failed to resolve reference '
            '"docker.io/vllm/vllm-openai:v0.310": docker.io/vllm/vllm-openai:v0.310: not found'
        ),
        "services.chat.image.tag",
        (
            "pull access denied, repository does not exist or may require authorization: server message: "
            "authorization failed"
        ),
    ),
    (
        "image-unauthorized",
        unpulled,
        ("failed to authorize: failed to fetch anonymous token: unexpected status from GET request: 401 Unauthorized"),
        "services.chat.image.repository",
        "dial tcp: lookup registry-1.docker.io on 10.0.0.2:53: no such host",
    ),
    (
        "registry-unreachable",
        unpulled,
        (
            'failed to do request: Head "https://registry-1.docker.io/v2/": dial tcp: lookup '
            "registry-1.docker.io: no such host"
        ),
        "services.chat.image.repository",
        "docker.io/vllm/vllm-openai:v0.310: not found",
    ),
    (
        "image-rate-limited",
        unpulled,
        ("429 Too Many Requests - Server message: toomanyrequests: You have reached your pull rate limit."),
        "services.chat.image.repository",
        "401 Unauthorized",
    ),
    (
        "image-architecture",
        unpulled,
        "failed to resolve image: no match for platform in manifest: not found",
        "nodes.POOL.architecture",
        "manifest unknown: not found",
    ),
    (
        "node-disk-full",
        unpulled,
        "failed to extract layer sha256:aa: write /var/lib/containerd/x: no space left on device",
        "nodes.POOL.disk",
        "i/o timeout",
    ),
    (
        "folder-absent",
        unmounted,
        (
            'MountVolume.SetUp failed for volume "ai-infra-chat-cache-0" : hostPath type check failed: '
            "/data/models is not a directory"
        ),
        "services.chat.cache.path",
        ('MountVolume.SetUp failed for volume "x" : rpc error: code = Internal desc = mount failed: exit status 32'),
    ),
    (
        "volume-in-use",
        unmounted,
        'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) chat-0-77c',
        "services.chat.replicas",
        'AttachVolume.Attach failed for volume "pvc-1" : timed out waiting for external-attacher',
    ),
    (
        "volume",
        unmounted,
        ("Unable to attach or mount volumes: unmounted volumes=[cache], unattached volumes=[cache]: timed out"),
        "services.chat.cache",
        'Failed to create pod sandbox: no runtime for "nvidia" is configured',
    ),
    (
        "runtime-class-absent",
        unmounted,
        (
            "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox "
            'runtime: no runtime for "nvidia" is configured'
        ),
        "nodes.POOL.runtimeClass",
        'Failed to create pod sandbox: plugin type="bridge" failed (add): no IP addresses available',
    ),
    (
        "secret-absent",
        unconfigured,
        'secret "chat-api-key-1a2b" not found',
        "apiKey",
        "couldn't find key key in ConfigMap ai-infra/x",
    ),
    (
        "not-root",
        unconfigured,
        'container has runAsNonRoot and image will run as root (pod: "chat-0-5b5d", container: vllm)',
        "services.chat.security.runAsUser",
        'secret "x" not found',
    ),
    (
        "driver-too-old",
        refused_to_start,
        (
            "failed to create containerd task: nvidia-container-cli: requirement error: unsatisfied "
            "condition: cuda>=13.0, please update your driver to a newer version"
        ),
        "nodes.POOL.driver",
        'exec: "vllm": executable file not found in $PATH',
    ),
    (
        "wrong-architecture",
        refused_to_start,
        "failed to create containerd task: exec /usr/local/bin/vllm: exec format error",
        "nodes.POOL.architecture",
        "failed to create containerd task: exec /usr/local/bin/vllm: no such file or directory",
    ),
    (
        "cuda-out-of-memory",
        died,
        (
            f"{ENGINE}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
            "capacity of 11.63 GiB of which 512.00 MiB is free."
        ),
        "services.chat.engine.maxNumSeqs",
        "WARNING Available KV cache memory: 1.21 GiB",
    ),
    (
        "sampler-out-of-memory",
        died,
        (
            f"{ENGINE}RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. "
            "Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
        ),
        "services.chat.engine.maxNumSeqs",
        f"{ENGINE}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ),
    (
        "kv-cache-too-small",
        died,
        (
            f"{ENGINE}ValueError: To serve at least one request with the models's max seq len (65536), (2.45 GiB "
            "KV cache is needed, which is larger than the available KV cache memory (1.90 GiB). Based on "
            "the available memory, the estimated maximum model length is 50816. Try increasing "
            "`gpu_memory_utilization` or decreasing `max_model_len`."
        ),
        "services.chat.engine.maxModelLen",
        "INFO Using max model len 65536",
    ),
    (
        "no-kv-cache",
        died,
        (
            f"{ENGINE}ValueError: No available memory for the cache blocks. Try increasing "
            "`gpu_memory_utilization` when initializing the engine."
        ),
        "services.chat.engine.gpuMemoryUtilization",
        (
            f"{ENGINE}To serve at least one request with the model's max seq len (8192), (1 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (0.5 GiB). Based on it the "
            "estimated maximum model length is 4096."
        ),
    ),
    (
        "memory-taken",
        died,
        (
            f"{ENGINE}ValueError: Free memory on device cuda:0 (8.01/11.63 GiB) on startup is less than desired "
            "GPU memory utilization (0.8, 9.3 GiB). Decrease GPU memory utilization or reduce GPU memory "
            "used by other processes."
        ),
        "services.chat.engine.gpuMemoryUtilization",
        ("INFO Free memory on device (44.1/44.4 GiB) on startup. Desired GPU memory utilization is (0.9, 39.95 GiB)."),
    ),
    (
        "argument-unknown",
        died,
        "vllm: error: unrecognized arguments: --disable-log-requests",
        "services.chat.engine.extraArgs",
        "vllm: error: argument --max-model-len: invalid human_readable_int value: '4096 '",
    ),
    (
        "argument-value",
        died,
        (
            "vllm serve: error: argument --speculative-config: Value '{\\'a\\':1}' cannot be converted to "
            "<function loads>."
        ),
        "services.chat.engine.speculativeConfig",
        "vllm: error: unrecognized arguments: --enable-metrics",
    ),
    (
        "bfloat16",
        died,
        (
            "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. "
            "Your Tesla T4 GPU has compute capability 7.5. You can use float16 instead by explicitly "
            "setting the `dtype` flag in CLI."
        ),
        "services.chat.engine.dtype",
        (
            "WARNING Your device 'Tesla T4' doesn't support torch.bfloat16. Falling back to "
            "torch.float16 for compatibility."
        ),
    ),
    (
        "quantization",
        died,
        (
            "ValueError: The quantization method awq_marlin is not supported for the current GPU. "
            "Minimum capability: 80. Current capability: 75."
        ),
        "services.chat.engine.quantization",
        "INFO The model is convertible to awq_marlin during runtime. Using awq_marlin kernel.",
    ),
    (
        "parallel-size",
        died,
        ("ValueError: Total number of attention heads (32) must be divisible by tensor parallel size (3)."),
        "services.chat.engine.tensorParallelSize",
        "INFO world_size=2 rank=0 tensor parallel size is 2",
    ),
    (
        "context-too-long",
        died,
        (
            "ValueError: User-specified max_model_len (65536) is greater than the derived max_model_len "
            "(max_position_embeddings=32768 or model_max_length=None in model's config.json)."
        ),
        "services.chat.engine.maxModelLen",
        "INFO Using max model len 32768",
    ),
    (
        "remote-code",
        died,
        (
            "ValueError: The repository contains custom code. Please pass the argument "
            "`trust_remote_code=True` to allow it."
        ),
        "services.chat.engine.trustRemoteCode",
        (
            "INFO Initializing a V1 LLM engine (v0.11.0) with config: model='x', trust_remote_code=True, "
            "dtype=torch.bfloat16"
        ),
    ),
    (
        "model-unsupported",
        died,
        (
            "ValueError: Model architectures ['Qwen9ForCausalLM'] are not supported for now. Supported "
            "architectures: [...]"
        ),
        "services.chat.image.tag",
        "INFO Resolved architecture: Qwen2ForCausalLM",
    ),
    (
        "lora-rank",
        died,
        "ValueError: LoRA rank 64 is greater than max_lora_rank 16.",
        "services.chat.engine.extraArgs",
        "INFO Using max_lora_rank 16",
    ),
    (
        "hub-token",
        died,
        (
            "huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo for url "
            "https://huggingface.co/m"
        ),
        "hfToken",
        "403 Client Error. Cannot access gated repo for url https://huggingface.co/meta-llama/x.",
    ),
    (
        "hub-licence",
        died,
        ("Access to model meta-llama/x is restricted and you are not in the authorized list. Visit the page to ask."),
        "services.chat.model.id",
        "401 Client Error: Unauthorized for url: https://huggingface.co/api/models/meta-llama/x",
    ),
    (
        "hub-network",
        died,
        "seed: failed (proxy): http://10.0.0.5:3128 does not answer: check seed.proxy",
        "services.chat.cache.seed.proxy",
        "seed: failed (disk): 5,000 bytes are needed and 10 are free in /models/hf: enlarge the claim",
    ),
    (
        "model-not-found",
        died,
        "seed: failed (not found): the hub has no such model, revision or file: check model.id",
        "services.chat.model.revision",
        "seed: failed (token): the hub wants a valid token",
    ),
    (
        "model-incomplete",
        died,
        (
            "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot "
            "folder for the specified revision on the local disk and outgoing traffic has been disabled."
        ),
        "services.chat.cache.seed.enabled",
        "INFO Loading weights took 2.23 seconds",
    ),
    (
        "no-gpu",
        died,
        ("RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`"),
        "nodes.POOL.runtimeClass",
        "INFO Automatically detected platform cuda.",
    ),
    (
        "no-gpu",
        died,
        "pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found",
        "nodes.POOL.runtimeClass",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    ),
    (
        "driver-too-old",
        died,
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 12080). Please "
            "update your GPU driver."
        ),
        "services.chat.image.tag",
        "RuntimeError: Found no NVIDIA driver on your system.",
    ),
    (
        "no-kernel",
        died,
        "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
        "nodes.POOL.gpu",
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    ),
    (
        "service-links",
        died,
        (
            "ValueError: VLLM_PORT 'tcp://10.43.7.9:8000' appears to be a URI. This may be caused by a "
            "Kubernetes service discovery issue,check the warning in: https://docs.vllm.ai/"
        ),
        "services.chat.env",
        "WARNING Unknown vLLM environment variable detected: VLLM_SERVICE_PORT",
    ),
    (
        "shared-memory",
        died,
        (
            "torch.distributed.DistBackendError: NCCL error: Error while creating shared memory segment "
            "/dev/shm/nccl-5mLx (size 9637888), error: No space left on device (28)"
        ),
        "services.chat.resources.sharedMemory",
        "OSError: [Errno 28] No space left on device: '/models/hf/hub/blobs/x.incomplete'",
    ),
    (
        "disk-full",
        died,
        "OSError: [Errno 28] No space left on device: '/models/compile/vllm/torch_compile_cache'",
        "services.chat.cache.size",
        "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1a2b'",
    ),
    (
        "not-writable",
        died,
        "PermissionError: [Errno 13] Permission denied: '/models/compile/vllm'",
        "services.chat.security.runAsUser",
        "WARNING usage statistics not written: Permission denied",
    ),
    (
        "not-writable",
        died,
        "OSError: [Errno 30] Read-only file system: '/root/.triton'",
        "services.chat.env",
        "OSError: [Errno 5] Input/output error: '/models/hf'",
    ),
    (
        "not-writable",
        died,
        "seed: failed (disk): not writable for this user: set runAsUser and fsGroup, or chown the folder on the node",
        "services.chat.cache.path",
        "seed: failed (disk): the volume is read-only: mount the claim writable",
    ),
    (
        "not-writable",
        died,
        "/models/compile/v0.31.0-rtx-3060-12gb-0 of the claim cannot be written by user 1000: on the node, chown",
        "services.chat.cache.path",
        "/models/compile is written by user 1000",
    ),
    (
        "port-taken",
        died,
        "OSError: [Errno 98] Address already in use",
        "services.chat.exposure.port",
        "INFO Starting vLLM server on http://0.0.0.0:8000",
    ),
    (
        "engine-timeout",
        died,
        (
            "TimeoutError: Timed out waiting for engine core processes to start. This is often caused by "
            "slow weight loading."
        ),
        "services.chat.env.VLLM_ENGINE_READY_TIMEOUT_S",
        "INFO Waiting for 1 local, 0 remote core engine proc(s) to start.",
    ),
]
IDS = [f"{row[0]}-{position}" for position, row in enumerate(SEEN)]


@pytest.mark.parametrize(("identity", "seen", "text", "field", "_"), SEEN, ids=IDS)
def test_a_failure_is_known_by_its_text(
    identity: str, seen: Callable[[str], StartFacts], text: str, field: str, _: str
) -> None:
    found = diagnose(seen(text))
    assert found.id == identity, f"the text says it: {text}"
    assert text[:400] in found.evidence, "the evidence is the line itself"
    assert field in found.fields, "the field that mends it is named"
    assert found.source, "what it is known from is named"


@pytest.mark.parametrize(("identity", "seen", "_", "field", "neighbour"), SEEN, ids=IDS)
def test_a_similar_text_is_something_else(
    identity: str, seen: Callable[[str], StartFacts], _: str, field: str, neighbour: str
) -> None:
    assert diagnose(seen(neighbour)).id != identity, f"{field} would not mend this: {neighbour}"


@pytest.mark.parametrize("cause", [*UNSCHEDULABLE, *PULL, *MOUNT, *LOG], ids=lambda cause: cause.id)
def test_every_known_failure_has_a_case(cause: Cause) -> None:
    assert cause.id in {row[0] for row in SEEN}, "a text that shows it, and one that does not"
    assert not re.search(cause.pattern, NORMAL), "a normal line is no failure"
    assert not re.search(cause.pattern, ""), "nothing is no failure"


def test_the_root_cause_is_found_above_what_points_back_to_it() -> None:
    log = (NORMAL, f"{ENGINE}ValueError: No available memory for the cache blocks.", *(["  File x"] * 80), LAST)
    assert diagnose(died(*log)).id == "no-kv-cache", "the API server's own error only says: see above"


def test_the_length_that_fits_is_taken_from_the_log() -> None:
    text = next(row[2] for row in SEEN if row[0] == "kv-cache-too-small")
    assert "at most 50816" in diagnose(died(text)).remedy, "vLLM has computed it"


def test_the_missing_folder_comes_with_the_command() -> None:
    text = next(row[2] for row in SEEN if row[0] == "folder-absent")
    assert "`sudo mkdir -p /data/models`" in diagnose(unmounted(text)).remedy, "one line to paste on the node"


# --- what mends them ------------------------------------------------------------------------------

SCHEMA = json.loads((STACKS / "schema.json").read_text("utf-8"))
ONE_BY_ONE = [cause for cause in vars(causes).values() if isinstance(cause, Cause)]


def known(path: str) -> bool:
    """Whether a stack file may have a key of that path; a cache is of one of several kinds."""
    places = [SCHEMA["properties"]["config"]]
    for key in path.split("."):
        places = [inner for place in places for inner in inside(place, key)]
    return bool(places)


def inside(place: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    """What the schema says of ``key`` in each kind that ``place`` may be."""
    if "$ref" in place:
        yield from inside(SCHEMA["$defs"][place["$ref"].removeprefix("#/$defs/")], key)
    for kind in (*place.get("anyOf", []), *place.get("oneOf", [])):
        yield from inside(kind, key)
    # False: a key of the other kind of stack file.
    if place.get("properties", {}).get(key, False) is not False:
        yield place["properties"][key]
    yield from (inner for name, inner in place.get("patternProperties", {}).items() if re.search(name, key))


@pytest.mark.parametrize("cause", [*UNSCHEDULABLE, *PULL, *MOUNT, *LOG, *ONE_BY_ONE], ids=lambda cause: cause.id)
def test_every_field_that_mends_is_one_of_the_stack_file(cause: Cause) -> None:
    fields = [field.format(service="chat").replace("POOL", "lab") for field in cause.fields]
    assert not [field for field in fields if not known(f"vllm:{field}")], "a key that is refused mends nothing"


def test_a_field_that_no_stack_file_has_would_be_found() -> None:
    assert known("vllm:services.chat.engine.maxModelLen"), "this one there is"
    assert not known("vllm:services.chat.engine.maxModelLne"), "and this one there is not"
