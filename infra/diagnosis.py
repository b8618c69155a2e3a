"""Why a server does not start: pod status, events and log, sorted into what happened and which field mends it.

Pulumi reports only that time ran out. The reason stands in places that disappear at different times:
the pod's status, events (after an hour) and the log of the container that died, which is the
*previous* one after a restart. :func:`read_facts` takes them all at once, :func:`diagnose` only thinks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from http import HTTPStatus
from itertools import takewhile
from typing import Any, TypeVar, cast
from urllib.parse import urlencode

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from components import naming

TIMEOUT_SECONDS = 10
EVENTS_SHOWN = 10
LOG_LINES_SHOWN = 20
LOG_LINES_READ = 2000
"""An engine's traceback is followed by the API server's, some hundred lines, which only points back to it."""
EVIDENCE_CHARACTERS = 500

LIFECYCLE = "https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/"
PROBES = f"{LIFECYCLE}#container-probes"
MEMORY = "https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/"
EVICTION = "https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/"
SCHEDULER = "https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/"
TAINTS = "https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/"
VOLUMES = "https://kubernetes.io/docs/concepts/storage/persistent-volumes/"
HOST_PATH = "https://kubernetes.io/docs/concepts/storage/volumes/#hostpath"
IMAGES = "https://kubernetes.io/docs/concepts/containers/images/"
RUNTIME_CLASS = "https://kubernetes.io/docs/concepts/containers/runtime-class/"
QUOTA = "https://kubernetes.io/docs/concepts/policy/resource-quotas/"
CUDA = "https://docs.nvidia.com/deploy/cuda-compatibility/"
HUB = "https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables"


# --- facts --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Termination:
    """How a container ended; ``reason`` is Kubernetes' word (OOMKilled, Error, Completed, StartError)."""

    reason: str
    exit_code: int
    message: str = ""


@dataclass(frozen=True)
class Container:
    """A container's status. ``waiting`` is Kubernetes' reason why it does not run, empty otherwise;
    ``ended`` is how it ended now, ``last`` how it ended before its restart."""

    name: str
    init: bool = False
    running: bool = False
    ready: bool = False
    restarts: int = 0
    waiting: str = ""
    waiting_message: str = ""
    ended: Termination | None = None
    last: Termination | None = None

    @property
    def failure(self) -> Termination | None:
        """The newest end that was none in peace; ``None`` once the container has what it is for."""
        if self.ready:
            return None
        return next((end for end in (self.ended, self.last) if end and end.exit_code != 0), None)


@dataclass(frozen=True)
class Condition:
    """A condition of the pod or of its Deployment; ``status`` is True, False or Unknown."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Event:
    """An event about ``of`` (KIND/NAME); ``when`` is ISO time, ``count`` how often it was seen."""

    of: str
    reason: str
    message: str
    type: str = "Normal"
    when: str = ""
    count: int = 1

    def __str__(self) -> str:
        times = f" (x{self.count})" if self.count > 1 else ""
        return f"{self.when} {self.type} {self.reason} {self.of}: {self.message}{times}".strip()


@dataclass(frozen=True)
class StartFacts:
    """What is known of one start.

    ``owner`` is what made the pod (Deployment/NAME, Job/NAME, DaemonSet/NAME), ``pod`` empty where there
    is none, ``stopping`` the pods that are still ending. ``log`` is oldest first, of container ``log_of``,
    from before its restart where ``log_is_previous``. ``unread`` says what could not be read, and why.
    """

    service: str
    owner: str
    pod: str = ""
    phase: str = ""
    phase_reason: str = ""
    phase_message: str = ""
    containers: tuple[Container, ...] = ()
    conditions: tuple[Condition, ...] = ()
    events: tuple[Event, ...] = ()
    log: tuple[str, ...] = ()
    log_of: str = ""
    log_is_previous: bool = False
    stopping: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type, of the pod or of the Deployment."""
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def messages(self, *reasons: str) -> list[str]:
        """What the events of those reasons say, newest first."""
        return [event.message for event in reversed(self.events) if event.reason in reasons]


# --- what failures look like --------------------------------------------------------------------


@dataclass(frozen=True)
class Cause:
    """A kind of failure, how it shows, and what mends it.

    ``pattern`` finds it in a line and is empty where the status shows it; ``remedy`` may use the pattern's
    named groups. ``fields`` are paths of the stack file, most likely first.
    """

    id: str
    pattern: str
    happened: str
    fields: tuple[str, ...]
    remedy: str
    source: str


_ENGINE = "services.{service}.engine."
_UTILIZATION = f"{_ENGINE}gpuMemoryUtilization"
_LENGTH = f"{_ENGINE}maxModelLen"
_SEQUENCES = f"{_ENGINE}maxNumSeqs"
_EXTRA = f"{_ENGINE}extraArgs"
_CACHE = "services.{service}.cache"
_SEED = "services.{service}.cache.seed"
_IMAGE = "services.{service}.image"
_MEMORY_LIMIT = "services.{service}.resources.memoryLimit"
_SHARED_MEMORY = "services.{service}.resources.sharedMemory"
_STARTUP = "services.{service}.overrides.startupSeconds"
_USER = "services.{service}.security.runAsUser"

# In each list the first that matches speaks: what causes others stands before them.

