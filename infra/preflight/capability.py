"""Rules about what card, driver and node can run: data types, quantisation, the image's code and CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from components import naming
from infra.preflight.rule import LiveSubject, Said, ServiceSubject, StackSubject, rule
from planner import capability
from planner.capability import capabilities, capability_number, capability_text
from planner.gpus import Cpu, Gpu
from planner.plan import ServicePlan
from planner.releases import Release, UnknownReleaseError, release_of, version_number
from planner.spec import ImageSpec, PoolSpec, ServiceSpec

QUANTIZATION = "https://docs.vllm.ai/en/latest/features/quantization/"
ARCHITECTURE_LABEL = "kubernetes.io/arch"
DRIVER_LABELS = ("nvidia.com/cuda.driver-version.major", "nvidia.com/cuda.driver.major")
"""Labels of GPU Feature Discovery, the newer first (NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery)."""
CUDA = "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html"


@rule("CAP-1", "https://github.com/substratusai/vllm-docker/issues/37")
def data_type_runs_on_the_card(subject: ServiceSubject) -> Iterator[Said]:
    """A card before Ampere has no bfloat16, and some models overflow in float16: vLLM ends at start."""
    plan = subject.plan
    asked = capability.asked_dtype(plan.model, plan.service)
    resolved = capability.resolved_dtype(plan.gpu, plan.model, plan.service)
    least = capabilities()["bfloat16"]["least"]
    if isinstance(plan.gpu, Cpu):
        if resolved == "float16" and not _halves(plan):
            yield Said("error", "engine.dtype", _overflows(plan), "engine.dtype: bfloat16")
        return
    card = f"{plan.gpu.name} has compute capability {capability_text(capability_number(plan.gpu))}"
    float32 = "engine.dtype: float32 at twice the memory, or a card of capability 8.0 or above with bfloat16"
    if resolved == "bfloat16" and capability_number(plan.gpu) < least:
        remedy = "engine.dtype: half (its range is smaller: compare answers)" if _halves(plan) else float32
        yield Said("error", "engine.dtype", f"bfloat16 needs {capability_text(least)}, and {card}", remedy)
    elif resolved == "float16" and not _halves(plan):
        newer = capability_number(plan.gpu) >= least
        yield Said("error", "engine.dtype", _overflows(plan), "engine.dtype: bfloat16" if newer else float32)
    elif asked == "bfloat16" and resolved == "float32":
        message = f"the checkpoint is bfloat16, {card}, and float16 is refused for {plan.model.architecture}: "
        yield Said("warn", "engine.dtype", f"{message}it runs in float32, twice what is planned", float32)
    elif asked == "bfloat16" and resolved == "float16":
        message = f"the checkpoint is bfloat16, and {card}: vLLM computes in float16, whose range is smaller"
        yield Said("warn", "engine.dtype", message, "compare answers; engine.dtype: half says that it is meant")


def _overflows(plan: ServicePlan) -> str:
    return f"vLLM refuses float16 for {plan.model.architecture}, whose activations overflow in it"


def _halves(plan: ServicePlan) -> bool:
    return capability.takes_float16(plan.model)


@rule("CAP-2", QUANTIZATION)
def quantization_runs_on_the_card(subject: ServiceSubject) -> Iterator[Said]:
    """Each quantisation method has a least compute capability, and it differs between releases."""
    plan = subject.plan
    method = capability.quantization_method(plan.model, plan.service)
    if method is None or isinstance(plan.gpu, Cpu):
        return
    path = "engine.quantization" if plan.service.engine.quantization else "model.id"
    least = capability.least_for(method, plan.model.quantization_bits, plan.release)
    if least is None:
        near = capability.nearest_method(method)
        remedy = f"did you mean {near}?" if near else "keep it only if a plugin brings it"
        yield Said("warn", path, f"what {method!r} needs of a card is not known", remedy)
        return
    yield from _least(plan, plan.gpu, path, method, least)


def _least(plan: ServicePlan, gpu: Gpu, path: str, method: str, least: capability.Least) -> Iterator[Said]:
    card, release = capability_number(gpu), plan.release.version
    has = f"{gpu.name} has {capability_text(card)}"
    if least.certain is None:
        # Another image may carry the plug-in that a method moved to.
        official = plan.service.image.repository == capabilities()["armImage"]["repository"]
        gone = least.enough is None
        message = (
            f"vLLM {release} has no method {method}" if gone else f"whether vLLM {release} has {method} is unknown"
        )
        remedy = "another release, or weights that are quantised in another way"
        yield Said("error" if gone and official else "warn", path, message, remedy)
    elif card < least.certain:
        message = f"{method} needs compute capability {capability_text(least.certain)} in vLLM {release}, and {has}"
        yield Said("error", path, message, "a newer card, or weights that are quantised in another way")
    elif least.enough is not None and card < least.enough:
        message = (
            f"{method} needs compute capability {capability_text(least.certain)} or {capability_text(least.enough)} "
            f"in vLLM {release}, by release or kind of weights, and {has}"
        )
        yield Said("warn", path, message, "try it before it is rolled out")


@rule("CAP-6", QUANTIZATION)
def quantization_is_the_checkpoints(subject: ServiceSubject) -> Iterator[Said]:
    """A quantised checkpoint cannot be loaded by another method, and not every method takes every data type."""
    plan = subject.plan
    named = plan.service.engine.quantization
    family = capabilities()["quantizationFamilies"].get(plan.model.quantization)
    if named is not None and family is not None and named not in family:
        message = f"{named}, and the weights of {plan.model.id} are {plan.model.quantization}"
        yield Said("error", "engine.quantization", message, "leave it out: the checkpoint says it")
    only = capabilities()["float16Only"]
    before = version_number(only["until"]) > plan.release.number
    dtype = capability.resolved_dtype(plan.gpu, plan.model, plan.service)
    if named in only["methods"] and before and dtype == "bfloat16" and plan.pool.kind == "gpu":
        message = f"{named} of vLLM {plan.release.version} computes in float16 only, not in bfloat16"
        yield Said("error", "engine.dtype", message, "engine.dtype: half, or leave engine.quantization out")
    deprecated = capabilities()["deprecatedQuantization"]
    since = version_number(deprecated["from"]) <= plan.release.number
    method = capability.quantization_method(plan.model, plan.service)
    if method in deprecated["methods"] and since and deprecated["flag"] not in plan.service.engine.extra_args:
        path = "engine.quantization" if named else "model.id"
        message = f"vLLM {plan.release.version} loads {method} only when it is allowed by name"
        yield Said("error", path, message, f"engine.extraArgs: [{deprecated['flag']}]")


@rule("CAP-3", CUDA)
def driver_runs_the_images_cuda(subject: ServiceSubject) -> Iterator[Said]:
    """The plain tag of a new release can bring a CUDA family that the nodes' driver is too old for."""
    plan = subject.plan
    if plan.pool.kind == "cpu":
        return
    needed, branch = capability.least_driver(plan.release), capability.driver_branch(plan.pool)
    image = f"{plan.service.image.tag} is CUDA {plan.release.cuda}"
    if needed is None:
        yield Said("warn", "image.tag", f"{image}, whose driver is not known", "compare with NVIDIA's table")
    elif branch is not None and branch < needed:
        older = capability.older_cuda_tag(plan.service.image, plan.release)
        message = f"{image} and needs a driver from {needed} on, and {plan.service.pool!r} has {plan.pool.driver}"
        remedy = f"a driver from {needed} on" + (f", or image.tag {older} (CUDA 12; look it up first)" if older else "")
        forward = plan.service.env.get(capabilities()["forwardCompatibility"]["variable"]) == "1"
        hint = "; forward compatibility is on: only data-centre and some professional cards have it"
        yield Said("warn" if forward else "error", "image.tag", message + (hint if forward else ""), remedy)


