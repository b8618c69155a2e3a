"""`vllm-infra models add`: from a double of the hub and from a folder, and what it says when it cannot."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from infra import catalogue
from infra.cli import app
from planner.models import facts, known_models
from tests.infra.doubles import COMMIT, Hub, serving

MODEL = "acme/tiny-1b"
CONFIG: dict[str, Any] = {
    "_name_or_path": "somewhere",
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
    "transformers_version": "5.0.0",
}
TOTAL = 2_471_645_608


def content(value: Any) -> bytes:
    return json.dumps(value).encode()


def indexed() -> dict[str, bytes]:
    return {
        "config.json": content(CONFIG),
        "model.safetensors.index.json": content({"metadata": {"total_size": TOTAL}, "weight_map": {}}),
        "tokenizer_config.json": content({"chat_template": "{{ messages }}"}),
    }


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    double = Hub(files=indexed(), sizes={"model-00001-of-00001.safetensors": TOTAL + 40_000})
    with serving(double):
        monkeypatch.setenv("HF_ENDPOINT", double.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield double


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "catalogue"
    folder.mkdir()
    write = catalogue.write
    monkeypatch.setattr(catalogue, "write", lambda entry: write(entry, folder))
    return folder


def add(*arguments: str) -> tuple[int, str]:
    answer = CliRunner().invoke(app, ["models", "add", *arguments])
    assert answer.exception is None or isinstance(answer.exception, SystemExit), f"no traceback: {answer.exception!r}"
    return answer.exit_code, answer.output


def written(target: Path) -> dict[str, Any]:
    (file,) = target.iterdir()
    assert file.name == "acme--tiny-1b.json", "the name that the catalogue looks for"
    document: dict[str, Any] = json.loads(file.read_text())
    return document


def test_the_hub_gives_a_whole_entry(hub: Hub, target: Path) -> None:
    code, output = add(MODEL)
    assert code == 0, output
    entry = written(target)
    assert (entry["id"], entry["revision"]) == (MODEL, COMMIT), "the facts are those of one commit"
    assert entry["weightBytes"] == TOTAL, "the index counts the tensors, a file's size also its header"
    assert entry["estimated"] is False, "nothing was guessed"
    assert entry["chatTemplate"] is True, "the tokenizer has one"
    assert entry["config"]["num_key_value_heads"] == 8, "the layout is the model's own"
    assert not {"_name_or_path", "transformers_version"} & entry["config"].keys(), "where it was made is no fact"
    assert not any("safetensors" in path and "index" not in path for path in hub.asked), "weights are not downloaded"


@pytest.mark.usefixtures("hub")
def test_an_entry_is_what_the_planner_reads(target: Path) -> None:
    add(MODEL)
    found = catalogue.facts_of(written(target))
    assert (found.layers, found.kv_heads, found.head_dim) == (16, 8, 64), "the same function reads the catalogue"


def test_a_catalogue_entry_made_again_is_the_same_model() -> None:
    for name in known_models():
        assert facts(name).id == name, "what ships has this form as well"


@pytest.mark.parametrize(
    ("files", "sizes", "weight_bytes"),
    [
        ({}, {"model.safetensors": 2_000}, 2_000),
        ({}, {"model-00001-of-00002.safetensors": 2_000, "model-00002-of-00002.safetensors": 1_000}, 3_000),
        ({}, {"model.safetensors": 2_000, "consolidated.safetensors": 2_000}, 2_000),
        ({}, {"consolidated.safetensors": 2_000}, 2_000),
        ({"model.safetensors.index.json": content({"weight_map": {}})}, {"model.safetensors": 2_000}, 2_000),
        ({}, {"model.safetensors": 2_000, "pytorch_model.bin": 2_000}, 2_000),
    ],
)
def test_without_an_index_the_files_are_counted(
    hub: Hub, target: Path, files: dict[str, bytes], sizes: dict[str, int], weight_bytes: int
) -> None:
    hub.files, hub.sizes = {"config.json": content(CONFIG), **files}, sizes
    code, output = add(MODEL)
    assert code == 0, output
    assert written(target)["weightBytes"] == weight_bytes, "each weight is counted once"
    assert "sizes" in written(target)["source"], "and the entry says where the figure is from"


@pytest.mark.parametrize(
    ("files", "there"),
    [
        ({"chat_template.jinja": b"{{ messages }}"}, True),
        ({"tokenizer_config.json": content({"chat_template": [{"name": "default", "template": "x"}]})}, True),
        ({"tokenizer_config.json": content({"model_max_length": 4096})}, False),
        ({}, False),
    ],
)
def test_a_base_model_is_told_from_one_with_a_chat_template(
    hub: Hub, target: Path, files: dict[str, bytes], there: bool
) -> None:
    hub.files = {"config.json": content(CONFIG), **files}
    hub.sizes = {"model.safetensors": 2_000}
    add(MODEL)
    assert written(target)["chatTemplate"] is there, "without one the chat endpoint fails"


def test_a_revision_is_asked_for_by_its_name(hub: Hub, target: Path) -> None:
    code, output = add(MODEL, "--revision", "v2")
    assert code == 0, output
    assert f"/api/models/{MODEL}/revision/v2" in hub.asked, "the branch that was named"
    assert written(target)["revision"] == COMMIT, "and the commit that it is"


def test_what_the_planner_cannot_compute_is_said(hub: Hub, target: Path) -> None:
    hub.files["config.json"] = content({**CONFIG, "layer_types": ["full_attention", "linear_attention"]})
    code, output = add(MODEL)
    assert code == 0, "it is a warning in every preview, not a refusal"
    assert "linear_attention" in output, output
    assert written(target)["id"] == MODEL, "the entry is there all the same"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"model": "acme/other"}, [MODEL, "is not on", "spelling"]),
        ({"answer": (404, "RevisionNotFound")}, ["no revision"]),
        ({"gated": "manual", "refuses_files": True}, ["gated", "licence", "HF_TOKEN"]),
        ({"answer": (503, "")}, ["503"]),
        ({"sizes": {"pytorch_model.bin": 2_000}, "files": {"config.json": content(CONFIG)}}, ["no safetensors"]),
        ({"files": {}, "sizes": {"model.safetensors": 2_000}}, ["no config.json"]),
        (
            {"files": {"config.json": content({"model_type": "bert"})}, "sizes": {"model.safetensors": 1}},
            ["lacks", "num_attention_heads"],
        ),
        ({"files": {"config.json": b"<html>"}, "sizes": {"model.safetensors": 1}}, ["config.json is no JSON"]),
    ],
    ids=[
        "not found",
        "no such revision",
        "gated",
        "hub is down",
        "no safetensors",
        "no config",
        "no layout",
        "no JSON",
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(hub: Hub, target: Path, wrong: dict[str, Any], said: list[str]) -> None:
    for name, value in wrong.items():
        setattr(hub, name, value)
    code, output = add(MODEL)
    assert code == 1, "nothing was added"
    assert all(text in output for text in said), f"the way out must be named: {output}"
    assert not list(target.iterdir()), "and nothing is written"


@pytest.mark.usefixtures("target")
def test_a_hub_out_of_reach_offers_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
        code, output = add(MODEL)
    assert code == 1, "nothing was added"
    assert "cannot be reached" in output, output
    assert "--folder" in output, "and there is a way without a hub"


@pytest.mark.usefixtures("target")
@pytest.mark.parametrize("name", ["tiny", "a/b/c", "/tiny"])
def test_a_name_is_org_and_name(name: str) -> None:
    code, output = add(name)
    assert code == 2, "usage"
    assert "ORG/NAME" in output, output


def folder_with(path: Path, files: dict[str, bytes]) -> Path:
    path.mkdir()
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


def test_a_folder_gives_the_same_as_the_hub(hub: Hub, target: Path, tmp_path: Path) -> None:
    add(MODEL)
    from_hub = written(target)
    hub.asked.clear()
    folder = folder_with(tmp_path / "copy", {**indexed(), "model-00001-of-00001.safetensors": b"0" * 100})
    code, output = add(MODEL, "--folder", str(folder), "--revision", COMMIT)
    assert code == 0, output
    assert written(target) == from_hub, "the files are the same"
    assert hub.asked == [], "and nobody is asked"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no config.json"),
        ({"config.json": content(CONFIG)}, "no safetensors"),
        ({"config.json": b"{", "model.safetensors": b"0"}, "config.json is no JSON"),
    ],
)
@pytest.mark.usefixtures("target")
def test_a_folder_without_a_model_is_refused(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    code, output = add(MODEL, "--folder", str(folder_with(tmp_path / "copy", files)))
    assert (code, said in output) == (1, True), output


@pytest.mark.usefixtures("target")
def test_no_folder_is_refused(tmp_path: Path) -> None:
    code, output = add(MODEL, "--folder", str(tmp_path / "nothing"))
    assert (code, "is no folder" in output) == (1, True), output