UNSCHEDULABLE = (
    Cause(
        "claim-absent",
        r'persistentvolumeclaim "[^"]+" not found',
        "the claim that the pod mounts does not exist",
        (f"{_CACHE}.claimName",),
        "run `pulumi up` again, or name a claim that is in the namespace",
        VOLUMES,
    ),
    Cause(
        "claim-pending",
        r"unbound immediate PersistentVolumeClaims|didn't find available persistent volumes to bind",
        "the claim is not bound to a volume",
        (f"{_CACHE}.storageClass", f"{_CACHE}.size"),
        "see the claim's events (`kubectl describe pvc`): class, size, access mode and volumeName must fit a volume",
        VOLUMES,
    ),
    Cause(
        "gpus-taken",
        r"Insufficient nvidia\.com/gpu",
        "no node of the pool has enough free GPUs",
        ("nodes.POOL.gpusPerNode", "nodes.POOL.nodes", "services.{service}.gpus"),
        "see who holds them (`vllm-infra check`), and that the device plugin runs on the node",
        "https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/",
    ),
    Cause(
        "volume-elsewhere",
        r"volume node affinity conflict",
        "the volume is bound to a node or zone where no node of the pool is free",
        (f"{_CACHE}.node", "nodes.POOL.selector"),
        "bring a GPU node to the volume's zone, or use another claim: a volume does not move",
        VOLUMES,
    ),
    Cause(
        "node-not-ready",
        r"untolerated taint\(?s?\)? \{node\.kubernetes\.io/(?:not-ready|unreachable|unschedulable|\w+-pressure)|"
        r"node\(s\) were unschedulable|node\(s\) were not ready",
        "a node of the pool is not ready, under pressure or cordoned",
        ("nodes.POOL.nodes",),
        "see `kubectl get nodes` and `kubectl describe node`",
        TAINTS,
    ),
    Cause(
        "taint",
        r"untolerated taint",
        "the nodes carry a taint that the pod does not tolerate",
        ("nodes.POOL.taints",),
        "list the taint in the pool",
        TAINTS,
    ),
    Cause(
        "node-too-small",
        r"Insufficient (?:cpu|memory|ephemeral-storage)",
        "no node of the pool has enough free CPU, RAM or disk",
        ("services.{service}.resources", "nodes.POOL.cpus", "nodes.POOL.memory"),
        "ask for less, or free the node",
        MEMORY,
    ),
    Cause(
        "no-such-node",
        r"didn't match Pod's node affinity/selector|didn't match node selector",
        "no node carries the labels of the pool",
        ("nodes.POOL.selector", "nodes.POOL.architecture", f"{_CACHE}.node"),
        "compare with `kubectl get nodes --show-labels`",
        SCHEDULER,
    ),
)

PULL = (
    Cause(
        "image-architecture",
        r"no match(?:ing manifest)? for platform|no matching manifest",
        "the image is not built for the node's architecture",
        ("nodes.POOL.architecture", f"{_IMAGE}.tag"),
        "use an image for that architecture, or nodes of the image's",
        "https://github.com/vllm-project/vllm/issues/30076",
    ),
    Cause(
        "image-unauthorized",
        r"401 Unauthorized|403 Forbidden|unauthorized|authentication required"
        r"|authorization failed|denied:|access denied",
        "the registry wants a login, or the repository does not exist",
        (f"{_IMAGE}.repository",),
        "correct the repository, or give the nodes access to the registry",
        IMAGES,
    ),
    Cause(
        "image-rate-limited",
        r"toomanyrequests|429 Too Many Requests",
        "the registry limits how much may be pulled",
        (f"{_IMAGE}.repository",),
        "wait, log the nodes in, or pull through a mirror",
        IMAGES,
    ),
    Cause(
        "image-not-found",
        r"not found|manifest unknown|InvalidImageName|couldn't parse image",
        "there is no such image",
        (f"{_IMAGE}.tag", f"{_IMAGE}.digest", f"{_IMAGE}.repository"),
        "correct the tag or digest",
        IMAGES,
    ),
    Cause(
        "registry-unreachable",
        r"no such host|i/o timeout|connection refused|TLS handshake timeout|server misbehaving|network is unreachable|"
        r"x509: ",
        "the node cannot reach the registry (name resolution, network, proxy or certificate)",
        (f"{_IMAGE}.repository",),
        "try `crictl pull` on the node; its container runtime needs the proxy and the certificate, not the pod",
        IMAGES,
    ),
    Cause(
        "node-disk-full",
        r"no space left on device",
        "the node's disk has no room for the image",
        ("nodes.POOL.disk",),
        "free or enlarge the disk: an image needs twice its size while it is unpacked",
        EVICTION,
    ),
)

MOUNT = (
    Cause(
        "folder-absent",
        r"hostPath type check failed: (?P<path>\S+) is not a directory",
        "the folder of the cache is not on the node",
        (f"{_CACHE}.path", f"{_CACHE}.node"),
        "on the node: `sudo mkdir -p {path}`",
        HOST_PATH,
    ),
    Cause(
        "volume-in-use",
        r"Multi-Attach error",
        "another node still has the volume",
        ("services.{service}.replicas", f"{_CACHE}.accessMode"),
        "wait until the old pod has ended; a ReadWriteOnce volume serves one node at a time",
        VOLUMES,
    ),
    Cause(
        "secret-absent",
        r'secret "[^"]+" not found|couldn\'t find key \S+ in Secret',
        "a Secret that the container needs does not exist",
        ("apiKey", "hfToken"),
        "run `pulumi up` again",
        "https://kubernetes.io/docs/concepts/configuration/secret/",
    ),
    Cause(
        "driver-too-old",
        r"unsatisfied condition: cuda|requirement error",
        "the node's NVIDIA driver is too old for the image's CUDA",
        (f"{_IMAGE}.tag", "nodes.POOL.driver"),
        "update the driver (CUDA 13 needs 580), or take the image's -cu129 variant",
        CUDA,
    ),
    Cause(
        "runtime-class-absent",
        r"RuntimeHandler \S+ not supported|no runtime for \S+ is configured|RuntimeClass\S* .*not found",
        "the node has no container runtime of that name",
        ("nodes.POOL.runtimeClass",),
        "install NVIDIA's container toolkit on the node, or correct the name",
        RUNTIME_CLASS,
    ),
    Cause(
        "not-root",
        r"container has runAsNonRoot and image (?:will run as root|has non-numeric user)",
        "the image runs as root and the pod forbids that",
        (_USER,),
        "give a user id",
        "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/",
    ),
    Cause(
        "wrong-architecture",
        r"exec format error",
        "the image is built for another architecture than the node's",
        ("nodes.POOL.architecture", f"{_IMAGE}.tag"),
        "use an image for the node's architecture",
        "https://github.com/vllm-project/vllm/issues/30076",
    ),
    Cause(
        "volume",
        r"MountVolume\.\S+ failed|Unable to attach or mount volumes|AttachVolume\.Attach failed|"
        r"failed to provision volume",
        "a volume of the pod cannot be mounted",
        (_CACHE,),
        "see the event",
        VOLUMES,
    ),
)