@rule("CAP-3", CUDA)
def driver_is_declared(subject: StackSubject) -> Iterator[Said]:
    """Without the nodes' driver nobody can say whether the images' CUDA runs there."""
    for name, pool in subject.config.nodes.items():
        users = [plan for plan in subject.plans.values() if plan.service.pool == name]
        needed = max((capability.least_driver(plan.release) or 0 for plan in users), default=0)
        if pool.driver is None and needed and pool.kind == "gpu":
            tags = ", ".join(dict.fromkeys(plan.service.image.tag for plan in users))
            message = f"is not declared, and {tags} needs a driver from {needed} on"
            yield Said("warn", f"nodes.{name}.driver", message, 'as nvidia-smi prints it, quoted: "580.82"')


@rule("CAP-4", "https://github.com/vllm-project/vllm/blob/main/docker/Dockerfile")
def image_has_code_for_the_card(subject: ServiceSubject) -> Iterator[Said]:
    """The official image is compiled for a list of cards; without code for a card nothing runs on it."""
    plan = subject.plan
    if plan.service.image.repository != capabilities()["armImage"]["repository"] or isinstance(plan.gpu, Cpu):
        return
    certain, perhaps = capability.image_cards(plan.release)
    card = capability_number(plan.gpu)
    if capability.has_code(card, certain):
        return
    message = (
        f"the image of vLLM {plan.release.version} is compiled for compute capability "
        f"{', '.join(map(capability_text, sorted(certain)))}, and {plan.gpu.name} has {capability_text(card)}"
    )
    # Intermediate code can be compiled for a newer card at start, never for an older one.
    refused = card < min(perhaps)
    remedy = "an older release" if refused else "a newer release, or try it before it is rolled out"
    yield Said("error" if refused else "warn", "image.tag", message, remedy)


