"""What failures look like, and which field of the stack file mends each: data, no thinking."""

from __future__ import annotations

from dataclasses import dataclass

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
        "devices-taken",
        # kubernetes, pkg/scheduler/framework/plugins/dynamicresources.
        r"cannot allocate all claims|resourceclaim not available on the node|device class \S+ does not exist",
        "no node of the pool has a free device for the claim",
        ("nodes.POOL.nodes", "nodes.POOL.gpusPerNode", "nodes.POOL.deviceClass"),
        "see `kubectl get resourceslices,resourceclaims -A`: does the DRA driver offer the card, and who holds it",
        "https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/",
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
        r"No space left on device|Disk quota exceeded|seed: failed \(disk\): (?!not writable)",
        "a volume is full",
        (f"{_CACHE}.size",),
        "enlarge the claim where its class allows it, or delete what it holds; see the path in the line",
        VOLUMES,
    ),
    Cause(
        "not-writable",
        r"Error: \[Errno (?:13|30)\]|getpwuid\(\): uid not found|seed: failed \(disk\): not writable|"
        r"of the claim cannot be written by user",
        "the server, or its download, must write where it may not",
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

# What the status shows, without a text.

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
