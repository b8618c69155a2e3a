"""vLLM releases: what is certain of each, and what is not."""

from __future__ import annotations

import pytest

from planner.releases import (
    Release,
    UnknownReleaseError,
    environment_status,
    flag_status,
    known_releases,
    release_at,
    release_of,
)
from planner.spec import ImageSpec


def release(tag: str, number: str | None = None) -> Release:
    return release_of(ImageSpec(tag=tag, release=number))


@pytest.mark.parametrize(
    ("tag", "version", "exact", "cuda"),
    [
        ("v0.31.0", "0.31.0", True, "13.0.3"),
        ("0.11.0", "0.11.0", True, "12.8.1"),
        ("v0.19.1", "0.19.1", True, "12.9.1"),
        ("v0.20.2", "0.20.2", False, "13.0"),
        ("v0.20.2-cu129", "0.20.2", False, "12.9"),
        ("v0.26.0-x86_64", "0.26.0", False, "13.0"),
        ("v0.33.1", "0.33.1", False, "13.0"),
    ],
)
def test_a_tag_says_the_release_and_the_cuda_family(tag: str, version: str, exact: bool, cuda: str) -> None:
    found = release(tag)
    assert (found.version, found.exact) == (version, exact), "only four releases have a table"
    assert found.cuda == cuda, "the driver that a node needs follows from it"


@pytest.mark.parametrize("tag", ["latest", "nightly", "v0.31", "main-abc", "v0.31.0rc1"])
def test_a_tag_without_a_release_is_refused_and_a_stated_release_is_not(tag: str) -> None:
    with pytest.raises(UnknownReleaseError, match=r"image\.release"):
        release(tag)
    assert release(tag, "0.31.0").version == "0.31.0", "a team's own image says its release itself"


@pytest.mark.parametrize("tag", ["v0.10.2", "v0.34.0", "v1.0.0", "v0.9.0"])
def test_a_release_outside_the_tables_is_refused_with_what_is_known(tag: str) -> None:
    with pytest.raises(UnknownReleaseError, match=r"0\.11\.0 to 0\.33\.0"):
        release(tag)


def test_the_known_releases_come_in_order() -> None:
    assert known_releases() == ("0.11.0", "0.19.1", "0.31.0", "0.33.0"), "as versions, not as text"


@pytest.mark.parametrize(
    ("tag", "flag", "status", "words"),
    [
        ("v0.31.0", "--cuda-graph-sizes", "renamed", "--cudagraph-capture-sizes"),
        ("v0.11.0", "--cuda-graph-sizes", "known", ""),
        ("v0.13.0", "--cuda-graph-sizes", "renamed", "--cudagraph-capture-sizes"),
        ("v0.12.0", "--cuda-graph-sizes", "uncertain", "0.11.0"),
        ("v0.13.0", "--cudagraph-capture-sizes", "known", ""),
        ("v0.11.0", "--cudagraph-capture-sizes", "unknown", "--cuda-graph-sizes"),
        ("v0.11.0", "--disable-log-requests", "known", ""),
        ("v0.19.0", "--disable-log-requests", "removed", "--no-enable-log-requests"),
        ("v0.31.0", "--disable-log-requests", "removed", "drop it"),
        ("v0.32.0", "--disable-log-requests", "uncertain", "0.33.0"),
        ("v0.33.0", "--disable-log-requests", "known", ""),
        ("v0.19.1", "--max-num-queued-reqs", "unknown", "0.31.0 is the first"),
        ("v0.26.0", "--max-num-queued-reqs", "uncertain", "0.31.0"),
        ("v0.31.0", "--max-num-queued-reqs", "known", ""),
        ("v0.31.0", "--enable-metrics", "unknown", ""),
        ("v0.31.0", "--max-model-length", "unknown", "--max-model-len"),
        ("v0.31.0", "--gpu-mem", "unknown", "write --gpu-memory-utilization"),
        ("v0.31.0", "--no-enable-prefix-caching", "known", ""),
        ("v0.31.0", "-tp", "known", ""),
        ("v0.11.0", "-cc", "unknown", "0.19.1"),
        ("v0.31.0", "--swap-space", "removed", "--kv-offloading-size"),
        ("v0.31.0", "--guided-decoding-backend", "renamed", "engine.structuredOutputsConfig"),
    ],
)
def test_status_and_remedy_of_a_flag(tag: str, flag: str, status: str, words: str) -> None:
    found = flag_status(release(tag), flag)
    assert found.status == status, f"{flag} at {tag}: {found.remedy}"
    assert words in found.remedy, "the remedy says what to write instead"
    assert found.status == "known" or found.source, "a refusal says where the knowledge is from"


@pytest.mark.parametrize(("version", "lower", "upper"), [("0.12.0", 0, 1), ("0.26.0", 1, 2), ("0.32.0", 2, 3)])
def test_between_two_tables_only_what_both_have_is_certain(version: str, lower: int, upper: int) -> None:
    old, new = release_at(known_releases()[lower]), release_at(known_releases()[upper])
    between = release_at(version)
    both = old.flags.keys() & new.flags.keys()
    assert both <= between.flags.keys(), "a flag on both sides was there all along"
    for name in (old.flags.keys() ^ new.flags.keys()) - between.flags.keys():
        assert flag_status(between, name).status != "known", f"{name} is on one side only"
    for name in old.environment ^ new.environment:
        assert environment_status(between, name).status == "uncertain", f"{name} is read on one side only"


def test_a_default_that_differs_on_both_sides_is_not_known() -> None:
    assert not release("v0.26.0").flags["--gpu-memory-utilization"].default_known, "0.9 became 0.92 somewhere between"
    assert release("v0.12.0").flags["--gpu-memory-utilization"].default_known, "0.9 on both sides"


@pytest.mark.parametrize(
    ("tag", "runner", "estimated"),
    [
        ("v0.11.0", "V1", False),
        ("v0.19.1", "V1", False),
        ("v0.22.0", "V1", True),
        ("v0.26.0", "V2", False),
        ("v0.31.0", "V2", False),
    ],
)
def test_the_model_runner_is_known_or_said_to_be_estimated(tag: str, runner: str, estimated: bool) -> None:
    found = release(tag)
    assert (found.model_runner, found.model_runner_estimated) == (runner, estimated), "memory depends on it"


def test_the_size_of_an_image_is_measured_stated_or_estimated() -> None:
    measured = release("v0.11.0")
    assert (measured.image_bytes, measured.image_bytes_estimated) == (12_454_045_526, False), "its pull said so"
    assert release("v0.31.0").image_bytes_estimated, "nobody measured it"
    stated = release_of(ImageSpec(tag="v0.31.0", sizeBytes=9_000_000_000))
    assert (stated.image_bytes, stated.image_bytes_estimated) == (9_000_000_000, False), "the stack states it"


@pytest.mark.parametrize(
    ("tag", "name", "status"),
    [
        ("v0.11.0", "VLLM_ATTENTION_BACKEND", "known"),
        ("v0.31.0", "VLLM_ATTENTION_BACKEND", "removed"),
        ("v0.12.0", "VLLM_ATTENTION_BACKEND", "uncertain"),
        ("v0.31.0", "VLLM_LOGING_LEVEL", "unknown"),
        ("v0.31.0", "VLLM_LOGGING_LEVEL", "known"),
    ],
)
def test_status_of_an_environment_variable(tag: str, name: str, status: str) -> None:
    found = environment_status(release(tag), name)
    assert found.status == status, found.remedy
    assert status == "known" or found.remedy, "who reads it learns what to do"
