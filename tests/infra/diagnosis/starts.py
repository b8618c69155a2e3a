"""Starts that failed, as they are seen: what tests of the diagnosis share."""

from __future__ import annotations

from typing import Any

from infra.diagnosis import Condition, Container, Event, StartFacts, Termination

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
