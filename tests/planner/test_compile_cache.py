"""What a change does to the compile cache, by the key's inputs of each release and against measured starts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planner import caches
from planner.compile_cache import CompileCacheKey, compare, from_data, key_of
from planner.plan import plan_service
from planner.releases import known_releases, release_at
from planner.spec import PoolSpec, ServiceSpec

QWEN = "Qwen/Qwen2.5-7B-Instruct"
SEVEN = [1, 2, 4, 8, 16, 32, 64]
OLD, MIDDLE, NEW = "0.11.0", "0.19.1", "0.31.0"


def key(version: str = NEW, engine: dict[str, Any] | None = None, gpu: str = "l40s", **fields: Any) -> CompileCacheKey:
    document = {
        "pool": "gpu",
        "model": {"id": QWEN},
        "image": {"tag": f"v{version}"},
        "cache": {"kind": "existingClaim", "claimName": "cache"},
        "resources": {"memoryLimit": "64Gi"},
        "engine": {"maxModelLen": 8192, **(engine or {})},
    }
    pool = {"gpu": gpu, "selector": {"gpu": "yes"}, "cpus": 16, "memory": "64Gi"}
    service = ServiceSpec.model_validate_json(json.dumps(document | fields))
    return key_of(plan_service("chat", service, PoolSpec.model_validate_json(json.dumps(pool))))


@pytest.mark.parametrize("version", known_releases())
def test_nothing_changed_is_a_hit(version: str) -> None:
    change = compare(key(version), key(version))
    assert (change.verdict, change.changed, change.seconds) == ("hit", (), 0.0), "the entry is there"
    assert change.kv_tokens_first == change.kv_tokens_after, "a start that compiles nothing has all of its KV cache"


CASES: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("engine.maxModelLen", {"engine": {"maxModelLen": 4096}}, {OLD: "miss", MIDDLE: "miss", NEW: "miss"}),
    ("engine.dtype", {"engine": {"dtype": "half"}}, {OLD: "miss", MIDDLE: "miss", NEW: "miss"}),
    ("--kv-cache-dtype", {"engine": {"kvCacheDtype": "fp8"}}, {OLD: "miss", MIDDLE: "miss", NEW: "miss"}),
    ("--revision", {"model": {"id": QWEN, "revision": "a" * 40}}, {OLD: "miss", MIDDLE: "miss", NEW: "miss"}),
    ("model.id", {"model": {"id": "Qwen/Qwen3-8B"}}, {OLD: "miss", MIDDLE: "miss", NEW: "miss"}),
    ("--trust-remote-code", {"engine": {"trustRemoteCode": True}}, {OLD: "miss", MIDDLE: "miss", NEW: "miss"}),
    (
        "engine.maxNumBatchedTokens",
        {"engine": {"maxNumBatchedTokens": 4096}},
        {OLD: "hit", MIDDLE: "miss", NEW: "miss"},
    ),
    ("engine.maxNumSeqs", {"engine": {"maxNumSeqs": 300}}, {OLD: "hit", MIDDLE: "hit", NEW: "miss"}),
    ("engine.blockSize", {"engine": {"blockSize": 32}}, {OLD: "hit", MIDDLE: "miss", NEW: "miss"}),
    (
        "engine.cudagraphCaptureSizes",
        {"engine": {"cudagraphCaptureSizes": SEVEN}},
        {OLD: "hit", MIDDLE: "miss", NEW: "miss"},
    ),
    # Fewer sequences than 256 also mean fewer graph sizes, which 0.19.1 counts.
    ("engine.cudagraphCaptureSizes", {"engine": {"maxNumSeqs": 8}}, {OLD: "hit", MIDDLE: "miss", NEW: "miss"}),
    ("", {"engine": {"gpuMemoryUtilization": 0.5}}, {OLD: "hit", MIDDLE: "hit", NEW: "hit"}),
    ("", {"engine": {"enablePrefixCaching": False}}, {OLD: "hit", MIDDLE: "hit", NEW: "hit"}),
    ("", {"engine": {"seed": 7}}, {OLD: "hit", MIDDLE: "hit", NEW: "hit"}),
    (
        "",
        {"engine": {"enableAutoToolChoice": True, "toolCallParser": "hermes"}},
        {OLD: "hit", MIDDLE: "hit", NEW: "hit"},
    ),
    ("", {"engine": {"apiServerCount": 2}}, {OLD: "hit", MIDDLE: "hit", NEW: "hit"}),
    ("", {"model": {"id": QWEN, "servedName": "other"}}, {OLD: "hit", MIDDLE: "hit", NEW: "hit"}),
    ("", {"exposure": {"port": 9000}}, {OLD: "hit", MIDDLE: "hit", NEW: "hit"}),
    ("", {"env": {"VLLM_LOGGING_LEVEL": "DEBUG"}}, {OLD: "hit", MIDDLE: "hit", NEW: "hit"}),
    ("env.VLLM_ATTENTION_BACKEND", {"env": {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}}, {OLD: "miss"}),
    (
        "env.VLLM_ALLOW_LONG_MAX_MODEL_LEN",
        {"env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}},
        {OLD: "hit", MIDDLE: "miss", NEW: "miss"},
    ),
    ("", {"env": {"NO_SUCH_VARIABLE": "1"}}, {OLD: "hit", MIDDLE: "hit", NEW: "hit"}),
    ("--max-logprobs", {"engine": {"extraArgs": ["--max-logprobs", "40"]}}, {OLD: "miss", MIDDLE: "miss", NEW: "miss"}),
    ("", {"engine": {"extraArgs": ["--disable-log-stats"]}}, {OLD: "hit", MIDDLE: "hit", NEW: "hit"}),
    ("", {"engine": {"compilationConfig": {"cudagraph_num_of_warmups": 1}}}, {OLD: "hit"}),
    (
        "--compilation-config.cudagraph_num_of_warmups",
        {"engine": {"compilationConfig": {"cudagraph_num_of_warmups": 1}}},
        {MIDDLE: "miss", NEW: "miss"},
    ),
]


@pytest.mark.parametrize(
    ("version", "changed", "change", "verdict"),
    [
        pytest.param(version, changed, change, verdict, id=f"{version}-{json.dumps(change)}")
        for changed, change, verdicts in CASES
        for version, verdict in verdicts.items()
    ],
)
def test_a_change_compiles_where_the_release_counts_it(
    version: str, changed: str, change: dict[str, Any], verdict: str
) -> None:
    found = compare(key(version), key(version, **change))
    assert found.verdict == verdict, f"{change} in {version}: {found}"
    if verdict == "miss":
        assert changed in found.changed, f"the preview names what it is: {found.changed}"
        assert found.seconds > 10, "the L40S and the H200 took 15 to 30 s to compile"
    else:
        assert found.changed == (), "nothing that counts has changed"


@pytest.mark.parametrize(
    ("version", "change", "verdict"),
    [
        ("0.15.0", {"engine": {"maxModelLen": 4096}}, "miss"),
        ("0.15.0", {"engine": {"maxNumBatchedTokens": 4096}}, "perhaps"),
        ("0.15.0", {"engine": {"seed": 7}}, "hit"),
        ("0.26.0", {"engine": {"maxNumBatchedTokens": 4096}}, "miss"),
        ("0.26.0", {"engine": {"maxNumSeqs": 300}}, "perhaps"),
        ("0.33.0", {"engine": {"maxNumSeqs": 300}}, "miss"),
    ],
)
def test_between_two_tables_only_what_both_count_is_certain(version: str, change: dict[str, Any], verdict: str) -> None:
    found = compare(key(version), key(version, **change))
    assert found.verdict == verdict, f"{change} in {version}: {found}"
    assert bool(found.seconds) == (verdict != "hit"), "what may compile is told with its seconds"


@pytest.mark.parametrize(
    ("engine", "same"),
    [
        ({"dtype": "auto"}, {}),
        ({"dtype": "bfloat16"}, {}),
        ({"dtype": "half"}, {"dtype": "float16"}),
        ({"maxModelLen": 32768}, {"maxModelLen": None}),
        ({"tensorParallelSize": 1}, {}),
    ],
)
def test_the_default_given_is_the_default_left_out(engine: dict[str, Any], same: dict[str, Any]) -> None:
    change = compare(key(engine=engine), key(engine=same))
    assert change.verdict == "hit", f"vLLM keys the resolved value: {change}"


@pytest.mark.parametrize(
    ("changed", "change"),
    [
        ("image and GPU", {"image": {"tag": "v0.33.0"}}),
        ("image and GPU", {"image": {"tag": f"v{NEW}", "digest": f"sha256:{'1' * 64}"}}),
        ("image and GPU", {"gpu": "a100-80gb"}),
        ("cache.claimName", {"cache": {"kind": "existingClaim", "claimName": "another"}}),
        ("cache.path", {"cache": {"kind": "hostPath", "path": "/data", "size": "80Gi"}}),
    ],
)
def test_another_folder_is_an_empty_one(changed: str, change: dict[str, Any]) -> None:
    found = compare(key(), key(**change))
    assert found.verdict == "miss", "whatever the configuration, nothing is in there"
    assert changed in found.changed, f"the folder's part is named: {found.changed}"


def test_the_same_folder_under_another_claim_name_is_not_empty() -> None:
    path = {"kind": "hostPath", "path": "/data", "size": "80Gi"}
    change = compare(key(cache={**path, "claimName": "one"}), key(cache={**path, "claimName": "two"}))
    assert change.verdict == "hit", "both claims are of the same folder"


def test_eager_compiles_nothing_and_leaving_it_does() -> None:
    eager = key(engine={"enforceEager": True})
    assert compare(eager, key(engine={"enforceEager": True, "maxModelLen": 4096})).verdict == "off", "no graph at all"
    assert compare(key(), eager).verdict == "off", "nothing is compiled from now on"
    back = compare(eager, key())
    assert (back.verdict, back.changed) == ("miss", ("engine.enforceEager",)), "an eager start has left no entry"
    moved = compare(eager, key(engine={"enforceEager": True}, image={"tag": "v0.33.0"}))
    assert moved.verdict == "miss", "its Triton kernels are built again in a new folder"
    assert moved.seconds == pytest.approx(9.5), "the RTX 3060 took 9.5 s for them"


def test_a_new_service_starts_without_a_cache() -> None:
    change = compare(None, key())
    assert change.verdict == "miss", "nothing ran before"
    assert change.seconds == pytest.approx(key().miss_seconds), "compile and kernels"


def test_both_kv_figures_are_told() -> None:
    change = compare(key("0.26.0", gpu="h200"), key("0.26.0", {"maxModelLen": 4096}, gpu="h200"))
    assert change.kv_tokens_first < change.kv_tokens_after, (
        "measured at 0.26.0: the start that compiles has 0.75 GiB less for the KV cache"
    )


MEASURED: list[tuple[str, dict[str, Any], bool]] = [
    (QWEN, {"maxModelLen": 32768}, False),
    (QWEN, {"maxModelLen": 32768}, True),
    (QWEN, {"maxModelLen": 32768, "cudagraphCaptureSizes": SEVEN}, False),
    (QWEN, {"maxModelLen": 32768, "gpuMemoryUtilization": 0.5}, True),
    ("meta-llama/Llama-3.1-8B", {"maxModelLen": 8192}, False),
    (QWEN, {"maxModelLen": 32768, "cudagraphCaptureSizes": SEVEN}, True),
    ("Qwen/Qwen2.5-7B-Instruct-AWQ", {"maxModelLen": 2048, "maxNumSeqs": 4, "dtype": "half"}, False),
]
"""Seven starts of vLLM 0.26.0 on one H200, one after the other, with the same empty cache at first: did it hit?"""


def test_seven_measured_starts_hit_and_miss_as_predicted() -> None:
    seen: list[CompileCacheKey] = []
    for number, (model, engine, hit) in enumerate(MEASURED, start=1):
        own = key("0.26.0", {"maxNumBatchedTokens": 2048, "maxNumSeqs": 256, **engine}, "h200", model={"id": model})
        predicted = any(compare(one, own).verdict == "hit" for one in seen)
        assert predicted == hit, f"start {number} of the H200, {model} with {engine}"
        seen.append(own)


def test_seven_graph_sizes_hit_on_the_l40s() -> None:
    change = compare(key(OLD), key(OLD, {"cudagraphCaptureSizes": SEVEN}))
    assert change.verdict == "hit", "the L40S at 0.11.0: init engine 8.6 s after 12.5 s, no compile"


def test_a_key_survives_json() -> None:
    one = key()
    assert from_data(json.loads(json.dumps(one.as_data()))) == one, "a report compares what two runs printed"


def test_the_digest_says_that_the_next_start_may_compile() -> None:
    assert key().digest == key(engine={"seed": 7}).digest, "a hit is no line of the diff"
    assert key().digest != key(engine={"maxModelLen": 4096}).digest, "a miss is"
    eager, longer = ({"enforceEager": True, "maxModelLen": length} for length in (2048, 4096))
    assert key(engine=eager).digest == key(engine=longer).digest, "where nothing is compiled nothing can miss"


def test_the_time_for_the_engine_is_part_of_the_key_and_moves_seldom() -> None:
    short, long, longer, longest = (key(overrides={"startupSeconds": seconds}) for seconds in (590, 610, 1190, 1210))
    assert compare(short, long).changed == ("env.VLLM_ENGINE_READY_TIMEOUT_S",), "vLLM counts the variable"
    assert compare(long, longer).verdict == "hit", "a window that grows by minutes compiles nothing once more"
    assert compare(longer, longest).verdict == "miss", "one that outgrows the value does"
    old = [key(OLD, overrides={"startupSeconds": seconds}) for seconds in (590, 1210)]
    assert compare(*old).verdict == "hit", "that release does not read it"


@pytest.mark.parametrize("version", known_releases())
@pytest.mark.parametrize("offline", [True, False])
def test_what_we_set_ourselves_never_differs_between_pods(version: str, offline: bool) -> None:
    ours = {name for name in caches.environment(offline) if name in release_at(version).environment}
    assert ours == {"VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT"}, "any other variable of vLLM's could split its cache"
    assert caches.environment(offline) == caches.environment(offline), "and these two are constants"
