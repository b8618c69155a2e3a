"""Which compile caches lie beside each other, how large they are, and which one a start used."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from infra.cold_start import CacheKey, gather, keys_of
from infra.cold_start.cache_keys import COMMAND
from infra.cold_start.log import read_log
from infra.diagnosis import Unread
from tests.infra.cold_start.test_evidence import Cluster, pod_of, replica_set

AOT, TRACED, OLD = "a" * 64, "0123456789", "fedcba9876"


@pytest.fixture
def caches(tmp_path: Path) -> Path:
    """A VLLM_CACHE_ROOT after two releases."""
    files = {
        f"{TRACED}/rank_0_0/backbone/computation_graph.py": 10_000,
        f"{OLD}/rank_0_0/backbone/vllm_compile_cache.py": 300_000,
        f"torch_aot_compile/{AOT}/rank_0_0/model": 90_000,
        f"torch_aot_compile/{AOT}/inductor_cache/x/y.so": 60_000,
    }
    for name, size in files.items():
        file = tmp_path / "torch_compile_cache" / name
        file.parent.mkdir(parents=True)
        file.write_bytes(b"x" * size)
    return tmp_path


def listing(caches: Path) -> str:
    """What the container prints."""
    environment = {"PATH": os.environ["PATH"], "VLLM_CACHE_ROOT": str(caches)}
    return subprocess.run(COMMAND, env=environment, capture_output=True, text=True, check=True).stdout


def test_each_key_is_listed_with_what_it_takes(caches: Path) -> None:
    log = read_log(f"saved AOT compiled function to /c/torch_compile_cache/torch_aot_compile/{AOT}/m")
    found = keys_of(listing(caches), log)
    assert [key.name for key in found] == [OLD, AOT, TRACED], "the largest first"
    sizes = {key.name: key.kibibytes for key in found}
    assert 290 <= sizes[OLD] <= 340, "of the whole folder"
    assert 145 <= sizes[AOT] <= 190, "the compiled model and Inductor's files beside it"
    assert [key.name for key in found if key.used] == [AOT], "the one that the log names"


@pytest.mark.parametrize(
    ("said", "used"),
    [
        (
            f"Using cache directory: /c/torch_compile_cache/{TRACED}/r/backbone for vLLM's torch.compile",
            {TRACED},
        ),
        (
            f"Directly load AOT compilation from path /c/torch_compile_cache/torch_aot_compile/{AOT}/rank_0_0/model",
            {AOT},
        ),
        ("Using cache directory: /elsewhere/backbone for vLLM's torch.compile", set()),
        ("", set()),
    ],
)
def test_the_key_of_a_start_is_the_one_that_its_log_names(caches: Path, said: str, used: set[str]) -> None:
    found = keys_of(listing(caches), read_log(said))
    assert {key.name for key in found if key.used} == used, "the others are of other settings"
    assert len(found) == 3, "all are listed"


def test_a_folder_that_is_not_there_has_no_keys(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "VLLM_CACHE_ROOT": str(tmp_path)}
    answer = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, check=False)
    assert keys_of(answer.stdout, read_log("")) == (), "an eager server compiles nothing"


def test_a_cluster_in_which_no_command_may_be_run_is_measured_all_the_same() -> None:
    cluster = Cluster(pods=[pod_of("new", "qwen-0-new-1")], replicasets=[replica_set("new", 1)])

    def refused(pod: str) -> str:
        raise Unread(f"no command can be run in pod {pod}: Forbidden")

    found = gather(cluster, "vllm", "qwen", 0, refused)
    assert found.log is not None, "the log is there"
    assert found.compile_cache is None, "unknown is not none"
    assert any("compile caches: no command can be run in pod qwen-0-new-1" in each for each in found.unread)
    listed = gather(cluster, "vllm", "qwen", 0, lambda pod: f"12\t/c/{pod}/torch_compile_cache/{TRACED}\n")
    assert keys_of(listed.compile_cache or "", read_log("")) == (CacheKey(TRACED, 12, used=False),), "allowed: listed"
