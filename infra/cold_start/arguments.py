"""Did the settings arrive? What the server logs as its arguments, beside the command that was rendered."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planner.arguments import parse
from planner.releases import Release

_IGNORED = frozenset({"model_tag", "api_key", "hf_token", "config", "subparser", "dispatch_function"})
"""The model once more, secrets, and what the command line itself needs."""
_OPEN, _CLOSE = "([{", ")]}"
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(?P<labels>.*)\}", re.MULTILINE)


@dataclass(frozen=True)
class Difference:
    """One argument: what was rendered and what the server says (None: not given there)."""

    name: str
    rendered: str | None
    logged: str | None


def read_arguments(text: str) -> dict[str, Any]:
    """`non-default args: {…}` as values; one that is no literal, such as a config object, stays text."""
    return {str(_literal(key)): _literal(value) for key, value in _pairs(text)}


def differences(argv: tuple[str, ...], release: Release, logged: str) -> tuple[Difference, ...]:
    """Arguments that differ between the rendered command and the log.

    A rendered value that is the release's default is not logged, which is no difference. A JSON argument is compared
    key by key: vLLM fills in the others. A config object that the log prints in another form is not compared.
    """
    rendered = {name.lstrip("-").replace("-", "_"): value for name, value in parse(argv, release).items()}
    there = {name: value for name, value in read_arguments(logged).items() if name not in _IGNORED}
    defaults = {flag.name.lstrip("-").replace("-", "_"): flag.default for flag in release.flags.values()}
    found = []
    for name, value in rendered.items():
        if name in _IGNORED or (name not in there and _same(value, defaults.get(name))):
            continue
        if name not in there or not _same(value, there[name]):
            found.append(Difference(name, repr(value), repr(there[name]) if name in there else None))
    found += [Difference(name, None, repr(value)) for name, value in there.items() if name not in rendered]
    return tuple(found)


def cache_config(metrics: str) -> dict[str, str]:
    """The labels of `vllm:cache_config_info`, whose value is always 1; empty without it."""
    found = _CACHE_CONFIG.search(metrics)
    return dict(_LABEL.findall(found["labels"])) if found else {}


def kv_tokens_of(config: Mapping[str, str]) -> int | None:
    """Tokens of the KV cache: block size x blocks; None when a label is not there or no number."""
    size, blocks = config.get("block_size", ""), config.get("num_gpu_blocks", "")
    return int(size) * int(blocks) if size.isdigit() and blocks.isdigit() else None


def _same(rendered: Any, logged: Any) -> bool:
    if isinstance(rendered, dict):
        # A dict of the log may itself hold objects; a text is another form of the same and says nothing.
        return isinstance(logged, str) or (
            isinstance(logged, dict) and all(_same(value, logged.get(key)) for key, value in rendered.items())
        )
    if isinstance(rendered, list | tuple) or isinstance(logged, list | tuple):
        return _as_list(rendered) == _as_list(logged)
    if isinstance(rendered, int | float) and isinstance(logged, int | float):
        return float(rendered) == float(logged)
    return str(rendered) == str(logged)


def _as_list(value: Any) -> list[str]:
    return [str(item) for item in (value if isinstance(value, list | tuple) else [value])]


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """The keys and values of a dict as Python prints it, each as text."""
    for item in _split(text.strip()[1:-1], ","):
        parts = list(_split(item, ":"))
        if len(parts) > 1:
            yield parts[0].strip(), ":".join(parts[1:]).strip()


def _split(text: str, separator: str) -> Iterator[str]:
    """Split at a separator outside quotes and brackets."""
    depth, quote, begin, escaped = 0, "", 0, False
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote and not escaped else quote
            escaped = letter == "\\" and not escaped
        elif letter in "'\"":
            quote = letter
        elif letter in _OPEN:
            depth += 1
        elif letter in _CLOSE:
            depth -= 1
        elif letter == separator and depth == 0:
            yield text[begin:place]
            begin = place + 1
    if text[begin:].strip():
        yield text[begin:]