LOG = (
    # The platform: without it nothing else is true.
    Cause(
        "driver-too-old",
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient for CUDA runtime version|"
        r"unsupported display driver / cuda driver combination",
        "the node's NVIDIA driver is too old for the image's CUDA",
        (f"{_IMAGE}.tag", "nodes.POOL.driver"),
        "update the driver (CUDA 13 needs 580), or take the image's -cu129 variant",
        CUDA,
    ),
    Cause(
        "no-gpu",
        r"Failed to infer device type|NVML Shared Library Not Found|NVMLError_LibraryNotFound|"
        r"libcuda\.so\.1: cannot open shared object file|No CUDA GPUs are available|no NVIDIA driver on your system",
        "the container has no GPU: it was not started by NVIDIA's runtime",
        ("nodes.POOL.runtimeClass", "services.{service}.gpus"),
        "set the runtime class (k3s, microk8s and bare nodes: nvidia)",
        "https://github.com/vllm-project/vllm/issues/8885",
    ),
    Cause(
        "no-kernel",
        r"no kernel image is available for execution on the device",
        "the image has no code for this card's compute capability",
        (f"{_IMAGE}.tag", "nodes.POOL.gpu"),
        "take a release that still, or already, supports the card",
        CUDA,
    ),
    Cause(
        "service-links",
        r"VLLM_PORT '[^']*' appears to be a URI",
        "a Service of this namespace set VLLM_PORT in the pod",
        ("services.{service}.env", "services.{service}.exposure.serviceName"),
        "the pod must have enableServiceLinks: false; find what sets the variable",
        "https://github.com/vllm-project/vllm/issues/34199",
    ),
    # The command line.
    Cause(
        "argument-unknown",
        r"error: unrecognized arguments: (?P<argument>\S+)|error: ambiguous option: (?P<option>\S+)",
        "this vLLM release does not know an argument",
        (_EXTRA, f"{_IMAGE}.tag"),
        "drop it or write what the release has: `vllm-infra plan` checks each",
        "https://docs.vllm.ai/en/stable/cli/serve/",
    ),
    Cause(
        "argument-value",
        r"error: argument \S+: (?:invalid|Value|expected|not allowed)|cannot be converted (?:to|using)",
        "vLLM cannot read the value of an argument",
        (_EXTRA, f"{_ENGINE}compilationConfig", f"{_ENGINE}speculativeConfig"),
        "one element for each word, JSON as a mapping and without quotes of a shell",
        "https://docs.vllm.ai/en/stable/cli/serve/",
    ),
    # The model's files.
    Cause(
        "hub-token",
        r"401 Client Error|Invalid user token|(?:GatedRepoError|Cannot access gated repo).*(?:401|log in)|"
        r"seed: failed \(token\)",
        "the hub wants a valid token (401), or there is no such model",
        ("hfToken", "services.{service}.model.id", "services.{service}.model.gated"),
        "`pulumi config set --secret vllm:hfToken` with a token of an account that may read the model",
        HUB,
    ),
    Cause(
        "hub-licence",
        r"403 Client Error|GatedRepoError|Cannot access gated repo|restricted and you are not in the authorized list|"
        r"seed: failed \(licence\)",
        "the token's account may not read the model (403)",
        ("services.{service}.model.id", "hfToken"),
        "accept the licence on the model's page with the account of the token",
        HUB,
    ),
    Cause(
        "hub-network",
        r"seed: failed \((?P<layer>name resolution|connection|TLS|proxy|time-out|hub)\)",
        "the download does not reach the hub",
        (f"{_SEED}.proxy", f"{_SEED}.hostNetwork"),
        "the layer that broke: {layer}",
        HUB,
    ),
    Cause(
        "model-not-found",
        r"404 Client Error|RepositoryNotFoundError|RevisionNotFoundError|seed: failed \(not found\)",
        "the hub has no such model or revision",
        ("services.{service}.model.id", "services.{service}.model.revision"),
        "correct the name or the revision",
        HUB,
    ),
    Cause(
        "model-incomplete",
        r"LocalEntryNotFoundError|Cannot find an appropriate cached snapshot folder|outgoing traffic has been disabled|"
        r"OfflineModeIsEnabled|Error while deserializing header|seed: failed \(verification\)|"
        r"We couldn't connect to '\S+' to load",
        "the claim does not hold the whole model, and the server is offline",
        (f"{_SEED}.enabled", "services.{service}.model.revision", "services.{service}.offline"),
        "let the seed Job fill the claim, with the same revision as the server",
        "https://github.com/vllm-project/vllm/issues/23684",
    ),
    Cause(
        "remote-code",
        r"(?:argument|setting) `trust_remote_code=True`",
        "the model brings Python code of its own",
        (f"{_ENGINE}trustRemoteCode",),
        "set it if you trust the publisher",
        "https://docs.vllm.ai/en/stable/cli/serve/",
    ),
    Cause(
        "model-unsupported",
        r"Model architectures \[.*\] (?:are not supported|failed to be inspected)|"
        r"does not recognize this architecture",
        "this vLLM release does not know the model's architecture",
        (f"{_IMAGE}.tag", "services.{service}.model.id"),
        "take a newer release",
        "https://docs.vllm.ai/en/stable/models/supported_models/",
    ),
    # The card: what it cannot do.
    Cause(
        "bfloat16",
        r"Bfloat16 is only supported on GPUs with compute capability of at least 8\.0",
        "the card has no bfloat16",
        (f"{_ENGINE}dtype",),
        "set dtype: half",
        "vllm/platforms/cuda.py; vllm-project/vllm#1153",
    ),
    Cause(
        "quantization",
        r"quantization method \S+ is not supported for the current GPU",
        "the card is too old for the model's quantisation",
        (f"{_ENGINE}quantization", "services.{service}.model.id", "nodes.POOL.gpu"),
        "use weights of another quantisation",
        "vllm/config/model.py",
    ),
    Cause(
        "parallel-size",
        r"attention heads \(\d+\) must be divisible by tensor parallel size|AssertionError: \d+ is not divisible by|"
        r"World size \(\d+\) is larger than the number of available GPUs",
        "the parallel sizes fit neither the model's heads nor the GPUs",
        (f"{_ENGINE}tensorParallelSize", f"{_ENGINE}pipelineParallelSize", "services.{service}.gpus"),
        "`vllm-infra plan` lists the sizes that fit",
        "vllm/config/model.py; gpustack/gpustack#2259",
    ),
    Cause(
        "context-too-long",
        r"User-specified max_model_len \(\d+\) is greater than the derived max_model_len \([^)]*?=?(?P<length>\d+)",
        "the context is longer than the model's own maximum",
        (_LENGTH,),
        "at most {length}",
        "vllm/config/model.py",
    ),
    Cause(
        "lora-rank",
        r"LoRA rank \d+ is greater than max_lora_rank \d+",
        "an adapter has a higher rank than the server allows",
        (_EXTRA,),
        "raise --max-lora-rank",
        "https://github.com/vllm-project/vllm/issues/2847",
    ),
    # The card's memory.
    Cause(
        "kv-cache-too-small",
        r"To serve at least one request with the models?'s max seq len \(\d+\).*"
        r"estimated maximum model length is (?P<length>\d+)",
        "the KV cache that is left cannot hold one request of that length",
        (_LENGTH, _UTILIZATION, _SEQUENCES, f"{_ENGINE}kvCacheDtype"),
        "maxModelLen of at most {length}, or more memory for the cache",
        "vllm/v1/core/kv_cache_utils.py",
    ),
    Cause(
        "no-kv-cache",
        r"No available memory for the cache blocks|To serve at least one request with the models?'s max seq len|"
        r"Cannot auto-fit max_model_len",
        "weights and activations leave no memory for the KV cache",
        (_UTILIZATION, _SEQUENCES, f"{_ENGINE}quantization", "services.{service}.model.id"),
        "raise gpuMemoryUtilization, admit fewer sequences, or serve smaller weights",
        "vllm/v1/core/kv_cache_utils.py",
    ),
    Cause(
        "memory-taken",
        r"Free memory on device.*is less than desired GPU memory utilization|Error in memory profiling",
        "other processes, or the CUDA context, hold memory of the card that the engine plans with",
        (_UTILIZATION,),
        "end the other processes (`nvidia-smi`), or lower gpuMemoryUtilization below what is free",
        "vllm/v1/worker/utils.py: request_memory",
    ),
    Cause(
        "sampler-out-of-memory",
        r"CUDA out of memory occurred when warming up sampler",
        "the card's memory does not suffice for the sampler's warm-up",
        (_SEQUENCES, _UTILIZATION),
        "admit fewer sequences, or lower gpuMemoryUtilization",
        "vllm/v1/worker/gpu_worker.py",
    ),
    Cause(
        "cuda-out-of-memory",
        r"CUDA out of memory\. Tried to allocate|CUDA error: out of memory|torch(?:\.cuda)?\.OutOfMemoryError",
        "the card's memory is used up",
        (_UTILIZATION, _LENGTH, _SEQUENCES, f"{_ENGINE}quantization"),
        "lower them, quantise, and see that no other process is on the card (`nvidia-smi`)",
        "https://docs.vllm.ai/en/stable/configuration/conserving_memory/",
    ),
    # Files and host memory.
    Cause(
        "shared-memory",
        r"creating shared memory segment|Bus error|/dev/shm\S*.*No space left|No space left.*/dev/shm|"
        r"insufficient shared memory|unable to (?:open|mmap|allocate) shared memory",
        "/dev/shm is full",  # noqa: S108 - a name, no file of ours
        (_SHARED_MEMORY, _MEMORY_LIMIT),
        "give it more; it counts inside the memory limit",
        "https://github.com/vllm-project/production-stack/issues/276",
    ),
    Cause(
        "disk-full",
        r"No space left on device|Disk quota exceeded|seed: failed \(disk\)",
        "a volume is full",
        (f"{_CACHE}.size",),
        "enlarge the claim where its class allows it, or delete what it holds; see the path in the line",
        VOLUMES,
    ),
    Cause(
        "not-writable",
        r"Error: \[Errno (?:13|30)\]|getpwuid\(\): uid not found",
        "the server must write where it may not",
        (_USER, "services.{service}.env", f"{_CACHE}.path"),
        "on a hostPath: `sudo chown -R USER FOLDER` on the node; elsewhere point the variable into /scratch",
        "https://github.com/llm-d/llm-d/issues/1430",
    ),
    Cause(
        "port-taken",
        r"[Aa]ddress already in use",
        "the port is taken",
        ("services.{service}.exposure.port",),
        "choose another port",
        "https://docs.vllm.ai/en/stable/cli/serve/",
    ),
    Cause(
        "engine-timeout",
        r"Timed out waiting for engine core processes to start",
        "the API server gave up waiting for the engine (600 s by default, releases from 0.19.1)",
        ("services.{service}.env.VLLM_ENGINE_READY_TIMEOUT_S",),
        "raise it above the planned start, or make the read of the weights faster",
        "vllm/envs.py",
    ),
)


