"""A start is measured from what it left behind: known figures come back, what is missing is unknown."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from infra.cold_start import Evidence, Start, starts_of
from infra.cold_start.start import duration
from tests.infra.cold_start import starts as made
from tests.infra.cold_start.starts import L40S, RELEASES


def only(evidence: Evidence) -> Start:
    found = starts_of(evidence)
    assert len(found) == 1, "one container ran once: that is one start"
    return found[0]


@pytest.mark.parametrize("name", L40S)
def test_the_measured_rows_come_back(name: str) -> None:
    row, start = L40S[name], only(made.measured(name))
    assert start.init_engine_seconds == row.init_engine, "the engine's own figure"
    assert start.seconds("download") == pytest.approx(row.download or 0.0), "no line of a download: none from 0.5 s on"
    assert start.seconds("read") == row.read
    assert start.seconds("image") == pytest.approx(row.pull or 0.0), "the pull's seconds exist only in its event"
    assert start.image_local is (row.pull is None)
    assert start.cache == ("miss" if row.compiled else "hit"), "the line decides, not the seconds"
    assert start.kv_tokens == 470_624
    assert start.seconds("graphs") == row.graphs
    # Kubernetes' own stamps are whole seconds.
    assert start.seconds("import") == pytest.approx(row.process_start, abs=1.0), "no byte moves in these seconds"
    assert start.total_seconds == pytest.approx(row.total, abs=1.0)


@pytest.mark.parametrize("name", L40S)
def test_nothing_is_added_twice(name: str) -> None:
    start = only(made.measured(name))
    outer = ("node", "image", "sandbox", "import", "download", "read", "answer")
    sum_of = sum(start.seconds(phase) or 0.0 for phase in outer) + (start.init_engine_seconds or 0.0)
    assert start.unexplained_seconds == pytest.approx((start.total_seconds or 0.0) - sum_of), (
        "the rest has its own line"
    )
    parts = [start.seconds(phase) for phase in ("compile", "profile", "graphs")]
    assert sum(part or 0.0 for part in parts) == pytest.approx(start.init_engine_seconds), "init engine is their sum"
    assert start.unexplained_seconds is not None
    assert -1.5 < start.unexplained_seconds < 10, "the parts of `Model loading took` are counted once"


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", ["nothing", "compile cache"])
def test_every_release_is_read(release: str, name: str) -> None:
    row, start = L40S[name], only(made.measured(name, release))
    assert start.seconds("import") == pytest.approx(row.process_start, abs=1.0), "also without `Starting to load model`"
    assert start.seconds("read") == row.read
    assert start.seconds("graphs") == row.graphs, "the last capture counts, not the one of the estimate"
    assert start.seconds("compile") == pytest.approx(row.trace + (row.compiled or row.loaded_from_cache or 0.0))
    assert (start.kv_tokens, start.cache) == (470_624, "miss" if row.compiled else "hit")
    assert start.log.text("banner") == release
    assert not start.log.absent(made.plan().release.number), "every line that a release always prints is known"


def noisy(text: str) -> str:
    said = made.line("0.11.0", 30, "engine", "x.py:1", "Loading weights took 9.99 seconds", "DEBUG")
    debug = f"{made.kubelet(30)} {said}\n"
    return debug + text.replace("\n", "\n" + debug, 12)


def in_json(text: str) -> str:
    records = []
    for raw in text.splitlines():
        when, _, message = raw.partition(" ")
        records.append(f"{when} {json.dumps({'timestamp': when, 'level': 'INFO', 'message': message})}\n")
    return "".join(records)


def prefixed(text: str) -> str:
    return "".join(
        f'{when} {{"app": "chat"}} {rest}\n' for when, _, rest in (raw.partition(" ") for raw in text.splitlines())
    )


def coloured(text: str) -> str:
    return text.replace("INFO", "\x1b[32mINFO\x1b[0m")


def of_kubectl(text: str) -> str:
    return "".join(f"[pod/qwen-0-abc-1/vllm] {raw}\n" for raw in text.splitlines())


def with_progress_bars(text: str) -> str:
    return text.replace(
        "\n", "\nCapturing CUDA graphs (decode, FULL):   0%|  | 0/35\rCapturing CUDA graphs (decode, FULL): 100%\n"
    )


def after_which_prompts_are_logged(text: str) -> str:
    prompt = made.line("0.11.0", 900, "api", "logger.py:1", "prompt: 'Loading weights took 99.99 seconds'")
    return f"{text}{made.kubelet(900)} {prompt}\n"


def of_a_second_start(text: str) -> str:
    earlier = made.log(made.lines("0.11.0", L40S["image"], -600))
    return earlier + text


@pytest.mark.parametrize(
    "change",
    [
        noisy,
        in_json,
        prefixed,
        coloured,
        of_kubectl,
        with_progress_bars,
        after_which_prompts_are_logged,
        of_a_second_start,
    ],
)
def test_a_log_is_read_whatever_stands_around_its_lines(change: Callable[[str], str]) -> None:
    plain = made.measured("weights")
    expected, start = only(plain), only(replace(plain, log=change(plain.log or "")))
    assert start.phases == expected.phases, "the same start, told with noise"
    assert (start.cache, start.kv_tokens, start.init_engine_seconds) == (expected.cache, 470_624, 35.21)


def test_the_slowest_of_several_processes_counts() -> None:
    row = replace(L40S["weights"], read=2.22)
    said = made.lines("0.11.0", row, 2)
    place = next(i for i, (_, text) in enumerate(said) if "Loading weights" in text)
    when, text = said[place]
    other = text.replace("EngineCore_DP0 pid=91", "Worker_TP1 pid=92").replace("2.22", "3.33")
    said.insert(place, (when, other))
    assert only(made.measured("weights", log=made.log(said))).seconds("read") == 3.33, "they read side by side"


def test_a_hit_in_one_process_and_a_miss_in_another_is_partly() -> None:
    said = made.lines("0.11.0", L40S["compile cache"], 2)
    miss = "(Worker_TP1 pid=92) INFO 09-28 23:01:00 [backends.py:197] Cache the graph for dynamic shape for later use"
    start = only(made.measured("compile cache", log=made.log([*said[:-2], (50.0, miss), *said[-2:]])))
    assert start.cache == "partly", "a write is a miss"


def test_a_broken_cache_is_called_broken() -> None:
    text = "Compiling model again due to a load failure from /models/compile/x/model, reason: bad magic"
    said = made.lines("0.31.0", L40S["weights"], 2)
    warning = made.line("0.31.0", 50, "engine", "decorators.py:1", text, "WARNING")
    assert (
        only(made.measured("weights", "0.31.0", log=made.log([*said[:-2], (50.0, warning), *said[-2:]]))).cache
        == "broken"
    )


def test_a_total_that_leaves_the_load_from_the_cache_out_is_not_believed() -> None:
    text = (made.measured("compile cache").log or "").replace("takes 5.30 s in total", "takes 4.20 s in total")
    assert only(made.measured("compile cache", log=text)).seconds("compile") == pytest.approx(5.3), (
        "4.2 s are the trace"
    )


def test_compile_and_profile_in_one_figure_are_not_called_compile() -> None:
    text = made.measured("weights", "0.19.1").log or ""
    text = text.replace("torch.compile took", "torch.compile and initial profiling/warmup run together took")
    text = "".join(f"{raw}\n" for raw in text.splitlines() if "Compiling a graph" not in raw)
    start = only(made.measured("weights", "0.19.1", log=text))
    assert start.seconds("compile") is None, "19.84 s hold the profile run as well"
    assert start.init_engine_seconds == 35.21, "the sum is known all the same"


def test_an_eager_start_compiles_for_zero_seconds() -> None:
    said = [
        (when, text.replace("enforce_eager=False", "enforce_eager=True"))
        for when, text in made.lines("0.11.0", L40S["weights"], 2)
        if not any(word in text for word in ("compile", "Dynamo", "graph", "Graph"))
    ]
    start = only(made.measured("weights", log=made.log(said)))
    assert (start.seconds("compile"), start.seconds("graphs"), start.cache) == (0.0, 0.0, "off"), "it is switched off"
    assert start.seconds("profile") == 35.21, "all of init engine is then the profile run and what it builds"


# What is missing


def test_without_events_the_image_is_unknown_and_never_zero() -> None:
    start = only(made.measured("nothing", events=()))
    assert start.seconds("image") is None, "events expire after an hour"
    assert start.image_local is None
    assert start.seconds("sandbox") is None, "it is what is left of a stretch that holds the pull"
    assert start.unexplained_seconds is not None
    assert start.unexplained_seconds > 220, "the pull is then in what nothing explains"


def test_a_log_cut_off_in_the_middle_says_what_it_has() -> None:
    whole = made.measured("nothing")
    text = whole.log or ""
    cut = text[: text.index("Loading weights took") + 10]
    start = only(replace(whole, pod=made.pod(222, None), log=cut))
    assert start.seconds("download") == pytest.approx(185.493367), "that line was there"
    for phase in ("read", "compile", "graphs", "profile", "answer"):
        assert start.seconds(phase) is None, f"{phase} had not been logged"  # type: ignore[arg-type]
    assert (start.outcome, start.init_engine_seconds, start.total_seconds) == ("starting", None, None)


def test_a_log_whose_beginning_was_rotated_away_knows_no_download() -> None:
    text = made.measured("weights").log or ""
    start = only(made.measured("weights", log=text[text.index("Loading weights took") - 90 :].split("\n", 1)[1]))
    assert start.seconds("download") is None, "the line may have been in the part that is gone"
    assert start.init_engine_seconds == 35.21


def test_a_log_without_the_kubelets_stamps_is_measured_by_its_own_clock() -> None:
    row = L40S["weights"]
    start = only(made.measured("weights", log=made.log(made.lines("0.11.0", row, 2), stamped=False)))
    assert start.seconds("import") == pytest.approx(row.process_start - 10.2, abs=1.0), "from its first line on"
    assert start.total_seconds == pytest.approx(row.total, abs=1.0), "the pod's stamps are all of one clock"
    assert start.seconds("answer") == pytest.approx(3.4, abs=1.0)


def test_a_log_alone_is_measured() -> None:
    text = made.log(made.lines("0.31.0", L40S["weights"], 2), stamped=False)
    start = only(Evidence(service="qwen", replica=0, read_at="", log=text))
    assert start.seconds("image") is None, "no pod, no events"
    assert start.init_engine_seconds == 35.21
    assert start.total_from == "the log's first line"


def test_a_restart_is_two_starts() -> None:
    killed = {"reason": "Error", "exitCode": 137, "startedAt": made.whole(2), "finishedAt": made.whole(130)}
    row = L40S["compile cache"]
    before = made.log(made.lines("0.11.0", L40S["weights"], 2)[:-6])
    now = made.log(made.lines("0.11.0", row, 131))
    evidence = made.measured(
        "compile cache", pod=made.pod(131, 131 + row.total - 2, restarts=1, last=killed), log=now, previous_log=before
    )
    first, second = starts_of(evidence)
    assert (first.before_restart, first.outcome, first.in_container_seconds) == (True, "ended", 128.0)
    assert first.ended == "Error, exit code 137"
    assert first.seconds("image") == 0.0, "the pod was made for the first start"
    assert second.seconds("image") is None, "a restart in the pod pulls nothing"
    assert [phase.name for phase in second.phases][:1] == ["import"], "and has no phase before the container"
    assert second.total_from == "the container's start"
    assert second.total_seconds == pytest.approx(row.total - 2, abs=1.0)
    assert second.seconds("import") == pytest.approx(row.process_start, abs=1.0)


def test_a_readiness_that_was_lost_and_found_is_not_the_starts_end() -> None:
    start = only(made.measured("weights", pod=made.pod(2, 5000)))
    assert start.total_seconds is not None
    assert start.total_seconds < 90, "the condition's stamp moves with every change"


def test_the_old_servers_stop_is_apart() -> None:
    stop = made.event("Killing", "Stopping container vllm", -14, name="qwen-0-old-9")
    # A sibling that ends after this pod was made is not what it had to wait for.
    later = made.event("Killing", "Stopping container vllm", 300, name="qwen-0-old-8")
    start = only(made.measured("weights", events=(stop, later, made.present(1))))
    assert start.old_stop_seconds == 14.0
    assert start.total_seconds == pytest.approx(87.8, abs=1.0), "the total begins with the new pod"
    assert only(made.measured("weights")).old_stop_seconds is None, "no event: unknown"


@pytest.mark.parametrize(
    ("text", "seconds"), [("3m40.2s", 220.2), ("890ms", 0.89), ("1h2m3s", 3723.0), ("27.88s", 27.88), ("12m", 720.0)]
)
def test_durations_of_go(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds)


def test_a_container_that_waits_after_its_end_has_one_start() -> None:
    ended = {"reason": "Error", "exitCode": 1, "startedAt": made.whole(2), "finishedAt": made.whole(40)}
    pod = made.pod(2, None, restarts=1, last=ended)
    pod["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    start = only(made.measured("weights", pod=pod, previous_log=made.measured("weights").log))
    assert (start.before_restart, start.in_container_seconds) == (True, pytest.approx(78.0, abs=1.0))
    assert start.outcome == "ready", "it had answered"
    assert start.ended == "Error, exit code 1", "and ended later"


def test_after_several_restarts_no_start_was_the_pods_first() -> None:
    ended = {"reason": "Error", "exitCode": 1, "startedAt": made.whole(200), "finishedAt": made.whole(240)}
    pod = made.pod(300, 380, restarts=3, last=ended)
    log = made.log(made.lines("0.11.0", L40S["weights"], 300))
    evidence = made.measured("weights", pod=pod, previous_log="", log=log)
    assert len(starts_of(evidence)) == 2
    for start in starts_of(evidence):
        assert start.seconds("image") is None, "the log of the first one is gone, and so is its place among the phases"
        assert start.total_from == "the container's start"


def test_every_process_has_the_smallest_number_of_tokens() -> None:
    said = made.lines("0.11.0", L40S["weights"], 2)
    other = "(EngineCore_DP1 pid=92) INFO 09-28 23:01:00 [kv_cache_utils.py:1087] GPU KV cache size: 470,000 tokens"
    start = only(made.measured("weights", log=made.log([*said[:-2], (70.0, other), *said[-2:]])))
    assert start.kv_tokens == 470_000, "another engine's larger cache does not help this one"


def test_a_pull_that_waited_for_another_one_is_longer_than_its_own_seconds() -> None:
    message = 'Successfully pulled image "vllm:v1" in 1m40s (2m30s including waiting). Image size: 1000 bytes.'
    start = only(made.measured("weights", pod=made.pod(155, 240), events=(made.event("Pulled", message, 152),)))
    assert start.seconds("image") == 150.0, "the kubelet pulls one image after the other"
    assert start.pull is not None
    assert start.pull.seconds == 100.0, "the rate is that of the pull alone"


def test_an_old_kubelets_event_has_no_waiting_and_no_size() -> None:
    message = 'Successfully pulled image "vllm/vllm-openai:v0.11.0" in 3m40.2s'
    start = only(made.measured("weights", events=(made.event("Pulled", message, 2),)))
    assert start.pull is not None
    assert (start.seconds("image"), start.pull.bytes) == (220.2, None)
