"""A model small enough to be made here: Qwen2 with two layers, random weights and a tokenizer that works.

Its files are the same bytes on every machine, because nothing but the standard library and integer arithmetic
makes them; so its revision can be pinned like that of a model of the hub. What it says has no meaning.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

MODEL_ID = "pulumi-vllm/tiny-random-qwen2"
WEIGHTS = "model.safetensors"
SEED = 20_260_101

HIDDEN, LAYERS = 128, 2
# Wide, so that the weights are some pieces of the 10 MB in which huggingface_hub writes (constants.py,
# DOWNLOAD_CHUNK_SIZE): a download that is ended half-way then leaves half a file.
INTERMEDIATE = 16_384
# vLLM's attention on processors takes heads of 64 numbers (v1/attention/backends/cpu_attn.py, supported sizes).
HEADS, KV_HEADS, HEAD_SIZE = 2, 1, 64
POSITIONS = 4096
MERGES = 192
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

SENTENCES = (
    "A deployment is ready when every replica answers its health check.",
    "The scheduler places a pod on a node that has what the pod asks for.",
    "A server that keeps its weights on a volume starts faster than one that downloads them.",
    "What is the capital of France? The capital of France is Paris.",
    "Please write one short sentence about the weather in the mountains.",
    "The cache holds the keys and the values of every token that was read before.",
    "You are a helpful assistant. Answer the question of the user in a few words.",
)
_WORD = re.compile(r" ?\w+| ?[^\w\s]+")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class ModelFiles:
    """The model in Hugging Face's cache layout: ``home`` is what ``HF_HOME`` must be."""

    home: Path
    revision: str
    """The commit, 40 hexadecimal digits: what ``--revision`` takes."""
    weight_bytes: int
    """The size of the safetensors file."""

    @property
    def repository(self) -> Path:
        """The model's folder in the cache, with ``refs``, ``blobs`` and ``snapshots``."""
        return self.home / "hub" / f"models--{MODEL_ID.replace('/', '--')}"

    @property
    def snapshot(self) -> Path:
        """The folder with the files under their own names."""
        return self.repository / "snapshots" / self.revision


def tiny_model(home: Path) -> ModelFiles:
    """Write the model under ``home/hub`` as huggingface_hub would have downloaded it; what is there is left alone."""
    contents = model_contents()
    revision = revision_of(contents)
    files = ModelFiles(home, revision, len(contents[WEIGHTS]))
    for name, content in contents.items():
        blob = files.repository / "blobs" / blob_name(name, content)
        _write_once(blob, content)
        entry = files.snapshot / name
        entry.parent.mkdir(parents=True, exist_ok=True)
        if not entry.is_symlink():
            entry.symlink_to(Path("../../blobs") / blob.name)
    _write_once(files.repository / "refs" / "main", revision.encode())
    return files


def _write_once(path: Path, content: bytes) -> None:
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.incomplete")
    partial.write_bytes(content)
    partial.replace(path)


def is_large(name: str) -> bool:
    """Whether the hub keeps the file in its large-file storage, where its name is its sha256."""
    return name.endswith(".safetensors")


def blob_name(name: str, content: bytes) -> str:
    """The name of a file's content in the cache: its ETag on the hub (sha256 of a large file, else git's hash)."""
    return hashlib.sha256(content).hexdigest() if is_large(name) else git_hash(content)


def git_hash(content: bytes) -> str:
    """The hash that git gives a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def revision_of(contents: Mapping[str, bytes]) -> str:
    """A commit that changes with any file: the hash of names and contents."""
    listing = "".join(f"{name} {blob_name(name, contents[name])}\n" for name in sorted(contents))
    return hashlib.sha1(listing.encode(), usedforsecurity=False).hexdigest()


@cache
def model_contents() -> Mapping[str, bytes]:
    """Every file of the model: name → content."""
    vocabulary, merges = byte_pair_encoding(SENTENCES, MERGES)
    special = {token: len(vocabulary) + position for position, token in enumerate(SPECIAL_TOKENS)}
    size = len(vocabulary) + len(special)
    contents = {
        "config.json": _document(_config(size, special)),
        "generation_config.json": _document(_generation_config(special)),
        "tokenizer.json": _document(_tokenizer(vocabulary, merges, special)),
        "tokenizer_config.json": _document(_tokenizer_config(special)),
        WEIGHTS: safetensors(tensor_shapes(size)),
    }
    return MappingProxyType(contents)


def _document(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=True) + "\n").encode()


def _config(vocabulary_size: int, special: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": vocabulary_size,
        "max_position_embeddings": POSITIONS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "initializer_range": 0.02,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "use_cache": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": special["<|endoftext|>"],
        "eos_token_id": special["<|im_end|>"],
    }


def _generation_config(special: dict[str, int]) -> dict[str, Any]:
    return {
        "bos_token_id": special["<|endoftext|>"],
        "pad_token_id": special["<|endoftext|>"],
        "eos_token_id": [special["<|im_end|>"], special["<|endoftext|>"]],
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.8,
    }


def _tokenizer_config(special: dict[str, int]) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {str(number): _added_token(token) for token, number in special.items()},
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": POSITIONS,
    }


def _added_token(token: str) -> dict[str, Any]:
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": token, **flags, "special": True}


def _tokenizer(vocabulary: dict[str, int], merges: list[tuple[str, str]], special: dict[str, int]) -> dict[str, Any]:
    """``tokenizer.json``: byte-level pair encoding as GPT-2 and Qwen2 use it."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, **_added_token(token)} for token, number in special.items()],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocabulary,
            "merges": [list(pair) for pair in merges],
        },
    }