# --- thinking -----------------------------------------------------------------------------------

LOOK = "see the events and the log"
UNKNOWN = Cause("unknown", "", "the reason is not known", (), LOOK, LIFECYCLE)
READY = Cause("ready", "", "the pod is ready, nothing is wrong", (), "none is needed", LIFECYCLE)
UNREAD = Cause("unread", "", "the cluster cannot be read", (), "see `vllm-infra check`", LIFECYCLE)
NO_POD = Cause("no-pod", "", "there is no pod", (), LOOK, LIFECYCLE)
REFUSED = Cause(
    "refused",
    "",
    "the API server refuses the pod (quota, Pod Security or another admission rule)",
    ("services.{service}.resources", _USER),
    "fit the pod into what the message names, or have the namespace's rule changed",
    QUOTA,
)
STOPPING = Cause(
    "stopping",
    "",
    "the old pod is still stopping, and the new one waits for its end",
    ("services.{service}.stop.drainSeconds", "services.{service}.overrides.terminationGracePeriodSeconds"),
    "shorten the stop, or wait: running requests are being finished",
    LIFECYCLE,
)
NOT_PLACED = Cause(
    "unschedulable",
    "",
    "no node takes the pod",
    ("nodes.POOL.selector", "services.{service}.resources"),
    "compare what the scheduler names with the pool",
    SCHEDULER,
)
EVICTED = Cause(
    "evicted",
    "",
    "the kubelet evicted the pod (disk or memory of the node, or more scratch space than its limit)",
    ("nodes.POOL.disk", _MEMORY_LIMIT),
    "free the node's disk, or see which volume grew beyond its limit",
    EVICTION,
)
NOT_PULLED = Cause("image", "", "the image cannot be pulled", (f"{_IMAGE}.tag",), LOOK, IMAGES)
MODEL_ABSENT = Cause(
    "model-absent",
    "",
    "the model on the claim is not complete: the mark that the download writes last is absent",
    (f"{_SEED}.enabled", "services.{service}.model.revision"),
    "see the seed Job's log; a claim that was filled by hand needs cache.seed.enabled: false",
    HUB,
)
OUT_OF_MEMORY = Cause(
    "oom-killed",
    "",
    "the kernel killed the container at its memory limit (host RAM, not GPU memory)",
    (_MEMORY_LIMIT, _SHARED_MEMORY),
    "raise it; /dev/shm and what the weights are staged in count inside",
    MEMORY,
)
STARTUP_PROBE = Cause(
    "startup-probe",
    "",
    "the start took longer than the startup probe waits; nothing need be wrong with it",
    (_STARTUP, "nodes.POOL.rates.diskMbPerSecond", "nodes.POOL.rates.hubMbPerSecond"),
    "correct the rates that the window is computed from, or set it",
    PROBES,
)
LIVENESS_PROBE = Cause(
    "liveness-probe",
    "",
    "the server did not answer its liveness probe",
    (_STARTUP,),
    "if it was still starting, the start needs a longer window; else the engine hung: see its log",
    PROBES,
)
STILL_LOADING = Cause(
    "still-loading",
    "",
    "the deadline passed while the server was still loading; nothing shows a fault",
    (_STARTUP, "services.{service}.overrides.updateTimeoutSeconds", "nodes.POOL.rates.diskMbPerSecond"),
    "wait for it (`pulumi up` goes on waiting), and correct the rates that the window is computed from",
    PROBES,
)
STILL_PULLING = Cause(
    "still-pulling",
    "",
    "the deadline passed while the image was still being pulled",
    ("nodes.POOL.rates.registryMbPerSecond", "nodes.POOL.imageDelivery"),
    "wait for it, and correct the rate that the timeout is computed from",
    IMAGES,
)


