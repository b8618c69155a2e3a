"""From what was read to the cause: what is asked first, and what is only in the status."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infra.diagnosis import Condition, Container, Event, StartFacts, Termination, diagnose, in_stack_file
from tests.infra.diagnosis.starts import ENGINE, NORMAL, died, facts, killed, unplaced

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


@pytest.mark.parametrize("code", [143, 0])
def test_a_release_that_stops_on_sigterm_ends_otherwise_and_means_the_same(code: int) -> None:
    found = diagnose(died(NORMAL, code=code, events=killed("startup")))
    assert found.id == "startup-probe", "releases from 0.19.1 do, and one that ends in peace was killed all the same"


def test_a_server_that_ends_in_peace_and_is_started_again_is_no_slow_start() -> None:
    assert diagnose(died(NORMAL, code=0)).id == "unknown", "a server has no reason to end by itself"


def test_a_step_before_the_server_may_end_in_peace_twice() -> None:
    again = Container("model-is-there", init=True, restarts=1, ended=Termination("Completed", 0))
    again = replace(again, last=again.ended)
    found = diagnose(facts(again, Container("vllm", running=True), log=(NORMAL,), log_of="vllm"))
    assert found.id == "still-loading", "a new sandbox runs it once more, and ending is what it is for"


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


# --- keys to copy ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "field", "key"),
    [
        (
            unplaced("0/1 nodes are available: 1 Insufficient nvidia.com/gpu."),
            "nodes.POOL.gpusPerNode",
            "vllm:nodes.lab.gpusPerNode",
        ),
        (
            died(code=137, reason="OOMKilled"),
            "services.chat.resources.memoryLimit",
            "vllm:services.chat.resources.memoryLimit",
        ),
        (died("Invalid user token."), "hfToken", "vllm:hfToken"),
    ],
    ids=["pool", "service", "secret"],
)
def test_a_field_becomes_a_key_of_the_stack_file(start: StartFacts, field: str, key: str) -> None:
    found = diagnose(start)
    shown = in_stack_file(found, "lab")
    assert found.fields[0] == field, "what was read does not know the pool"
    assert shown.fields[0] == key, "it can be copied as it stands"
    assert not [name for name in shown.fields if "POOL" in name], "the pool is known"
    assert (shown.id, shown.evidence, shown.facts) == (found.id, found.evidence, found.facts), "nothing else changes"