def byte_characters() -> dict[int, str]:
    """The printable character that stands for each byte (GPT-2's encoder.py, ``bytes_to_unicode``)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}


def byte_pair_encoding(sentences: tuple[str, ...], merges: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Train a vocabulary (token → number): the 256 bytes, then ``merges`` times the most frequent pair, joined.

    Ties are broken by the pair itself, so that the result depends on the sentences alone.
    """
    characters = byte_characters()
    words = Counter(
        tuple(characters[byte] for byte in word.encode()) for sentence in sentences for word in _WORD.findall(sentence)
    )
    vocabulary = {characters[byte]: byte for byte in range(256)}
    chosen: list[tuple[str, str]] = []
    for _ in range(merges):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        pair = min(pairs, key=lambda candidate: (-pairs[candidate], candidate))
        chosen.append(pair)
        vocabulary["".join(pair)] = len(vocabulary)
        words = Counter({_joined(word, pair): count for word, count in words.items()})
    return vocabulary, chosen


def _joined(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    """``word`` with each occurrence of ``pair`` made one token."""
    joined: list[str] = []
    for token in word:
        if joined and (joined[-1], token) == pair:
            joined[-1] += token
        else:
            joined.append(token)
    return tuple(joined)


def tensor_shapes(vocabulary_size: int) -> dict[str, tuple[int, ...]]:
    """The tensors of ``Qwen2ForCausalLM`` with tied embeddings: name → shape."""
    queries, keys = HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary_size, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (HIDDEN,),
            f"{prefix}.self_attn.q_proj.weight": (queries, HIDDEN),
            f"{prefix}.self_attn.q_proj.bias": (queries,),
            f"{prefix}.self_attn.k_proj.weight": (keys, HIDDEN),
            f"{prefix}.self_attn.k_proj.bias": (keys,),
            f"{prefix}.self_attn.v_proj.weight": (keys, HIDDEN),
            f"{prefix}.self_attn.v_proj.bias": (keys,),
            f"{prefix}.self_attn.o_proj.weight": (HIDDEN, queries),
            f"{prefix}.post_attention_layernorm.weight": (HIDDEN,),
            f"{prefix}.mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        }
    return shapes | {"model.norm.weight": (HIDDEN,)}


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def safetensors(shapes: dict[str, tuple[int, ...]]) -> bytes:
    """A safetensors file of random bfloat16 tensors.

    Format: 8 bytes of length, a JSON header padded with blanks to a multiple of 8, then the tensors
    (https://github.com/huggingface/safetensors, "Format").
    """
    generator = random.Random(SEED)  # noqa: S311 - the same noise everywhere is what is wanted
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = bytearray()
    for name, shape in shapes.items():
        start = len(body)
        body += _norm(shape) if name.endswith("norm.weight") else _noise(generator, shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, len(body)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(body)


def _norm(shape: tuple[int, ...]) -> bytes:
    """Ones: the two high bytes of the float32 are the bfloat16."""
    return struct.pack("<f", 1.0)[2:] * _elements(shape)


def _noise(generator: random.Random, shape: tuple[int, ...]) -> bytes:
    """Uniform numbers between -1/16 and 1/16, each a multiple of 2**-11: exact in bfloat16's eight digits."""
    noise = generator.randbytes(_elements(shape))
    halves = bytearray(2 * len(noise))
    halves[0::2], halves[1::2] = noise.translate(_LOW_BYTES), noise.translate(_HIGH_BYTES)
    return bytes(halves)


_FLOATS = [struct.pack("<f", (byte - 128) / 2048) for byte in range(256)]
_LOW_BYTES, _HIGH_BYTES = (bytes(float_[place] for float_ in _FLOATS) for place in (2, 3))