@dataclass(frozen=True)
class Diagnosis:
    """What happened, the line that shows it, the fields of the stack file that mend it (most likely
    first), and the facts that this was taken from. Secrets in them are masked."""

    id: str
    happened: str
    evidence: str
    fields: tuple[str, ...]
    remedy: str
    source: str
    facts: StartFacts


def diagnose(facts: StartFacts) -> Diagnosis:
    """Sort a start into its cause. Never raises: what is not known is said to be unknown."""
    facts = _masked(facts)
    # In the order of a pod's life: what has not happened yet cannot have failed.
    stages = (_no_pod, _unschedulable, _evicted, _image, _mount, _model_absent, _died, _ready, _still_on_its_way)
    found = (diagnosis for stage in stages if (diagnosis := stage(facts)))
    return next(found, None) or _diagnosis(facts, UNKNOWN, _last_words(facts))


def _no_pod(facts: StartFacts) -> Diagnosis | None:
    if facts.pod:
        return None
    if facts.unread:
        return _diagnosis(facts, UNREAD, facts.unread[0])
    failure = facts.condition("ReplicaFailure")
    refusals = [*facts.messages("FailedCreate"), *([failure.message] if failure else [])]
    if refusals:
        return _diagnosis(facts, REFUSED, refusals[0])
    if facts.stopping:
        return _diagnosis(facts, STOPPING, ", ".join(facts.stopping))
    return _diagnosis(facts, NO_POD, _last_words(facts))