@rule("CAP-5", "https://github.com/vllm-project/vllm/issues/30076")
def image_is_for_the_nodes_architecture(subject: ServiceSubject) -> Iterator[Said]:
    """An image of another CPU architecture ends with `exec format error`, or is not found at all."""
    plan = subject.plan
    image, nodes = plan.service.image, plan.pool.architecture
    named = capability.image_architecture(image)
    if named is not None and named != nodes:
        message = f"{image.tag} is for {named}, and the nodes of {plan.service.pool!r} are {nodes}"
        yield Said("error", "image.tag", message, f"the tag without architecture, or the one for {nodes}")
    elif named is None and nodes != "amd64" and not capability.arm_image_is_known(image, plan.release):
        message = f"whether {image.repository}:{image.tag} is there for {nodes} is not known"
        yield Said("warn", "image.tag", message, f"docker manifest inspect {image.repository}:{image.tag}")


@rule("LIVE-DRIVER", CUDA)
def live_driver_runs_the_images_cuda(subject: LiveSubject) -> Iterator[Said]:
    """What GPU Feature Discovery labels a node with is the driver that is really there."""
    for key, service, release in _released(subject):
        pool, needed = subject.config.nodes[service.pool], capability.least_driver(release)
        if pool.kind == "cpu":
            continue
        for node in _nodes(subject, pool):
            labels = node["metadata"].get("labels") or {}
            there = next((labels[label] for label in DRIVER_LABELS if label in labels), "")
            if needed is None or not there.isdigit() or int(there) >= needed:
                continue
            name = node["metadata"]["name"]
            message = (
                f"node {name!r} has driver {there}, and {service.image.tag} is CUDA {release.cuda}: from {needed} on"
            )
            older = capability.older_cuda_tag(service.image, release)
            remedy = f"a driver from {needed} on" + (f", or {older} (look it up first)" if older else "")
            forward = service.env.get(capabilities()["forwardCompatibility"]["variable"]) == "1"
            yield Said("warn" if forward else "error", f"services.{key}.image.tag", message, remedy)


@rule("LIVE-ARCH", "https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-arch")
def nodes_are_of_the_declared_architecture(subject: LiveSubject) -> Iterator[Said]:
    """Every pod selects the declared architecture: on nodes of another one it stays Pending."""
    for name, pool in subject.config.nodes.items():
        there = {(node["metadata"].get("labels") or {}).get(ARCHITECTURE_LABEL) for node in _nodes(subject, pool)}
        known = {each for each in there if each}
        if known and pool.architecture not in known:
            message = f"{pool.architecture}, and the nodes of the pool are {', '.join(sorted(known))}"
            yield Said("error", f"nodes.{name}.architecture", message, " or ".join(sorted(known)))


@rule("LIVE-CUDA", "https://github.com/vllm-project/vllm/issues/42738")
def cuda_family_stays(subject: LiveSubject) -> Iterator[Said]:
    """A new tag can bring another CUDA family, which the driver must know."""
    for key, service, release in _released(subject):
        if subject.config.nodes[service.pool].kind == "cpu":
            continue
        running = subject.live.get("Deployment", naming.server_name(key, 0))
        ours = running is not None and naming.is_of_stack(running["metadata"].get("labels"), subject.stack)
        before = _release_of_image(_image(running)) if running is not None and ours else None
        if before is not None and capability.cuda_major(before) != capability.cuda_major(release):
            message = f"CUDA changes from {before.cuda} to {release.cuda} with this tag"
            yield Said("warn", f"services.{key}.image.tag", message, "see to it that every node's driver knows it")


def _released(subject: LiveSubject) -> Iterator[tuple[str, ServiceSpec, Release]]:
    """The services whose release is known; the others are refused already."""
    for key, service in subject.config.services.items():
        try:
            yield key, service, release_of(service.image)
        except UnknownReleaseError:
            continue


def _nodes(subject: LiveSubject, pool: PoolSpec) -> list[dict[str, Any]]:
    return [
        node
        for node in subject.live.objects["Node"].values()
        if pool.selector.items() <= (node["metadata"].get("labels") or {}).items()
    ]


def _image(deployment: dict[str, Any]) -> str:
    return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])


def _release_of_image(reference: str) -> Release | None:
    """The release that an image names; ``None`` when its tag does not say it."""
    tag = reference.partition("@")[0].rpartition(":")[2]
    try:
        return release_of(ImageSpec(tag=tag))
    except (UnknownReleaseError, ValidationError):
        return None


STACK_RULES = (driver_is_declared,)
LIVE_RULES = (live_driver_runs_the_images_cuda, nodes_are_of_the_declared_architecture, cuda_family_stays)
RULES = (
    data_type_runs_on_the_card,
    quantization_runs_on_the_card,
    quantization_is_the_checkpoints,
    driver_runs_the_images_cuda,
    image_has_code_for_the_card,
    image_is_for_the_nodes_architecture,
)
