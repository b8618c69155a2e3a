"""Adds a model's facts to the catalogue, from the hub or from a folder. The only part of the planning that asks a hub.

What is written is the model's own config.json and the bytes of its safetensors; from then on no preview needs the
network.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars

from planner.models import ModelFacts, from_config

TARGET = Path(__file__).resolve().parents[1] / "planner" / "data" / "models"
CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
TOKENIZER = "tokenizer_config.json"
TEMPLATES = ("chat_template.jinja", "chat_template.json")
TIMEOUT_SECONDS = 30
_NOT_FACTS = frozenset({"_name_or_path", "_commit_hash", "auto_map", "id2label", "label2id", "transformers_version"})
"""Keys of a config.json that say nothing of the layout and can be long."""


class CatalogueError(Exception):
    """A model's facts cannot be had; the message says why and what helps."""


@dataclass(frozen=True)
class Source:
    """A model's files: names with sizes in bytes, and the content of the small ones that are there.

    ``gated`` says that the hub wants a token and an accepted licence; of a folder nobody knows.
    """

    revision: str | None
    gated: bool
    sizes: Mapping[str, int]
    documents: Mapping[str, Any]


def entry_of(model: str, source: Source) -> dict[str, Any]:
    """What the catalogue holds of a model: one file of ``planner/data/models``.

    Raises:
        CatalogueError: no config.json, no safetensors, or a layout that nothing can be computed of.
    """
    config = source.documents.get(CONFIG)
    if not isinstance(config, dict):
        raise CatalogueError(f"{model} has no {CONFIG}: it is no model that vLLM serves by its name")
    weight_bytes, origin = _weights(model, source)
    entry = {
        "id": model,
        **({"revision": source.revision} if source.revision else {}),
        "chatTemplate": _has_chat_template(source),
        "gated": source.gated,
        "weightBytes": weight_bytes,
        "estimated": False,
        "source": origin,
        "config": {key: value for key, value in config.items() if key not in _NOT_FACTS},
    }
    facts_of(entry)
    return entry


def facts_of(entry: Mapping[str, Any]) -> ModelFacts:
    """What the planner reads from an entry.

    Raises:
        CatalogueError: the config lacks a size without which nothing can be computed.
    """
    try:
        return from_config(
            entry["id"],
            entry["config"],
            entry["weightBytes"],
            revision=entry.get("revision"),
            chat_template=entry["chatTemplate"],
            gated=entry["gated"],
            source=entry["source"],
            estimated=entry["estimated"],
        )
    except (KeyError, TypeError) as error:
        raise CatalogueError(
            f"the {CONFIG} of {entry['id']} lacks {error}: it is no text-generation model, or of a layout that the "
            "planner does not know"
        ) from None


def write(entry: Mapping[str, Any], target: Path = TARGET) -> Path:
    """Write an entry beside the others and return its file."""
    file = target / f"{entry['id'].replace('/', '--')}.json"
    file.write_text(json.dumps(entry, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return file


def from_folder(folder: Path, revision: str | None = None) -> Source:
    """The files of a model in a folder, as `git clone` or a download leaves them.

    Raises:
        CatalogueError: no such folder, or a file in it that is no JSON.
    """
    if not folder.is_dir():
        raise CatalogueError(f"{folder} is no folder")
    sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir()) if file.is_file()}
    documents = {name: _read(folder / name) for name in (CONFIG, INDEX, TOKENIZER) if name in sizes}
    return Source(revision, gated=False, sizes=sizes, documents=documents)


