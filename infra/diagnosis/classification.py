"""From what was read to the cause: which question is asked first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from infra.diagnosis import causes
from infra.diagnosis.causes import Cause
from infra.diagnosis.facts import Container, StartFacts
from infra.diagnosis.masking import masked_facts

EVIDENCE_CHARACTERS = 500


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
    facts = masked_facts(facts)
    # In the order of a pod's life: what has not happened yet cannot have failed.
    stages = (_no_pod, _unschedulable, _evicted, _image, _mount, _model_absent, _died, _ready, _still_on_its_way)
    found = (diagnosis for stage in stages if (diagnosis := stage(facts)))
    return next(found, None) or _diagnosis(facts, causes.UNKNOWN, _last_words(facts))


def in_stack_file(diagnosis: Diagnosis, pool: str) -> Diagnosis:
    """The same diagnosis, its fields as the keys of a stack file whose service is on ``pool``: to be copied."""
    keys = (f"vllm:{field}".replace("vllm:nodes.POOL.", f"vllm:nodes.{pool}.") for field in diagnosis.fields)
    return replace(diagnosis, fields=tuple(keys))


def _no_pod(facts: StartFacts) -> Diagnosis | None:
    if facts.pod:
        return None
    if facts.unread:
        return _diagnosis(facts, causes.UNREAD, facts.unread[0])
    failure = facts.condition("ReplicaFailure")
    refusals = [*facts.messages("FailedCreate"), *([failure.message] if failure else [])]
    if refusals:
        return _diagnosis(facts, causes.REFUSED, refusals[0])
    if facts.stopping:
        return _diagnosis(facts, causes.STOPPING, ", ".join(facts.stopping))
    return _diagnosis(facts, causes.NO_POD, _last_words(facts))


def _unschedulable(facts: StartFacts) -> Diagnosis | None:
    scheduled = facts.condition("PodScheduled")
    if scheduled is None or scheduled.status == "True":
        return None
    lines = [scheduled.message, *facts.messages("FailedScheduling")]
    return _match(facts, causes.UNSCHEDULABLE, lines) or _diagnosis(facts, causes.NOT_PLACED, lines[0])


def _evicted(facts: StartFacts) -> Diagnosis | None:
    return _diagnosis(facts, causes.EVICTED, facts.phase_message) if facts.phase_reason == "Evicted" else None


def _image(facts: StartFacts) -> Diagnosis | None:
    reasons = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
    stuck = [container for container in facts.containers if container.waiting in reasons]
    if not stuck:
        return None
    # The back-off message names only the image; why it failed stands in the event before it.
    pulls = [message for message in facts.messages("Failed") if "pull" in message]
    lines = [*pulls, *(f"{container.waiting}: {container.waiting_message}" for container in stuck)]
    return _match(facts, causes.PULL, lines) or _diagnosis(facts, causes.NOT_PULLED, lines[0])


def _mount(facts: StartFacts) -> Diagnosis | None:
    """Between the node and the first instruction: volumes, sandbox, configuration, runtime."""
    failures = [(container, end) for container in facts.containers if (end := container.failure)]
    started = any(container.running for container in facts.containers)
    lines = [container.waiting_message for container in facts.containers if container.waiting_message]
    lines += [end.message for _, end in failures if end.reason in {"StartError", "ContainerCannotRun"}]
    if not failures and not started:
        lines += _before_pulling(facts)
    return _match(facts, causes.MOUNT, lines)


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
    return _diagnosis(facts, causes.MODEL_ABSENT, said or f"{failed.name}: exit {_exit(failed)}")


def _died(facts: StartFacts) -> Diagnosis | None:
    died = next((item for item in facts.containers if not item.init and item.failure), None)
    end = died.failure if died else None
    if died is None or end is None:
        return None
    if end.reason == "OOMKilled":
        return _diagnosis(facts, causes.OUT_OF_MEMORY, f"{died.name}: OOMKilled, exit {end.exit_code}")
    lines = [*reversed(facts.log), end.message] if facts.log_of == died.name else [end.message]
    return _match(facts, causes.LOG, lines) or _killed_by_probe(facts, died)


def _killed_by_probe(facts: StartFacts, died: Container) -> Diagnosis | None:
    """The event decides and not the code: 137 is SIGKILL, and releases from 0.19.1 stop on SIGTERM."""
    for message in facts.messages("Killing"):
        for words, cause in (
            ("failed startup probe", causes.STARTUP_PROBE),
            ("failed liveness probe", causes.LIVENESS_PROBE),
        ):
            if words in message:
                end = facts.log[-1] if facts.log else "(no log)"
                return _diagnosis(facts, cause, f"{message}; exit {_exit(died)}; the log ends with: {end}")
    return None


def _ready(facts: StartFacts) -> Diagnosis | None:
    ready = facts.condition("Ready")
    if facts.phase == "Succeeded" or (ready and ready.status == "True"):
        return _diagnosis(facts, causes.READY, f"{facts.pod} of {facts.owner}")
    return None


def _still_on_its_way(facts: StartFacts) -> Diagnosis | None:
    if any(container.failure for container in facts.containers):
        return None
    if any(container.running for container in facts.containers if not container.init):
        return _diagnosis(facts, causes.STILL_LOADING, _last_words(facts))
    if facts.events and facts.events[-1].reason == "Pulling":
        return _diagnosis(facts, causes.STILL_PULLING, str(facts.events[-1]))
    return None


def _match(facts: StartFacts, known: Sequence[Cause], lines: Sequence[str]) -> Diagnosis | None:
    for cause in known:
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
