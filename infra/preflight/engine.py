"""Rules about settings of the engine that run, and that are worth a second look."""

from __future__ import annotations

from collections.abc import Iterator

from infra.preflight.rule import Said, ServiceSubject, rule
from planner.memory import settings_of
from planner.plan import memory_of
from planner.spec import ServiceSpec
from planner.startup import cold_start, warm_restart

LONGER = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
QUEUE_FLAG = "--max-num-queued-reqs"
PROFILING = "https://docs.vllm.ai/en/latest/configuration/optimization/"
GRAPHS = "https://docs.vllm.ai/en/latest/design/cuda_graphs/"
_NO_CHAT = ("pooling", "draft")


@rule("SET-LENGTH", "https://docs.vllm.ai/en/latest/configuration/conserving_memory/")
def context_is_what_is_needed(subject: ServiceSubject) -> Iterator[Said]:
    """Without a length the model's own maximum is taken, whether it is needed or not."""
    plan = subject.plan
    if plan.service.engine.max_model_len is None:
        longest = plan.memory.max_model_len
        message = f"is not set: the model's maximum of {longest:,} tokens is taken"
        yield Said("info", "engine.maxModelLen", message, "the longest prompt and answer that your clients need")


@rule("SET-POSITIONS", "https://docs.vllm.ai/en/latest/configuration/engine_args/#-max-model-len")
def context_is_within_the_positions(subject: ServiceSubject) -> Iterator[Said]:
    """vLLM ends at start when more is asked than the model has positions for (vllm/config/model.py)."""
    plan = subject.plan
    asked, most = plan.service.engine.max_model_len, plan.model.max_position_embeddings
    stretched = plan.service.engine.hf_overrides is not None or LONGER in plan.service.env
    if asked is not None and asked > most and not stretched:
        message = f"{asked:,} tokens, and {plan.model.id} has {most:,} positions"
        remedy = f"at most {most}; a model that is made to be stretched says how in engine.hfOverrides"
        yield Said("error", "engine.maxModelLen", message, remedy)


@rule("SET-GRAPHS", GRAPHS)
def batches_are_recorded(subject: ServiceSubject) -> Iterator[Said]:
    """A batch that is larger than the largest recorded CUDA graph runs unrecorded."""
    plan = subject.plan
    settings = settings_of(plan.gpu, plan.model, plan.release, plan.service)
    if not settings.captures or settings.max_num_seqs <= settings.largest_capture:
        return
    engine = plan.service.engine
    chosen = engine.max_num_seqs is not None or engine.cudagraph_capture_sizes is not None
    message = (
        f"{settings.max_num_seqs} requests may run at once, graphs are recorded up to {settings.largest_capture}: "
        "larger batches run unrecorded, at a cost that nobody measured"
    )
    remedy = f"engine.maxNumSeqs: {settings.largest_capture}, or record larger sizes in engine.cudagraphCaptureSizes"
    # Where both are left to vLLM, this is its own choice for large cards.
    yield Said("warn" if chosen else "info", "engine.maxNumSeqs", message, remedy)


@rule("SET-TOKENS", PROFILING)
def tokens_follow_the_target(subject: ServiceSubject) -> Iterator[Said]:
    """Tokens in one step trade the time to the first token against the time between tokens."""
    plan = subject.plan
    asked, target = plan.service.engine.max_num_batched_tokens, plan.service.workload.target
    tokens = f"{plan.memory.max_num_batched_tokens:,} tokens in one step" + (
        "" if asked else f" (the default of vLLM {plan.release.version})"
    )
    if target is None and asked is not None:
        message = f"{tokens}, and no target is declared: more shorten the first token, fewer the gaps between tokens"
        yield Said("info", "workload.target", message, "timeToFirstToken or interTokenLatency")
    elif target == "timeToFirstToken":
        message = f"{tokens}; the target is the time to the first token: more finish a long prompt in fewer steps"
        yield Said("info", "engine.maxNumBatchedTokens", message, "raise it while memory allows, and measure")
    elif target == "interTokenLatency":
        message = f"{tokens}; the target is the time between tokens: fewer make each step shorter"
        yield Said("info", "engine.maxNumBatchedTokens", message, "lower it (2048 is small), and measure")


@rule("SET-EAGER", "https://docs.vllm.ai/en/latest/design/torch_compile/")
def eager_is_a_trade(subject: ServiceSubject) -> Iterator[Said]:
    """Eager execution starts faster and uses less memory; what it costs in throughput was not measured."""
    plan = subject.plan
    if not plan.service.engine.enforce_eager:
        return
    compiled = _compiled(plan.service)
    first = cold_start(plan.gpu, plan.model, plan.release, compiled, plan.pool).seconds - plan.cold.seconds
    again = warm_restart(plan.gpu, plan.model, plan.release, compiled, plan.pool).seconds - plan.warm.seconds
    memory = memory_of(plan.gpu, plan.model, plan.release, compiled)
    tokens = plan.memory.kv_tokens_cached - memory.kv_tokens_cached
    graphs = f" and {memory.graphs_mib:,.0f} MiB of graphs (KV cache: {tokens:+,} tokens)" if memory.graphs_mib else ""
    yield Said(
        "info",
        "engine.enforceEager",
        f"saves about {first:.0f} s of a first start, {again:.0f} s of a restart{graphs}; costs steady throughput, "
        "which nobody measured here",
        "measure both before you keep it in production",
    )


def _compiled(service: ServiceSpec) -> ServiceSpec:
    engine = service.engine.model_copy(update={"enforce_eager": None})
    return service.model_copy(update={"engine": engine})


@rule("SET-QUEUE", "https://docs.vllm.ai/en/latest/cli/serve/")
def queue_has_an_end(subject: ServiceSubject) -> Iterator[Said]:
    """Without a limit a burst waits for ever instead of being refused, and clients retry on top of it."""
    plan = subject.plan
    if plan.service.engine.max_num_queued_reqs is None and plan.release.certain(QUEUE_FLAG) is not None:
        remedy = "what one replica serves within the longest wait that a client accepts"
        yield Said("info", "engine.maxNumQueuedReqs", "is not set: requests queue without end", remedy)


@rule("SET-CHAT", "https://docs.vllm.ai/en/latest/serving/openai_compatible_server/#chat-template")
def model_can_chat(subject: ServiceSubject) -> Iterator[Said]:
    """A base model has no chat template, and the chat endpoint answers with an error."""
    plan = subject.plan
    pooling = any(word in _NO_CHAT for word in plan.service.engine.extra_args)
    if plan.model.chat_template is False and plan.service.engine.chat_template is None and not pooling:
        message = f"{plan.model.id} has no chat template: /v1/chat/completions will fail"
        yield Said("warn", "engine.chatTemplate", message, "set it, use /v1/completions, or an instruct model")


RULES = (
    context_is_what_is_needed,
    context_is_within_the_positions,
    batches_are_recorded,
    tokens_follow_the_target,
    eager_is_a_trade,
    queue_has_an_end,
    model_can_chat,
)
