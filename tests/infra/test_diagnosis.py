"""Why a start failed: each kind with a text as it is seen, and with a neighbour that is something else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes import client

from infra import diagnosis
from infra.diagnosis import (
    LOG,
    MOUNT,
    PULL,
    UNSCHEDULABLE,
    Cause,
    Condition,
    Container,
    Event,
    StartFacts,
    Termination,
    Unread,
    diagnose,
    gather,
    masked,
    render,
)

ENGINE = "(EngineCore_DP0 pid=91) ERROR 09-28 23:20:08 [core.py:708] "
NORMAL = (
    "(EngineCore_DP0 pid=91) INFO 09-28 23:20:28 [backends.py:218] Compiling a graph for dynamic shape takes 14.77 s"
)
LAST = (
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)


def facts(*containers: Container, **more: Any) -> StartFacts:
    return StartFacts(service="chat", owner="Deployment/chat-0", pod="chat-0-5b5d", containers=containers, **more)


def died(
    *log: str, code: int = 1, reason: str = "Error", message: str = "", events: tuple[Event, ...] = ()
) -> StartFacts:
    """A server that ended and was started again; ``log`` is from before."""
    container = Container("vllm", running=True, restarts=1, last=Termination(reason, code, message))
    return facts(container, log=log, log_of="vllm", log_is_previous=True, events=events)


def unplaced(message: str) -> StartFacts:
    return facts(conditions=(Condition("PodScheduled", "False", "Unschedulable", message),))


def unpulled(message: str) -> StartFacts:
    events = (
        Event("Pod/chat-0-5b5d", "Failed", f'Failed to pull image "vllm/vllm-openai:v0.31.0": {message}', "Warning"),
    )
    return facts(Container("vllm", waiting="ImagePullBackOff", waiting_message="Back-off pulling image"), events=events)


def unmounted(message: str) -> StartFacts:
    events = (Event("Pod/chat-0-5b5d", "FailedMount", message, "Warning"),)
    return facts(Container("vllm", waiting="ContainerCreating"), events=events)


def unconfigured(message: str) -> StartFacts:
    return facts(Container("vllm", waiting="CreateContainerConfigError", waiting_message=message))


def refused_to_start(message: str) -> StartFacts:
    return facts(Container("vllm", waiting="CrashLoopBackOff", last=Termination("StartError", 128, message)))


def killed(probe: str) -> tuple[Event, ...]:
    return (Event("Pod/chat-0-5b5d", "Killing", f"Container vllm failed {probe} probe, will be restarted", count=6),)


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


# --- exit 137 has two meanings --------------------------------------------------------------------


def test_137_for_want_of_memory_is_the_memory_limit() -> None:
    found = diagnose(died(NORMAL, code=137, reason="OOMKilled"))
    assert (found.id, found.fields[0]) == ("oom-killed", "services.chat.resources.memoryLimit"), "the kernel says so"


def test_137_after_a_startup_probe_is_the_window() -> None:
    found = diagnose(died(NORMAL, code=137, events=killed("startup")))
    assert (found.id, found.fields[0]) == ("startup-probe", "services.chat.overrides.startupSeconds"), (
        "the event says so"
    )
    assert NORMAL in found.evidence, "that the log ends at a normal line is the evidence that nothing was wrong"


def test_137_after_a_liveness_probe_is_the_window_too() -> None:
    found = diagnose(died(NORMAL, code=137, events=killed("liveness")))
    assert (found.id, found.fields[0]) == ("liveness-probe", "services.chat.overrides.startupSeconds"), (
        "the event says so"
    )


def test_a_release_that_stops_on_sigterm_ends_otherwise_and_means_the_same() -> None:
    assert diagnose(died(NORMAL, code=143, events=killed("startup"))).id == "startup-probe", "releases from 0.19.1 do"


def test_137_without_either_is_not_guessed() -> None:
    assert diagnose(died(NORMAL, code=137)).id == "unknown", "a node that lost power looks like this, too"


def test_an_error_in_the_log_goes_before_the_probe_that_came_after_it() -> None:
    log = f"{ENGINE}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert diagnose(died(log, code=137, events=killed("startup"))).id == "cuda-out-of-memory", (
        "it hung because it failed"
    )


# --- what is only in the status -------------------------------------------------------------------


def test_nothing_wrong_and_the_time_is_up() -> None:
    found = diagnose(facts(Container("vllm", running=True), log=("first", NORMAL), log_of="vllm"))
    assert (found.id, found.evidence) == ("still-loading", NORMAL), "the last line says how far it came"


def test_a_pull_that_takes_long_is_no_fault() -> None:
    event = Event("Pod/chat-0-5b5d", "Pulling", 'Pulling image "vllm/vllm-openai:v0.31.0"')
    found = diagnose(facts(Container("vllm", waiting="ContainerCreating"), events=(event,)))
    assert (found.id, found.fields[0]) == ("still-pulling", "nodes.POOL.rates.registryMbPerSecond"), (
        "36 minutes were seen"
    )


def test_a_mount_that_worked_in_the_end_is_not_blamed() -> None:
    events = (
        Event("Pod/chat-0-5b5d", "FailedMount", "MountVolume.SetUp failed for volume x : timed out", "Warning", "1"),
        Event("Pod/chat-0-5b5d", "Pulling", "Pulling image", when="2"),
    )
    found = diagnose(facts(Container("vllm", waiting="ContainerCreating"), events=events))
    assert found.id == "still-pulling", "an image is asked for after the volumes are mounted"


def test_the_init_container_that_misses_the_model_names_the_seed() -> None:
    said = "/models/hf/seeded/x@default.json is missing: the model was not downloaded whole and verified."
    failed = Container("model-is-there", init=True, waiting="CrashLoopBackOff", last=Termination("Error", 1))
    waiting = Container("vllm", waiting="PodInitializing")
    found = diagnose(facts(failed, waiting, log=(said,), log_of="model-is-there", log_is_previous=True))
    assert (found.id, found.evidence) == ("model-absent", said), "what the container said"
    assert found.fields[0] == "services.chat.cache.seed.enabled", "the seed Job fills the claim"


def test_an_init_container_that_passed_in_the_end_is_not_blamed() -> None:
    passed = Container(
        "model-is-there", init=True, ready=True, ended=Termination("Completed", 0), last=Termination("Error", 1)
    )
    found = diagnose(facts(passed, Container("vllm", running=True), log=(NORMAL,), log_of="vllm"))
    assert found.id == "still-loading", "the model came later"


def test_an_evicted_pod_names_the_disk() -> None:
    found = diagnose(
        facts(phase="Failed", phase_reason="Evicted", phase_message="The node was low on resource: ephemeral-storage.")
    )
    assert (found.id, found.fields[0]) == ("evicted", "nodes.POOL.disk"), "the kubelet says so"


def test_a_pod_that_is_refused_shows_the_rule() -> None:
    event = Event("ReplicaSet/chat-0-5b", "FailedCreate", 'pods "x" is forbidden: exceeded quota: gpu', "Warning")
    found = diagnose(StartFacts("chat", "Deployment/chat-0", events=(event,)))
    assert (found.id, "exceeded quota" in found.evidence) == ("refused", True), "the API server says so"


def test_a_new_pod_that_waits_for_the_old_one_is_said_to() -> None:
    found = diagnose(StartFacts("chat", "Deployment/chat-0", stopping=("chat-0-old",)))
    assert (found.id, found.evidence) == ("stopping", "chat-0-old"), (
        "Recreate starts nothing before the old one has ended"
    )


def test_a_pod_that_is_ready_has_no_fault() -> None:
    container = Container("vllm", running=True, ready=True, restarts=1, last=Termination("OOMKilled", 137))
    assert diagnose(facts(container, conditions=(Condition("Ready", "True"),))).id == "ready", "what was is over"


def test_nothing_known_is_said_to_be_unknown() -> None:
    found = diagnose(died("something new", code=3))
    assert (found.id, found.evidence, found.fields) == ("unknown", "something new", ()), "no field is guessed"


def test_a_cluster_that_cannot_be_read_is_said_so() -> None:
    found = diagnose(StartFacts("chat", "", unread=("pods: the cluster does not answer",)))
    assert (found.id, found.evidence) == ("unread", "pods: the cluster does not answer"), "that is no missing pod"
    assert diagnose(StartFacts("chat", "")).id == "no-pod", "and this is one"


# --- showing --------------------------------------------------------------------------------------


def test_reason_events_and_log_are_shown_and_no_more_than_the_last() -> None:
    events = tuple(Event("Pod/chat-0-5b5d", "Pulled", f"event {number};") for number in range(15))
    text = render(diagnose(died(*(f"line {number};" for number in range(30)), code=3, events=events)))
    assert text.startswith("chat (Deployment/chat-0, pod chat-0-5b5d): the reason is not known."), "reason first"
    assert ("event 5;" in text, "event 4;" in text) == (True, False), "the last 10 events"
    assert ("line 10;" in text, "line 9;" in text) == (True, False), "the last 20 lines"
    assert "last log lines of vllm before its restart" in text, "whose log it is"


def test_what_could_not_be_read_is_shown() -> None:
    text = render(diagnose(facts(Container("vllm", running=True), unread=("log of vllm: HTTP 500",))))
    assert "not read: log of vllm: HTTP 500" in text, "a missing log is not an empty one"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Authorization: Bearer sk-very-secret", "sk-very-secret"),
        ("headers={'authorization': 'Bearer sk-very-secret', 'x': 1}", "sk-very-secret"),
        ("token hf_AbCdEfGhIjKlMnOpQr was refused", "hf_AbCdEfGhIjKlMnOpQr"),
        ("HF_TOKEN=plain-token", "plain-token"),
        ("non-default args: {'api_key': ['sk-very-secret'], 'port': 8000}", "sk-very-secret"),
        ("vllm serve m --api-key sk-very-secret --port 8000", "sk-very-secret"),
        ("VLLM_API_KEY=sk-very-secret", "sk-very-secret"),
        ("http://user:pass-word@10.0.0.5:3128", "pass-word"),
        ("https://cdn.example/x?X-Amz-Signature=abc123&Expires=1", "abc123"),
    ],
)
def test_secrets_are_masked(text: str, secret: str) -> None:
    assert secret not in masked(text), "a log is pasted into issues"
    shown = render(diagnose(died(text, "x", code=3, events=(Event("Pod/x", "Failed", text),), message=text)))
    assert secret not in shown, "neither in the evidence nor in events or log"


@pytest.mark.parametrize(
    "text",
    [
        NORMAL,
        "hf_transfer is not installed",
        "Loading model from hf_hub",
        "https://huggingface.co/api/models?limit=1",
        "Engine core initialization failed. See root cause above.",
        "keys: 3, api keys are optional",
        'secret "chat-api-key" not found',
    ],
)
def test_what_is_no_secret_stays_readable(text: str) -> None:
    assert masked(text) == text, "a masked log helps nobody"


# --- reading --------------------------------------------------------------------------------------

LABELS = {"app.kubernetes.io/instance": "chat", "app.kubernetes.io/component": "server"}


def manifest(
    name: str, *, owner: tuple[str, str] | None = None, component: str = "server", **more: Any
) -> dict[str, Any]:
    owners = [{"kind": owner[0], "name": owner[1], "uid": owner[1]}] if owner else []
    labels = {**LABELS, "app.kubernetes.io/component": component}
    metadata = {"name": name, "uid": name, "labels": labels, "ownerReferences": owners, **more.pop("metadata", {})}
    return {"metadata": metadata, "spec": {}, "status": {}, **more}


def pod(
    name: str, owner: tuple[str, str], created: str = "1", *, component: str = "server", **more: Any
) -> dict[str, Any]:
    return manifest(
        name,
        owner=owner,
        component=component,
        metadata={"creationTimestamp": created, **more.pop("metadata", {})},
        **more,
    )


def replica_set(name: str, revision: int) -> dict[str, Any]:
    annotations = {"deployment.kubernetes.io/revision": str(revision)}
    return manifest(name, owner=("Deployment", "chat-0"), metadata={"annotations": annotations})


RUNNING = {
    "containerStatuses": [
        {"name": "vllm", "ready": False, "restartCount": 0, "state": {"running": {}}, "lastState": {}}
    ]
}
RESTARTED = {
    "containerStatuses": [
        {
            "name": "vllm",
            "ready": False,
            "restartCount": 2,
            "state": {"running": {}},
            "lastState": {"terminated": {"reason": "Error", "exitCode": 137}},
        }
    ]
}
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


class Cluster:
    """Answers to the paths that are asked, and keeps what was asked of logs."""

    def __init__(self, log: str | None = "a line\n", **lists: list[dict[str, Any]]) -> None:
        self.lists = lists
        self.log = log
        self.logs_asked: list[tuple[str, dict[str, list[str]]]] = []

    def __call__(self, path: str) -> str:
        parts = urlsplit(path)
        last = parts.path.rsplit("/", maxsplit=1)[-1]
        if last == "log":
            if self.log is None:
                raise Unread("HTTP 500")
            self.logs_asked.append((parts.path.split("/")[-2], parse_qs(parts.query)))
            return self.log
        return json.dumps({"items": self.lists.get(last, [])})


def test_the_pod_of_the_newest_replica_set_is_read() -> None:
    cluster = Cluster(
        deployments=[manifest("chat-1"), manifest("chat-0")],
        replicasets=[replica_set("new", 10), replica_set("old", 9)],
        pods=[
            pod("old-a", ("ReplicaSet", "old"), "9", status=READY),
            pod("new-a", ("ReplicaSet", "new"), status=RUNNING),
        ],
    )
    found = gather(cluster, "ai-infra", "chat")
    assert (found.pod, found.owner) == ("new-a", "Deployment/chat-0"), "right after a change the old pod is still there"
    assert cluster.logs_asked[0][0] == "new-a", "and its log would be the wrong one"


@pytest.mark.parametrize(
    ("status", "previous"), [(RUNNING, False), (RESTARTED, True)], ids=["first start", "restarted"]
)
def test_the_log_is_that_of_the_container_that_died(status: dict[str, Any], previous: bool) -> None:
    cluster = Cluster(
        deployments=[manifest("chat-0")],
        replicasets=[replica_set("one", 1)],
        pods=[pod("one-a", ("ReplicaSet", "one"), status=status)],
    )
    found = gather(cluster, "ai-infra", "chat")
    assert cluster.logs_asked[0][1]["previous"] == [str(previous).lower()], "the present log knows nothing of the death"
    assert (found.log, found.log_is_previous) == (("a line",), previous), "and it is said which one it is"


def test_a_log_that_cannot_be_read_is_no_empty_log() -> None:
    lists = {"deployments": [manifest("chat-0")], "replicasets": [replica_set("one", 1)]}
    found = gather(
        Cluster(None, **lists, pods=[pod("one-a", ("ReplicaSet", "one"), status=RUNNING)]), "ai-infra", "chat"
    )
    assert found.unread == ("log of vllm: HTTP 500",), "a simulated node has no logs"


def test_events_of_owners_pod_and_claim_are_kept_in_order() -> None:
    def event(kind: str, name: str, when: str, **more: Any) -> dict[str, Any]:
        return {
            "involvedObject": {"kind": kind, "name": name},
            "reason": "R",
            "message": f"{kind} {name}",
            **more,
            **({"lastTimestamp": when} if "eventTime" not in more else {}),
        }

    volumes = [
        {"name": "cache", "persistentVolumeClaim": {"claimName": "chat-cache-0"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    cluster = Cluster(
        deployments=[manifest("chat-0")],
        replicasets=[replica_set("one", 1)],
        pods=[pod("one-a", ("ReplicaSet", "one"), status=RUNNING, spec={"volumes": volumes})],
        events=[
            event("Pod", "one-a", "3.5Z", count=6),
            event("PersistentVolumeClaim", "chat-cache-0", "3Z"),
            event("Deployment", "chat-0", "0"),
            event("Pod", "other", "2"),
            event("ReplicaSet", "one", "", eventTime="2", lastTimestamp=None, series={"count": 4}),
        ],
    )
    found = gather(cluster, "ai-infra", "chat").events
    assert [one.of for one in found] == [
        "Deployment/chat-0",
        "ReplicaSet/one",
        "PersistentVolumeClaim/chat-cache-0",
        "Pod/one-a",
    ], "only what belongs to this start, oldest first"
    assert [one.count for one in found] == [1, 4, 1, 6], "both ways of counting are read"


def test_before_there_is_a_server_the_seed_that_failed_is_read() -> None:
    cluster = Cluster(
        pods=[
            pod("seed-1", ("Job", "chat-seed-0"), "1", component="seed", status={"phase": "Failed"}),
            pod("seed-2", ("Job", "chat-seed-0"), "2", component="seed", status={"phase": "Failed"}),
            pod("pull-a", ("DaemonSet", "chat-pre-pull"), "0", component="pre-pull", status=READY),
        ]
    )
    found = gather(cluster, "ai-infra", "chat")
    assert (found.pod, found.owner) == ("seed-2", "Job/chat-seed-0"), "the newest attempt of what did not end well"


def test_a_seed_that_succeeded_after_a_retry_is_not_read() -> None:
    cluster = Cluster(
        deployments=[manifest("chat-0")],
        replicasets=[replica_set("one", 1)],
        pods=[
            pod("one-a", ("ReplicaSet", "one"), status=READY),
            pod("seed-1", ("Job", "chat-seed-0"), "1", component="seed", status={"phase": "Failed"}),
            pod("seed-2", ("Job", "chat-seed-0"), "2", component="seed", status={"phase": "Succeeded"}),
        ],
    )
    assert gather(cluster, "ai-infra", "chat").pod == "one-a", "everything is well"


def test_an_old_pod_that_is_stopping_is_no_new_one() -> None:
    stopping = pod("one-a", ("ReplicaSet", "one"), status=RUNNING, metadata={"deletionTimestamp": "1"})
    cluster = Cluster(deployments=[manifest("chat-0")], replicasets=[replica_set("one", 1)], pods=[stopping])
    found = gather(cluster, "ai-infra", "chat")
    assert (found.pod, found.stopping) == ("", ("one-a",)), "its log would be of the last start"


def test_an_unreachable_cluster_is_told_and_not_raised() -> None:
    def silent(_: str) -> str:
        raise Unread("the cluster does not answer")

    found = gather(silent, "ai-infra", "chat")
    assert found.unread[0] == "deployments: the cluster does not answer", (
        "a hook must not fail over the reason of a failure"
    )
    assert diagnose(found).id == "unread", "and it is not taken for a missing pod"


def test_a_start_is_read_and_understood_as_a_whole() -> None:
    cluster = Cluster(
        log=f"{NORMAL}\n",
        deployments=[manifest("chat-0")],
        replicasets=[replica_set("one", 1)],
        pods=[pod("one-a", ("ReplicaSet", "one"), status=RESTARTED)],
        events=[
            {
                "involvedObject": {"kind": "Pod", "name": "one-a"},
                "reason": "Killing",
                "message": "Container vllm failed startup probe, will be restarted",
                "lastTimestamp": "1",
            }
        ],
    )
    assert diagnose(gather(cluster, "ai-infra", "chat")).id == "startup-probe", "from status, event and previous log"


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, "a line", "a line"),
        (
            400,
            '{"kind": "Status", "message": "container is waiting to start"}',
            "HTTP 400 container is waiting to start",
        ),
        (500, "<html>", "HTTP 500"),
    ],
)
def test_the_answer_of_the_api_server_is_passed_on(status: int, body: str, said: str) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            """Keep the test's output clean."""

    lists = {"deployments": [manifest("chat-0")], "replicasets": [replica_set("one", 1)]}
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever).start()
        with client.ApiClient(client.Configuration(host=f"http://127.0.0.1:{server.server_port}")) as api:
            cluster = Cluster("", **lists, pods=[pod("one-a", ("ReplicaSet", "one"), status=RUNNING)])
            found = gather(
                lambda path: diagnosis.get(api, path) if "/log?" in path else cluster(path), "ai-infra", "chat"
            )
        server.shutdown()
    assert said in (*found.log, *(line.removeprefix("log of vllm: ") for line in found.unread)), (
        "its own words, or the log"
    )