def _unschedulable(facts: StartFacts) -> Diagnosis | None:
    scheduled = facts.condition("PodScheduled")
    if scheduled is None or scheduled.status == "True":
        return None
    lines = [scheduled.message, *facts.messages("FailedScheduling")]
    return _match(facts, UNSCHEDULABLE, lines) or _diagnosis(facts, NOT_PLACED, lines[0])


def _evicted(facts: StartFacts) -> Diagnosis | None:
    return _diagnosis(facts, EVICTED, facts.phase_message) if facts.phase_reason == "Evicted" else None


def _image(facts: StartFacts) -> Diagnosis | None:
    reasons = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
    stuck = [container for container in facts.containers if container.waiting in reasons]
    if not stuck:
        return None
    # The back-off message names only the image; why it failed stands in the event before it.
    pulls = [message for message in facts.messages("Failed") if "pull" in message]
    lines = [*pulls, *(f"{container.waiting}: {container.waiting_message}" for container in stuck)]
    return _match(facts, PULL, lines) or _diagnosis(facts, NOT_PULLED, lines[0])


def _mount(facts: StartFacts) -> Diagnosis | None:
    """Between the node and the first instruction: volumes, sandbox, configuration, runtime."""
    failures = [(container, end) for container in facts.containers if (end := container.failure)]
    started = any(container.running for container in facts.containers)
    lines = [container.waiting_message for container in facts.containers if container.waiting_message]
    lines += [end.message for _, end in failures if end.reason in {"StartError", "ContainerCannotRun"}]
    if not failures and not started:
        lines += _before_pulling(facts)
    return _match(facts, MOUNT, lines)


def _before_pulling(facts: StartFacts) -> list[str]:
    """Failures of volumes and sandbox, newest first: once an image is asked for, they are overcome."""
    reasons = {"FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox"}
    recent = takewhile(lambda event: event.reason not in {"Pulling", "Pulled"}, reversed(facts.events))
    return [event.message for event in recent if event.reason in reasons]


def _model_absent(facts: StartFacts) -> Diagnosis | None:
    failed = next((item for item in facts.containers if item.init and item.failure), None)
    if failed is None:
        return None
    said = next((line for line in reversed(facts.log) if facts.log_of == failed.name and line.strip()), "")
    return _diagnosis(facts, MODEL_ABSENT, said or f"{failed.name}: exit {_exit(failed)}")


def _died(facts: StartFacts) -> Diagnosis | None:
    died = next((item for item in facts.containers if not item.init and item.failure), None)
    end = died.failure if died else None
    if died is None or end is None:
        return None
    if end.reason == "OOMKilled":
        return _diagnosis(facts, OUT_OF_MEMORY, f"{died.name}: OOMKilled, exit {end.exit_code}")
    lines = [*reversed(facts.log), end.message] if facts.log_of == died.name else [end.message]
    return _match(facts, LOG, lines) or _killed_by_probe(facts, died)


def _killed_by_probe(facts: StartFacts, died: Container) -> Diagnosis | None:
    """The event decides and not the code: 137 is SIGKILL, and releases from 0.19.1 stop on SIGTERM."""
    for message in facts.messages("Killing"):
        for words, cause in (("failed startup probe", STARTUP_PROBE), ("failed liveness probe", LIVENESS_PROBE)):
            if words in message:
                end = facts.log[-1] if facts.log else "(no log)"
                return _diagnosis(facts, cause, f"{message}; exit {_exit(died)}; the log ends with: {end}")
    return None


def _ready(facts: StartFacts) -> Diagnosis | None:
    ready = facts.condition("Ready")
    if facts.phase == "Succeeded" or (ready and ready.status == "True"):
        return _diagnosis(facts, READY, f"{facts.pod} of {facts.owner}")
    return None


def _still_on_its_way(facts: StartFacts) -> Diagnosis | None:
    if any(container.failure for container in facts.containers):
        return None
    if any(container.running for container in facts.containers if not container.init):
        return _diagnosis(facts, STILL_LOADING, _last_words(facts))
    if facts.events and facts.events[-1].reason == "Pulling":
        return _diagnosis(facts, STILL_PULLING, str(facts.events[-1]))
    return None


def _match(facts: StartFacts, causes: Sequence[Cause], lines: Sequence[str]) -> Diagnosis | None:
    for cause in causes:
        for line in lines:
            if found := re.search(cause.pattern, line):
                return _diagnosis(facts, cause, line, found.groupdict())
    return None


def _diagnosis(facts: StartFacts, cause: Cause, evidence: str, found: Mapping[str, str] | None = None) -> Diagnosis:
    return Diagnosis(
        id=cause.id,
        happened=cause.happened,
        evidence=evidence.strip()[:EVIDENCE_CHARACTERS],
        fields=tuple(path.format(service=facts.service) for path in cause.fields),
        remedy=cause.remedy.format_map(found or {}),
        source=cause.source,
        facts=facts,
    )


def _exit(container: Container) -> str:
    return f"{container.failure.exit_code} ({container.failure.reason})" if container.failure else "none"


def _last_words(facts: StartFacts) -> str:
    """The newest thing that anything said."""
    spoken = next((line for line in reversed(facts.log) if line.strip()), "")
    return spoken or (str(facts.events[-1]) if facts.events else "nothing was said")


# --- showing ------------------------------------------------------------------------------------


def render(diagnosis: Diagnosis) -> str:
    """The diagnosis for a terminal: reason, what to change, the last events and the last log lines."""
    facts = diagnosis.facts
    where = f"{facts.owner or facts.service}{f', pod {facts.pod}' if facts.pod else ''}"
    before = " before its restart" if facts.log_is_previous else ""
    lines = [
        f"{facts.service} ({where}): {diagnosis.happened}.",
        f"  evidence: {diagnosis.evidence}",
        *([f"  change:   {', '.join(diagnosis.fields)}"] if diagnosis.fields else []),
        f"  remedy:   {diagnosis.remedy}",
        f"  source:   {diagnosis.source}",
        *(f"  not read: {reason}" for reason in facts.unread),
        *_block("last events", [str(event) for event in facts.events[-EVENTS_SHOWN:]]),
        *_block(f"last log lines of {facts.log_of or 'the server'}{before}", facts.log[-LOG_LINES_SHOWN:]),
    ]
    return "\n".join(lines)