def from_hub(model: str, revision: str | None = None) -> Source:
    """The description of a model on the hub that HF_ENDPOINT names, and its small files; never its weights.

    Raises:
        CatalogueError: not found, gated, not reachable, or refused; the message says what helps.
    """
    endpoint = os.environ.get("HF_ENDPOINT")
    disable_progress_bars()
    with explained(model, revision):
        info = HfApi(endpoint=endpoint).model_info(
            model, revision=revision, files_metadata=True, timeout=TIMEOUT_SECONDS
        )
        sizes = {one.rfilename: one.size or 0 for one in info.siblings or () if "/" not in one.rfilename}
        with tempfile.TemporaryDirectory() as folder:
            documents = {
                name: _read(Path(hf_hub_download(model, name, revision=info.sha, local_dir=folder, endpoint=endpoint)))
                for name in (CONFIG, INDEX, TOKENIZER)
                if name in sizes
            }
    return Source(info.sha, gated=bool(info.gated), sizes=sizes, documents=documents)


def commit_of(model: str, revision: str | None = None) -> str:
    """The commit that a branch or tag of a model is now; of its main branch when ``revision`` is None.

    Raises:
        CatalogueError: not found, not reachable, or refused.
    """
    with explained(model, revision):
        info = HfApi(endpoint=os.environ.get("HF_ENDPOINT")).model_info(
            model, revision=revision, timeout=TIMEOUT_SECONDS
        )
    if info.sha is None:
        raise CatalogueError(f"the hub does not say which commit {model} is")
    return info.sha


@contextmanager
def explained(model: str, revision: str | None) -> Iterator[None]:
    """Turn what the hub's library raises into one sentence with the way out."""
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        yield
    except GatedRepoError:
        raise CatalogueError(
            f"{model} is gated: accept its licence on {hub}/{model} and set HF_TOKEN to a token of that account"
        ) from None
    except RevisionNotFoundError:
        raise CatalogueError(
            f"{model} has no revision {revision!r}: a commit, branch or tag of {hub}/{model}"
        ) from None
    except RepositoryNotFoundError:
        raise CatalogueError(
            f"{model} is not on {hub}: check the spelling; a private one needs HF_TOKEN with access to it"
        ) from None
    except HFValidationError as error:
        raise CatalogueError(f"{model!r} is no name of a model, ORG/NAME: {error}") from None
    except OfflineModeIsEnabled:
        raise CatalogueError(f"HF_HUB_OFFLINE is set: unset it, or {_FOLDER}") from None
    except LocalEntryNotFoundError:
        raise CatalogueError(f"{hub} cannot be reached: check network and proxy, or {_FOLDER}") from None
    except EntryNotFoundError as error:
        raise CatalogueError(f"{model}: a file that its description names is not there: {_first_line(error)}") from None
    except HfHubHTTPError as error:
        raise CatalogueError(f"{hub} answers: {_first_line(error)}") from None
    except (_HTTP_ERROR, OSError) as error:
        raise CatalogueError(f"{hub} cannot be reached ({_first_line(error)}): check network, or {_FOLDER}") from None


_HTTP_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
"""What the hub's own HTTP client raises, whichever client that is in this version of the library."""

_FOLDER = "give a downloaded copy with --folder"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _weights(model: str, source: Source) -> tuple[int, str]:
    """Bytes of the weights and where they are from: the index, else the sizes of the files that vLLM would load."""
    index = source.documents.get(INDEX)
    total = index.get("metadata", {}).get("total_size") if isinstance(index, dict) else None
    if total:
        return int(total), "config.json and safetensors index of the model"
    files = {name: size for name, size in source.sizes.items() if name.endswith(".safetensors")}
    # Mistral publishes the same weights twice, and one copy is loaded (vllm/model_executor/model_loader).
    chosen = {name: size for name, size in files.items() if not name.startswith("consolidated")} or files
    if not chosen:
        raise CatalogueError(
            f"{model} has no safetensors: its weights' bytes are not known; a copy converted to safetensors is needed"
        )
    return sum(chosen.values()), "config.json and sizes of the safetensors files of the model"


def _has_chat_template(source: Source) -> bool:
    tokenizer = source.documents.get(TOKENIZER)
    inside = isinstance(tokenizer, dict) and bool(tokenizer.get("chat_template"))
    return inside or any(name in source.sizes for name in TEMPLATES)


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CatalogueError(f"{file.name} is no JSON: {error}") from None
