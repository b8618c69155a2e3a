"""Rules about how a server starts and stops; the orders between clocks are the planner's (`planner/clocks.py`)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from infra.preflight.rule import Said, ServiceSubject, rule
from planner.capability import capabilities
from planner.plan import ServicePlan
from planner.startup import CacheState, downloads_in_container, plan_startup

STOP = "https://github.com/llm-d/llm-d/issues/927"
DRAIN_FLAG = "--shutdown-timeout"


@rule("LIFE-2", "https://github.com/vllm-project/vllm/blob/main/vllm/envs.py")
def engine_is_up_before_it_is_given_up(subject: ServiceSubject) -> Iterator[Said]:
    """The API server waits for the engine for so long and then ends itself, whatever the probe allows."""
    plan = subject.plan
    limit = capabilities()["engineReadySeconds"]
    variable = limit["variable"]
    if variable not in plan.release.environment:
        return
    planned = plan.environment.get(variable, "")
    seconds = int(planned) if planned.isdigit() else limit["value"]
    expected, worst = _expected_seconds(plan), plan.clocks.worst_start_seconds
    if seconds >= worst:
        return
    longer = max(math.ceil(worst), plan.clocks.startup_window_seconds)
    yield Said(
        "error" if seconds < expected else "warn",
        f"env.{variable}",
        f"vLLM ends itself after {seconds} s without an engine, whose start takes {expected:.0f} to {worst:.0f} s",
        f'leave it out, which makes it long enough, or "{longer}", as long as the startup probe waits',
    )


def _expected_seconds(plan: ServicePlan) -> float:
    """A start in the container with nothing cached but the image, and the weights where a Job brought them."""
    state = CacheState(
        image=True, weights=not downloads_in_container(plan.service), page_cache=False, compile_cache=False
    )
    return plan_startup(plan.gpu, plan.model, plan.release, plan.service, plan.pool, state).in_container_seconds


@rule("LIFE-3", STOP)
def running_requests_may_finish(subject: ServiceSubject) -> Iterator[Said]:
    """A server that is stopped cuts the answers that it is writing, unless it is told to drain."""
    plan = subject.plan
    stop = plan.service.stop
    if plan.release.certain(DRAIN_FLAG) is None:
        asked = "drain_seconds" in stop.model_fields_set and stop.drain_seconds > 0
        message = (
            f"{stop.drain_seconds} s have no effect: {_without_drain(plan)}, so requests "
            f"that still run {stop.pre_stop_seconds} s after the stop began are cut"
        )
        yield Said("warn" if asked else "info", "stop.drainSeconds", message, "a longer stop.preStopSeconds")
    elif stop.drain_seconds == 0:
        message = "0: answers that are being written when the server is stopped are cut"
        yield Said("warn", "stop.drainSeconds", message, "as long as your longest answer takes, for example 30")
    if stop.pre_stop_seconds == 0:
        message = "0: clients go on sending to a server that takes no more requests"
        yield Said("warn", "stop.preStopSeconds", message, "5 or more, until every client has seen the change")


def _without_drain(plan: ServicePlan) -> str:
    doubt = plan.release.find(DRAIN_FLAG) is not None
    release = f"vLLM {plan.release.version}"
    return f"whether {release} has {DRAIN_FLAG} is not known" if doubt else f"{release} has no {DRAIN_FLAG}"


RULES = (engine_is_up_before_it_is_given_up, running_requests_may_finish)