def _block(title: str, lines: Sequence[str]) -> Iterator[str]:
    yield f"  {title}:"
    yield from (f"    {line}" for line in lines or ["(none)"])


_SECRETS = (
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), "hf_***"),
    (re.compile(r"(?i)(authorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic)?\s*)[^\s'\",]+"), r"\1***"),
    (re.compile(r"(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{6,}"), r"\1***"),
    (re.compile(r"(--api-key[\s=]+)[^\s'\"]+"), r"\1***"),
    # Releases up to 0.19.1 print the key among `non-default args`.
    (re.compile(r"(?i)(api_key['\"]?\s*[:=]\s*)(?:\[[^\]]*\]|'[^']*'|\"[^\"]*\"|[^\s,})]+)"), r"\1***"),
    (re.compile(r"(?i)(\bHF_TOKEN\s*[:=]\s*)\S+"), r"\1***"),
    (re.compile(r"(?<=//)[^/\s:@]+:[^/\s@]+@"), "***@"),
    # The query of a signed URL is a credential.
    (re.compile(r"(https?://[^\s?'\"]+\?)[^\s'\")]*(?:[Ss]ignature|[Tt]oken|Credential)=[^\s'\")]*"), r"\1***"),
)


def masked(text: str) -> str:
    """``text`` without tokens, keys, credentials of URLs and signed queries."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


_Facts = TypeVar("_Facts")


def _masked(facts: _Facts) -> _Facts:
    """The same facts with every text in them masked."""
    if isinstance(facts, str):
        return cast("_Facts", masked(facts))
    if isinstance(facts, tuple):
        return cast("_Facts", tuple(_masked(item) for item in facts))
    if is_dataclass(facts) and not isinstance(facts, type):
        return cast(
            "_Facts", replace(facts, **{field.name: _masked(getattr(facts, field.name)) for field in fields(facts)})
        )
    return facts


# --- reading ------------------------------------------------------------------------------------

Manifest = Mapping[str, Any]
Ask = Callable[[str], str]
"""The body that the API server answers to a GET of a path. Raises Unread."""


class Unread(Exception):  # noqa: N818 - no error of the program: a fact that is not to be had
    """Something cannot be read; the message says what and why."""


def read_facts(api_client: client.ApiClient, namespace: str, service_name: str, replica: int = 0) -> StartFacts:
    """Everything about the newest start of a replica; what cannot be read is in ``unread``. Never raises.

    The pod is that of the newest ReplicaSet of the replica's Deployment. When that one is ready, or
    absent, it is the pod of a seed Job or the pre-pull that has not come to its end.
    """
    return gather(lambda path: get(api_client, path), namespace, service_name, replica)


def gather(ask: Ask, namespace: str, service: str, replica: int = 0) -> StartFacts:
    """:func:`read_facts` with the way to ask as a function."""
    unread: list[str] = []
    select = urlencode({"labelSelector": f"{naming.INSTANCE_LABEL}={service}"})
    core, apps = f"/api/v1/namespaces/{namespace}", f"/apis/apps/v1/namespaces/{namespace}"
    deployments = _items(ask, f"{apps}/deployments?{select}", unread)
    replica_sets = _items(ask, f"{apps}/replicasets?{select}", unread)
    pods = [pod for pod in _items(ask, f"{core}/pods?{select}", unread) if _is_of(pod, replica)]
    events = _items(ask, f"{core}/events?limit=500", unread)
    deployment = next((item for item in deployments if _name(item) == naming.server_name(service, replica)), None)
    replica_set = max(_owned(replica_sets, deployment), key=_revision, default=None)
    pod = _pod(_owned(pods, replica_set), pods)
    facts = _status(service, deployment, replica_set, pod, [_name(item) for item in pods if _is_stopping(item)])
    facts = replace(facts, events=_events(events, _concerned(deployment, replica_set, pod)))
    return _with_log(ask, core, facts, unread)


def _is_of(pod: Manifest, replica: int) -> bool:
    """Whether a pod is of this replica's server, or of what all replicas wait for."""
    return bool(pod["metadata"]["labels"].get(naming.REPLICA_LABEL, str(replica)) == str(replica))


def _pod(of_server: Sequence[Manifest], pods: Sequence[Manifest]) -> Manifest | None:
    server = max((pod for pod in of_server if not _is_stopping(pod)), key=_created, default=None)
    newest: dict[str, Manifest] = {}
    for pod in sorted(
        (pod for pod in pods if pod["metadata"]["labels"].get(naming.COMPONENT_LABEL) != "server"), key=_created
    ):
        owner = _owner(pod)
        # A Job's earlier attempts say nothing once a later one is there; a DaemonSet's pods all count.
        newest[owner if owner.startswith("Job/") else _name(pod)] = pod
    candidates = [*([server] if server else []), *reversed(newest.values())]
    return next((pod for pod in candidates if not _is_fine(pod)), server)


def _is_fine(pod: Manifest) -> bool:
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
    return ready or pod["status"].get("phase") == "Succeeded"


def _is_stopping(item: Manifest) -> bool:
    return "deletionTimestamp" in item["metadata"]


