"""`vllm-infra snapshot`: figures of a real measurement, taken apart, and what they point at."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from kubernetes.client.exceptions import ApiException
from typer.testing import CliRunner, Result

from infra import live, port_forward, snapshot
from infra.cli import app
from infra.snapshot import Difference, Exposition, SnapshotError, difference, parse, render, verdicts
from infra.snapshot.difference import DECODE_TIME, E2E, percentiles
from planner.alerts import (
    GENERATED,
    IDLE_BEFORE_EVICT,
    ITL,
    KV_USAGE,
    PREEMPTIONS,
    PREFILL_TIME,
    PROMPTED,
    QUEUE_TIME,
    REUSE_GAP,
    RUNNING,
    TTFT,
    WAITING,
)
from planner.metrics import metrics_of
from planner.releases import known_releases, release_at
from planner.spec import ServiceSpec
from planner.spec.engine import EngineSpec
from planner.spec.monitoring import AlertsSpec
from tests.infra.api_server import api_server, client_of
from tests.infra.metrics_page import page

PAGES = Path(__file__).parent / "snapshots"
NOBODY, ONE, LONG_PROMPT, LONG_ANSWER, THRICE, SIXTEEN = (file.stem for file in sorted(PAGES.glob("*.prom")))
"""Pages of a vLLM 0.11.0 on one L40S, one after the other; before the last the server was started again."""


def saved(before: str, after: str) -> Difference:
    pages = [{"server": snapshot.from_file(PAGES / f"{name}.prom")} for name in (before, after)]
    return difference(pages[0], pages[1])


def between(before: str, after: str, *, seconds: float = 60.0) -> Difference:
    return difference({"server": parse(before, "before")}, {"server": parse(after, "after")}, seconds=seconds)


@pytest.mark.parametrize(
    ("before", "after", "prefill_share", "milliseconds"),
    [
        (NOBODY, ONE, "1.10%", "20.84"),
        (ONE, LONG_PROMPT, "43.26%", "21.14"),
        (LONG_PROMPT, LONG_ANSWER, "0.21%", "20.82"),
    ],
)
def test_the_share_of_prefill_and_the_time_of_a_token_are_those_measured(
    before: str, after: str, prefill_share: str, milliseconds: str
) -> None:
    found = saved(before, after)
    share, token = found.share(PREFILL_TIME, E2E), found.mean(ITL)
    assert share is not None, "both sums are on the pages"
    assert token is not None, "0.11.0 has it as time_per_output_token_seconds"
    assert f"{share:.2%}" == prefill_share, "the same card and model: only the shape of the request differs"
    assert f"{token * 1000:.2f}" == milliseconds, "a token costs the same whatever the prompt"
    assert found.requests == 1, "one request lies between these pages"


def test_prefix_hits_count_prompt_tokens_of_full_blocks() -> None:
    found = saved(LONG_ANSWER, THRICE)
    assert (found.prefix_hits, found.prefix_queries) == (64, 144), "48 tokens three times, two of three blocks twice"
    assert "64 of 144 prompt tokens (44.4%)" in render("server", found, ()), "it is what a person compares"


def test_a_name_that_one_page_lacks_is_unknown_and_not_zero() -> None:
    found = saved(LONG_ANSWER, THRICE)
    assert found.mean(TTFT) is None, "the later page does not have it"
    assert found.kv_usage is None, "neither page has it"
    assert "first token     not known" in render("server", found, ()), "0 would be a lie"


@pytest.mark.parametrize(
    ("before", "after", "share", "milliseconds"), [(NOBODY, ONE, 0.05, 1.5), (THRICE, SIXTEEN, 0.44, 27.3)]
)
def test_the_first_token_is_queue_and_prefill_and_a_rest(
    before: str, after: str, share: float, milliseconds: float
) -> None:
    found = saved(before, after)
    first, rest = found.mean(TTFT), found.rest
    assert first is not None, "the sum is there"
    assert rest is not None, "all three sums are there"
    assert rest / first == pytest.approx(share, abs=0.005), "queue + prefill is not all of it"
    assert rest * 1000 == pytest.approx(milliseconds, abs=0.05), "of one request"


def test_counters_that_restarted_are_said_and_counted_from_zero() -> None:
    found = saved(THRICE, SIXTEEN)
    token = found.mean(ITL)
    assert token is not None, "the later page has it"
    assert f"{token * 1000:.2f}" == "24.47", "sixteen at once; a negative difference would give nonsense"
    assert (found.requests, found.prompt_tokens, found.generated_tokens) == (16, 215, 24_319)
    assert any("restarted" in note for note in found.notes), "what was served before the restart is lost"
    assert not saved(ONE, LONG_PROMPT).notes, "without a restart nothing is said"


def test_a_process_that_began_later_restarted_even_when_its_counters_are_higher() -> None:
    started = 'process_start_time_seconds {}\nvllm:prompt_tokens_total{{engine="0"}} {}\n'
    found = between(started.format(100.0, 5.0), started.format(200.0, 9.0))
    assert found.prompt_tokens == 9, "all nine came after the restart"
    same = between(started.format(100.0, 5.0), started.format(100.0, 9.0))
    assert same.prompt_tokens == 4, "the same process: only what was added"


def test_nothing_served_is_one_clear_sentence() -> None:
    result = run("--before", str(PAGES / f"{NOBODY}.prom"), "--after", str(PAGES / f"{NOBODY}.prom"))
    assert result.exit_code == 0, "an idle server is no failure"
    assert "nothing was served between the readings" in result.output, result.output
    assert "points at" not in result.output, "there is nothing to conclude from"


# Several replicas


def served(requests: int, **values: float) -> str:
    counters = {PROMPTED: requests * 10.0, GENERATED: requests * 20.0, **values}
    return page("0.31.0", counters, {E2E: [2.0] * requests, ITL: [0.02] * requests})


def replicas(**requests: int) -> dict[str, Exposition]:
    return {name: parse(served(number), name) for name, number in requests.items()}


@pytest.mark.parametrize(
    ("before", "after", "requests", "said"),
    [
        ({"a": 1, "b": 10}, {"a": 4, "b": 20}, 13, ()),
        ({"a": 1, "b": 10}, {"a": 4}, 3, ("b is gone",)),
        ({"a": 1}, {"a": 4, "c": 7}, 10, ("c is new",)),
        ({"a": 5, "b": 10}, {"a": 2, "b": 11}, 3, ("counters of a restarted",)),
    ],
    ids=["two", "one is gone", "one is new", "one restarted"],
)
def test_replicas_are_summed(
    before: Mapping[str, int], after: Mapping[str, int], requests: int, said: Sequence[str]
) -> None:
    found = difference(replicas(**before), replicas(**after))
    assert found.requests == requests, "each replica's own difference, added up"
    assert len(found.notes) == len(said), found.notes
    for words in said:
        assert any(words in note for note in found.notes), f"{words!r} is why the sum is not all"


def test_only_bucket_edges_that_all_replicas_have_are_added_up() -> None:
    bucket = 'vllm:inter_token_latency_seconds_bucket{{le="{}"}} {}\n'
    tail = "vllm:inter_token_latency_seconds_sum {0}\nvllm:inter_token_latency_seconds_count {0}\n"
    fine = "".join(bucket.format(*each) for each in ((0.1, 4.0), (0.2, 4.0), ("+Inf", 4.0))) + tail.format(4.0)
    coarse = "".join(bucket.format(*each) for each in ((0.2, 0.0), (0.4, 4.0), ("+Inf", 4.0))) + tail.format(4.0)
    found = difference({}, {"a": parse(fine, "a"), "b": parse(coarse, "b")}).timings[ITL].percentiles
    assert [(one.above, one.up_to) for one in found if one.quantile == 0.95] == [(0.2, float("inf"))], (
        "0.1 and 0.4 are edges of one replica only"
    )


INFO = 'vllm:cache_config_info{{engine="{}",{}}} 1.0\nvllm:kv_cache_usage_perc{{engine="{}"}} {}\n'


@pytest.mark.parametrize(
    ("pages", "tokens", "usage"),
    [
        ([INFO.format(0, 'block_size="16",num_gpu_blocks="8633"', 0, 0.1)], 138_128, 0.1),
        ([INFO.format(0, 'block_size="16",num_gpu_blocks="10",kv_cache_size_tokens="150"', 0, 0.1)], 150, 0.1),
        ([INFO.format(0, 'block_size="16",num_gpu_blocks="None"', 0, 0.1)], None, 0.1),
        ([INFO.format(n, 'block_size="16",num_gpu_blocks="10"', n, n / 2) for n in (0, 1)], 320, 0.5),
    ],
    ids=["blocks", "a release that says the tokens", "not known yet", "two engines, the fuller one counts"],
)
def test_the_cache_is_counted_in_tokens(pages: Sequence[str], tokens: int | None, usage: float) -> None:
    found = between("".join(pages), "".join(pages))
    assert found.kv_tokens == tokens, "use is a share: of what, must be said"
    assert found.kv_usage == usage, "one full cache is full, whatever the others have left"


# Names of releases


@pytest.mark.parametrize("version", known_releases())
def test_every_release_is_read_by_the_names_that_it_exports(version: str) -> None:
    seen = {TTFT: [0.5], QUEUE_TIME: [0.1], PREFILL_TIME: [0.3], ITL: [0.02], E2E: [2.0], DECODE_TIME: [1.5]}
    values = {PROMPTED: 10.0, GENERATED: 20.0, RUNNING: 3.0, WAITING: 4.0, KV_USAGE: 0.5}
    found = difference(
        {"server": parse(page(version), "before")},
        {"server": parse(page(version, values, seen), "after")},
        metrics=metrics_of(release_at(version)),
    )
    for family, (value,) in seen.items():
        assert found.mean(family) == pytest.approx(value), f"{version} exports {family}"
    assert (found.running, found.waiting, found.kv_usage) == (3, 4, 0.5)
    assert found.rest == pytest.approx(0.1), "0.5 - 0.1 - 0.3"
    assert found.notes == (), "the server is of the declared release"


def test_a_name_of_another_release_is_read_and_said() -> None:
    old = page("0.11.0", {GENERATED: 1.0}, {"vllm:time_per_output_token_seconds": [0.03]}, without=[ITL])
    before = page("0.11.0", without=[ITL])
    pages = {"server": parse(before, "before")}, {"server": parse(old, "after")}
    found = difference(*pages, metrics=metrics_of(release_at("0.33.0")))
    assert found.mean(ITL) == pytest.approx(0.03), "it is the same time under its older name"
    assert any("0.33.0" in note and "time_per_output_token" in note for note in found.notes), found.notes
    assert not difference(*pages, metrics=metrics_of(release_at("0.11.0"))).notes, "0.11.0 has that name"


# Percentiles


def test_a_percentile_is_said_as_far_as_the_buckets_know_it() -> None:
    found = between(page("0.31.0"), page("0.31.0", {GENERATED: 1.0}, {TTFT: [1.1] * 100, QUEUE_TIME: [0.001] * 100}))
    first = {one.quantile: one for one in found.timings[TTFT].percentiles}
    assert (first[0.95].above, first[0.95].up_to) == (1.0, 2.5), "every request took 1.1 s"
    assert first[0.95].estimate == pytest.approx(2.425), "what histogram_quantile makes of it"
    queue = {one.quantile: one for one in found.timings[QUEUE_TIME].percentiles}
    assert queue[0.95].is_lowest, "an idle service has no p95 queue of 0.285 s"
    assert queue[0.95].estimate is None, "an interpolation there would be an invention"
    text = render("server", found, ())
    assert "first token: p50/p90/p95/p99 1 s to 2.5 s" in text, text
    assert "queue: p50/p90/p95/p99 at most 300 ms (lowest bucket)" in text, text


@pytest.mark.parametrize(
    ("buckets", "quantiles"),
    [
        ({float("inf"): 5.0}, []),
        ({0.3: 5.0, float("inf"): 5.0}, [(0.0, 0.3)] * 4),
        ({0.3: 0.0, float("inf"): 5.0}, [(0.3, float("inf"))] * 4),
        ({0.3: 0.0, float("inf"): 0.0}, []),
        ({}, []),
    ],
    ids=["no finite edge", "one bucket, all in it", "one bucket, all beyond", "no observation", "no bucket"],
)
def test_few_buckets_say_little(buckets: Mapping[float, float], quantiles: Sequence[tuple[float, float]]) -> None:
    assert [(one.above, one.up_to) for one in percentiles(buckets)] == quantiles


# Verdicts


def load(
    first: float, queue: float, prefill: float, *, whole: float = 4.0, seconds: float = 60.0, **values: float
) -> Difference:
    names = {"waiting": WAITING, "preemptions": PREEMPTIONS, "kv_usage": KV_USAGE}
    after = page(
        "0.31.0",
        {GENERATED: 1000.0, **{names[key]: value for key, value in values.items()}},
        {TTFT: [first] * 100, QUEUE_TIME: [queue] * 100, PREFILL_TIME: [prefill] * 100, E2E: [whole] * 100},
    )
    return between(page("0.31.0"), after, seconds=seconds)


def names_of(found: Difference, **more: AlertsSpec) -> list[str]:
    return [verdict.name for verdict in verdicts(found, "qwen", **more) if verdict.changes]


@pytest.mark.parametrize(
    ("found", "names"),
    [
        (load(3.0, 2.5, 0.3), ["queue-bound"]),
        (load(3.0, 0.3, 2.5), ["prefill-bound"]),
        (load(1.5, 1.0, 0.3), ["queue-bound"]),
        (load(0.05, 0.04, 0.01), []),
        (load(0.05, 0.00, 0.05), []),
        (load(3.0, 0.3, 0.4), []),
        (load(3.0, 0.5, 0.3), []),
        (load(0.05, 0.0, 0.04, waiting=11), ["queue-bound"]),
        (load(0.05, 0.0, 0.04, waiting=10), []),
        (load(0.05, 0.0, 0.04, preemptions=3), ["KV cache too small"]),
        (load(0.05, 0.0, 0.04, kv_usage=0.96), ["KV cache too small"]),
        (load(0.05, 0.0, 0.04, kv_usage=0.95), []),
        (load(3.0, 2.5, 0.3, kv_usage=0.99), ["queue-bound", "KV cache too small"]),
    ],
    ids=[
        "late, mostly queue",
        "late, mostly prefill",
        "in time, but a large part of the request",
        "a queue that nobody feels",
        "a prefill that nobody feels",
        "late, mostly the rest, then prefill",
        "late, mostly the rest, then queue",
        "more wait than the alert allows",
        "as many wait as it allows",
        "pre-emptions",
        "cache above the alert's limit",
        "cache at the limit",
        "queue for want of cache",
    ],
)
def test_the_figures_point_at_one_cause(found: Difference, names: Sequence[str]) -> None:
    assert names_of(found) == names


def test_the_objective_is_that_of_the_stack() -> None:
    found = load(1.0, 0.8, 0.1, whole=40.0)
    assert names_of(found) == [], "1 s keeps the default of 2 s, and is 2.5 % of the request"
    strict = AlertsSpec.model_validate({"ttftSloBreach": {"seconds": 0.5}})
    assert names_of(found, alerts=strict) == ["queue-bound"], "it breaks 0.5 s"


def test_a_cache_that_is_turned_over_is_too_small_however_little_of_it_is_in_use() -> None:
    def turned(reuse: float, idle: float) -> Difference:
        seen = {REUSE_GAP: [reuse] * 10, IDLE_BEFORE_EVICT: [idle] * 10}
        return between(page("0.31.0"), page("0.31.0", {GENERATED: 1.0, KV_USAGE: 0.4}, seen))

    assert names_of(turned(reuse=45, idle=3)) == ["KV cache too small"], "blocks come back after they were thrown out"
    assert names_of(turned(reuse=3, idle=45)) == [], "blocks stay longer than they are needed"


def advice(found: Difference, name: str) -> dict[str, str]:
    (verdict,) = [each for each in verdicts(found, "qwen") if each.name == name]
    return {change.path: change.advice for change in verdict.changes}


def test_queue_and_prefill_have_opposite_cures() -> None:
    queue, prefill = advice(load(3.0, 2.5, 0.3), "queue-bound"), advice(load(3.0, 0.3, 2.5), "prefill-bound")
    assert queue.keys() == {
        f"vllm:services.qwen.{key}" for key in ("engine.maxNumSeqs", "engine.maxModelLen", "replicas")
    }
    assert prefill["vllm:services.qwen.engine.maxNumBatchedTokens"].startswith("up")
    assert not queue.keys() & prefill.keys(), "the wrong one makes it worse"


@pytest.mark.parametrize("found", [load(3.0, 2.5, 0.3, kv_usage=0.99), load(0.1, 0.0, 0.1, waiting=50, kv_usage=0.99)])
def test_more_sequences_are_not_proposed_while_the_cache_is_full(found: Difference) -> None:
    assert "vllm:services.qwen.engine.maxNumSeqs" not in advice(found, "queue-bound"), "they would be pre-empted"
    assert advice(found, "KV cache too small")["vllm:services.qwen.engine.maxNumSeqs"] == "down"


@pytest.mark.parametrize(
    ("percent", "seconds", "names"),
    [(35.0, 60.0, ["CPU-bound"]), (60.0, 60.0, []), (35.0, 6000.0, []), (None, 60.0, ["CPU-bound: not known"])],
    ids=["a GPU that rests under load", "a busy GPU", "no load to speak of", "nobody measured the GPU"],
)
def test_only_a_known_gpu_utilisation_proves_a_cpu_bound(
    percent: float | None, seconds: float, names: Sequence[str]
) -> None:
    found = difference(
        {"server": parse(page("0.31.0"), "before")},
        {"server": parse(page("0.31.0", {GENERATED: 1.0}, {E2E: [4.0] * 100}), "after")},
        seconds=seconds,
        gpu_utilisation=percent,
    )
    assert [verdict.name for verdict in verdicts(found)] == names


def test_a_queue_is_no_sign_of_a_cpu_bound() -> None:
    assert [each.name for each in verdicts(load(3.0, 2.5, 0.3))] == ["queue-bound"], "the queue must be low for that"


@pytest.mark.parametrize(
    ("version", "has_it"), [("0.11.0", False), ("0.19.1", False), ("0.31.0", True), ("0.33.0", True)]
)
def test_the_fast_tokeniser_is_proposed_where_the_release_has_it(version: str, has_it: bool) -> None:
    pages = [{"server": parse(page(version, {GENERATED: n}, {E2E: [4.0] * int(n)}), "page")} for n in (0.0, 100.0)]
    found = difference(pages[0], pages[1], seconds=60, gpu_utilisation=30)
    (verdict,) = verdicts(found, "qwen", release=release_at(version))
    paths = [change.path for change in verdict.changes]
    assert ("vllm:services.qwen.env.VLLM_USE_FASTOKENS" in paths) is has_it, paths
    assert "vllm:services.qwen.engine.apiServerCount" in paths, "every release has that"
    assert "LoRA" in verdict.changes[0].advice, "it costs something"


def test_every_change_is_a_field_of_the_stack_file() -> None:
    service = {field.alias or name for name, field in ServiceSpec.model_fields.items()}
    engine = {field.alias or name for name, field in EngineSpec.model_fields.items()}
    everything = [load(3.0, 2.5, 0.3, kv_usage=0.99), load(3.0, 0.3, 2.5), load(3.0, 2.5, 0.3)]
    for found in everything:
        for verdict in verdicts(found, "qwen"):
            for change in verdict.changes:
                first, _, second = change.path.removeprefix("vllm:services.qwen.").partition(".")
                assert first in service, f"{change.path} is no field"
                assert not second or second in engine, f"{change.path} is no field"


# Reading


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        ("<html><body>Welcome</body></html>\n", "no page of metrics"),
        ('{"object": "list"}\n', "no page of metrics"),
        ('python_info{implementation="CPython"} 1.0\n', "--disable-log-stats"),
    ],
    ids=["empty", "HTML", "JSON", "another program's"],
)
def test_what_is_not_vllms_page_is_refused_in_one_message(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "after.prom"
    file.write_text(text, encoding="utf-8")
    result = run("--before", str(PAGES / f"{NOBODY}.prom"), "--after", str(file))
    assert result.exit_code == 1, "no answer is better than one from nothing"
    assert words in result.output, result.output
    assert result.output.count("error:") == 1, "one message"
    assert "Traceback" not in result.output, "it is no crash"


@pytest.mark.parametrize(
    ("url", "words"),
    [("localhost:8000", "no http address"), ("http://127.0.0.1:1", "cannot be reached"), ("file:///etc/hosts", "http")],
)
def test_a_server_that_does_not_answer_is_one_message(url: str, words: str) -> None:
    result = run("--url", url, "--seconds", "0.1")
    assert result.exit_code == 1, "nothing was read"
    assert words in result.output, result.output


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["snapshot", *arguments])


@pytest.mark.parametrize(
    ("command", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137)], ids=["well", "failed", "killed"]
)
def test_a_command_is_measured_and_its_exit_code_is_ours(command: str, code: int) -> None:
    pages = iter([page("0.31.0"), served(3)])
    with api_server(lambda path: (200, next(pages)) if path == "/metrics" else (404, "")) as url:
        result = run("--url", url, "--json", "--", "sh", "-c", command)
    assert result.exit_code == code, "a script must see that its load failed"
    (answer,) = json.loads(result.stdout).values()
    assert (answer["requests"], answer["promptTokens"], answer["generatedTokens"]) == (3, 30, 60)
    assert answer["timings"]["interTokenLatency"]["meanSeconds"] == pytest.approx(0.02)


def test_a_command_that_is_not_there_is_one_message() -> None:
    with api_server(lambda _: (200, page("0.31.0"))) as url:
        result = run("--url", url, "--", "no-such-load-generator")
    assert result.exit_code == 127, "as a shell has it"
    assert "no-such-load-generator cannot be run: No such file" in result.output, result.output


def test_a_page_that_is_refused_names_the_status() -> None:
    with api_server(lambda _: (404, "")) as url:
        result = run("--url", url, "--seconds", "0.1")
    assert result.exit_code == 1, "nothing was read"
    assert "answers 404" in result.output, result.output


DCGM = """# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",pod="qwen-0-abc",namespace="vllm"} 20
DCGM_FI_DEV_GPU_UTIL{gpu="1",pod="other",namespace="vllm"} 90
"""


@pytest.mark.parametrize(
    ("pods", "percent"), [({"qwen-0-abc"}, 20.0), ({"http://localhost:8000"}, 55.0)], ids=["ours", "all of the node"]
)
def test_gpu_utilisation_is_that_of_our_pods_where_the_exporter_names_them(pods: set[str], percent: float) -> None:
    with api_server(lambda _: (200, DCGM)) as url:
        assert snapshot.gpu_utilisation(url, frozenset(pods)) == percent


def test_an_exporter_without_the_figure_is_refused() -> None:
    with api_server(lambda _: (200, page("0.31.0"))) as url, pytest.raises(SnapshotError, match="DCGM"):
        snapshot.gpu_utilisation(url, frozenset())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name a stack"),
        (("--url", "http://localhost", "--stack", "lab-3060"), "name a stack"),
        (("--before", "a.prom"), "--after"),
        (("--before", "a", "--after", "b", "--dcgm", "http://x"), "read already"),
        (("--url", "http://localhost", "--seconds", "5", "--", "true"), "exclude each other"),
        (("--url", "http://localhost", "--service", "qwen"), "--stack"),
    ],
)
def test_options_that_would_be_ignored_are_refused(arguments: Sequence[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, "it is a wrong call"
    assert words in result.output, result.output


# Pods


class Forward:
    """A port-forward: a connection to the server of a test, and what kubelet says of it."""

    def __init__(self, url: str, error: str | None = None) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port))
        self._error = error

    def socket(self, _: int) -> socket.socket:
        return self._socket

    def error(self, _: int) -> str | None:
        return self._error

    def close(self) -> None:
        self._socket.close()


def pod(name: str, *, ready: bool = True, stopping: bool = False) -> dict[str, object]:
    metadata = {"name": name, **({"deletionTimestamp": "2026-11-29T00:00:00Z"} if stopping else {})}
    return {"metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": str(ready)}]}}


def test_every_ready_replica_is_read_through_a_port_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    pods = {"items": [pod("a"), pod("b"), pod("c", ready=False), pod("d", stopping=True)]}
    asked: list[tuple[str, str, str]] = []

    def answer(path: str) -> tuple[int, str]:
        return (200, page("0.31.0", {PROMPTED: 7.0})) if path == "/metrics" else (200, json.dumps(pods))

    with api_server(answer) as url:

        def forward(_: object, name: str, namespace: str, *, ports: str) -> Forward:
            asked.append((namespace, name, ports))
            return Forward(url)

        monkeypatch.setattr(port_forward, "portforward", forward)
        found = snapshot.from_pods(client_of(url), "vllm", "qwen", 8000)
    assert asked == [("vllm", "a", "8000"), ("vllm", "b", "8000")], "pods that come or go would not answer"
    assert [each.total(PROMPTED) for each in found.values()] == [7.0, 7.0], "each replica's own page"


def test_a_service_of_a_stack_is_measured_by_its_own_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    late = {TTFT: [3.0] * 10, QUEUE_TIME: [2.5] * 10, PREFILL_TIME: [0.3] * 10, E2E: [5.0] * 10}
    pages = iter([page("0.31.0"), page("0.31.0", {GENERATED: 100.0}, late)])
    asked: list[tuple[object, ...]] = []

    def read(_: object, *where: object) -> dict[str, Exposition]:
        asked.append(where)
        return {"qwen-0-abc": parse(next(pages), "page")}

    monkeypatch.setattr(live, "connect", lambda _: None)
    monkeypatch.setattr(snapshot, "from_pods", read)
    result = run("--stack", "lab-3060", "--service", "qwen", "--", "true")
    assert result.exit_code == 0, result.output
    assert asked == [("ai-infra", "qwen", 8000)] * 2, "namespace, service and port are those of the stack file"
    assert "points at queue-bound" in result.output, result.output
    assert "vllm:services.qwen.engine.maxModelLen" in result.output, "a key to copy"


@pytest.mark.parametrize(
    ("stack", "service", "code", "words"),
    [("lab-3060", "qwenn", 2, "services of lab-3060: qwen"), ("lab-3061", "qwen", 1, "lab-3060")],
)
def test_a_service_that_no_stack_has_is_refused(stack: str, service: str, code: int, words: str) -> None:
    result = run("--stack", stack, "--service", service)
    assert result.exit_code == code, "nothing can be read"
    assert words in result.output, result.output


def test_a_port_forward_that_is_refused_names_the_right_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Forward:
        status = json.dumps({"kind": "Status", "message": 'User "ci" cannot create resource "pods/portforward"'})
        raise ApiException(
            status=0, reason=f"Handshake status 403 Forbidden -+-+- {{'date': 'today'}} -+-+- {status}\n"
        )

    monkeypatch.setattr(port_forward, "portforward", refuse)
    with (
        api_server(lambda _: (200, json.dumps({"items": [pod("a")]}))) as url,
        pytest.raises(
            SnapshotError, match=r'403 Forbidden, User "ci" cannot create .* pods/portforward in namespace vllm'
        ),
    ):
        snapshot.from_pods(client_of(url), "vllm", "qwen", 8000)


def test_no_ready_replica_points_to_the_diagnosis() -> None:
    with (
        api_server(lambda _: (200, json.dumps({"items": [pod("a", ready=False)]}))) as url,
        pytest.raises(SnapshotError, match="vllm-infra diagnose"),
    ):
        snapshot.from_pods(client_of(url), "vllm", "qwen", 8000)


@pytest.mark.parametrize(("running", "expected"), [(0, True), (1, True), (2, False), (3, False)])
def test_requests_that_clients_gave_up_are_said(running: float, expected: bool) -> None:
    """Five first tokens and three ends: what runs explains as many as there are, the rest has gone."""
    seen = {TTFT: [0.1] * 5, QUEUE_TIME: [0.01] * 3, PREFILL_TIME: [0.05] * 3, E2E: [1.0] * 3}
    found = between(page("0.33.0"), page("0.33.0", {"vllm:num_requests_running": running}, seen))
    said = [note for note in found.notes if "their clients went away" in note]
    assert bool(said) is expected, found.notes
    if expected:
        assert said[0].startswith(f"at least {2 - running:g} "), "so many neither ended nor run"
