"""Rules about how several GPUs share a model."""

from __future__ import annotations

from collections.abc import Iterator

from infra.preflight.rule import Said, ServiceSubject, rule
from planner.parallel import Shares, indivisible, shares_of, tensor_sizes, without_marlin
from planner.plan import ServicePlan

EXPERT_PARALLEL = "--enable-expert-parallel"


def _expert_parallel(plan: ServicePlan) -> bool:
    return EXPERT_PARALLEL in plan.service.engine.extra_args


def _sizes(plan: ServicePlan) -> str:
    most = max(plan.service.gpus, 1)
    sizes = tensor_sizes(plan.model, most, expert_parallel=_expert_parallel(plan))
    return ", ".join(map(str, sizes))


@rule("MEM-4", "https://github.com/gpustack/gpustack/issues/2259")
def model_divides_by_the_gpus(subject: ServiceSubject) -> Iterator[Said]:
    """Every GPU takes the same share of heads and layers' inner sizes, so those must be divisible."""
    plan = subject.plan
    tensor = shares_of(plan.service).tensor
    rest = indivisible(plan.model, tensor, expert_parallel=_expert_parallel(plan))
    if rest:
        unset = plan.service.engine.tensor_parallel_size is None
        said = f"is not set, so {tensor} {_what(plan)} share each layer" if unset else f"{tensor}"
        yield Said(
            "error",
            "engine.tensorParallelSize",
            f"{said}: {' and '.join(rest)} of {plan.model.id} cannot be divided by {tensor}",
            f"one of {_sizes(plan)} (a size below the number of {_what(plan)} leaves the others idle)",
        )
    elif plan.pool.kind == "gpu" and (slow := without_marlin(plan.model, tensor)):
        yield Said(
            "warn",
            "engine.tensorParallelSize",
            f"{tensor}: the fast kernels for {plan.model.quantization} do not take {', '.join(slow)}",
            "a smaller size; or try whether the slow kernels are enough",
        )


@rule("MEM-4", "https://github.com/ai-dynamo/dynamo/issues/4934")
def gpus_are_there_and_used(subject: ServiceSubject) -> Iterator[Said]:
    """The parallel sizes multiply to the GPUs that the server uses: more do not start, fewer stay idle."""
    plan = subject.plan
    shares, gpus = shares_of(plan.service), plan.service.gpus
    if shares.gpus > gpus:
        yield Said(
            "error",
            _largest(shares),
            f"{_product(shares)} uses {shares.gpus} {_what(plan)}, and the service has {gpus}",
            f"gpus: {shares.gpus}, or smaller sizes",
        )
    elif shares.gpus < gpus:
        yield Said(
            "warn",
            "gpus",
            f"{gpus}, and {_product(shares)} uses {shares.gpus}: {gpus - shares.gpus} "
            f"{'GPU(s)' if plan.pool.kind == 'gpu' else 'worker(s)'} idle and are paid for",
            f"gpus: {shares.gpus}, or larger sizes (tensor parallel: {_sizes(plan)})",
        )
    if shares.pipeline > plan.model.layers:
        message = f"{shares.pipeline}, and {plan.model.id} has {plan.model.layers} layers"
        yield Said("error", "engine.pipelineParallelSize", message, f"at most {plan.model.layers}")


def _what(plan: ServicePlan) -> str:
    return "GPUs" if plan.pool.kind == "gpu" else "workers"


def _largest(shares: Shares) -> str:
    sizes = {
        "engine.tensorParallelSize": shares.tensor,
        "engine.pipelineParallelSize": shares.pipeline,
        "engine.dataParallelSize": shares.data,
    }
    return max(sizes, key=lambda name: sizes[name])


def _product(shares: Shares) -> str:
    return f"tensor {shares.tensor} x pipeline {shares.pipeline} x data {shares.data}"


RULES = (model_divides_by_the_gpus, gpus_are_there_and_used)