def _status(
    service: str,
    deployment: Manifest | None,
    replica_set: Manifest | None,
    pod: Manifest | None,
    stopping: Sequence[str],
) -> StartFacts:
    status = pod["status"] if pod else {}
    conditions = [*status.get("conditions", []), *((deployment or {}).get("status", {}).get("conditions", []))]
    owner = f"Deployment/{_name(deployment)}" if deployment else ""
    if pod and not (replica_set and _is_owned_by(pod, replica_set)):
        owner = _owner(pod)
    return StartFacts(
        service=service,
        owner=owner,
        pod=_name(pod) if pod else "",
        phase=status.get("phase", ""),
        phase_reason=status.get("reason", ""),
        phase_message=status.get("message", ""),
        containers=(
            *(_container(item, init=True) for item in status.get("initContainerStatuses", [])),
            *(_container(item, init=False) for item in status.get("containerStatuses", [])),
        ),
        conditions=tuple(
            Condition(item["type"], item["status"], item.get("reason") or "", item.get("message") or "")
            for item in conditions
        ),
        stopping=tuple(stopping),
    )


def _container(status: Manifest, *, init: bool) -> Container:
    state, last = status.get("state", {}), status.get("lastState", {})
    waiting = state.get("waiting", {})
    return Container(
        name=status["name"],
        init=init,
        running="running" in state,
        ready=status.get("ready", False),
        restarts=status.get("restartCount", 0),
        waiting=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        ended=_termination(state.get("terminated")),
        last=_termination(last.get("terminated")),
    )


def _termination(state: Manifest | None) -> Termination | None:
    return Termination(state.get("reason", ""), state["exitCode"], state.get("message", "")) if state else None


def _concerned(deployment: Manifest | None, replica_set: Manifest | None, pod: Manifest | None) -> set[str]:
    """KIND/NAME of everything whose events belong to this start: the owners, the pod, its claims."""
    named = {
        f"{kind}/{_name(item)}"
        for kind, item in (("Deployment", deployment), ("ReplicaSet", replica_set), ("Pod", pod))
        if item
    }
    volumes = pod["spec"].get("volumes", []) if pod else []
    claims = {
        f"PersistentVolumeClaim/{volume['persistentVolumeClaim']['claimName']}"
        for volume in volumes
        if "persistentVolumeClaim" in volume
    }
    return named | claims | ({_owner(pod)} if pod else set())


def _events(items: Sequence[Manifest], concerned: set[str]) -> tuple[Event, ...]:
    """The events about those objects, oldest first. Old and new API spell time and count differently."""
    events = [
        Event(
            of=f"{item['involvedObject'].get('kind')}/{item['involvedObject'].get('name')}",
            reason=item.get("reason") or "",
            message=item.get("message") or "",
            type=item.get("type") or "Normal",
            when=item.get("lastTimestamp")
            or (item.get("series") or {}).get("lastObservedTime")
            or item.get("eventTime")
            or "",
            count=item.get("count") or (item.get("series") or {}).get("count") or 1,
        )
        for item in items
    ]
    return tuple(
        sorted((event for event in events if event.of in concerned), key=lambda event: event.when.removesuffix("Z"))
    )


def _with_log(ask: Ask, core: str, facts: StartFacts, unread: list[str]) -> StartFacts:
    """Add the log of the container that tells most: one that failed, else one that runs."""
    containers = [
        *(c for c in facts.containers if c.failure),
        *(c for c in facts.containers if c.running and not c.init),
    ]
    if not containers:
        return replace(facts, unread=tuple(unread))
    told = containers[0]
    previous = told.ended is None and told.last is not None
    options = {"container": told.name, "tailLines": LOG_LINES_READ, "previous": str(previous).lower()}
    try:
        log = tuple(ask(f"{core}/pods/{facts.pod}/log?{urlencode(options)}").splitlines())
    except Unread as error:
        unread.append(f"log of {told.name}: {error}")
        log = ()
    return replace(facts, log=log, log_of=told.name, log_is_previous=previous, unread=tuple(unread))


def _items(ask: Ask, path: str, unread: list[str]) -> list[Manifest]:
    try:
        return list(json.loads(ask(path))["items"])
    except Unread as error:
        unread.append(f"{path.split('?', maxsplit=1)[0].rsplit('/', maxsplit=1)[-1]}: {error}")
        return []


def _name(item: Manifest) -> str:
    return str(item["metadata"]["name"])


def _created(item: Manifest) -> str:
    return str(item["metadata"].get("creationTimestamp", ""))


def _revision(replica_set: Manifest) -> int:
    return int(replica_set["metadata"].get("annotations", {}).get("deployment.kubernetes.io/revision", 0))


def _owner(item: Manifest) -> str:
    owners = item["metadata"].get("ownerReferences", [])
    return f"{owners[0]['kind']}/{owners[0]['name']}" if owners else ""


def _is_owned_by(item: Manifest, owner: Manifest) -> bool:
    return any(one["uid"] == owner["metadata"]["uid"] for one in item["metadata"].get("ownerReferences", []))


def _owned(items: Sequence[Manifest], owner: Manifest | None) -> list[Manifest]:
    return [item for item in items if owner and _is_owned_by(item, owner)]


def get(api: client.ApiClient, path: str) -> str:
    """The body that the API server answers to a GET of ``path``. Raises Unread with its own words."""
    try:
        request = api.param_serialize("GET", path, auth_settings=["BearerToken"], header_params={"Accept": "*/*"})
        answer = api.call_api(*request, _request_timeout=TIMEOUT_SECONDS)
        body: bytes = answer.response.data
    except (HTTPError, OSError, ApiException) as error:
        raise Unread(f"the cluster does not answer ({error})") from None
    if answer.status != HTTPStatus.OK:
        raise Unread(f"HTTP {answer.status} {_message(body)}".strip())
    return body.decode(errors="replace")


def _message(body: bytes) -> str:
    """What the API server says about a refusal, in the Status that it answers with."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return ""
