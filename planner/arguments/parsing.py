"""What a release's parser reads back from a command."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

from planner.arguments.names import OPTIMIZATION, OPTION, dashed
from planner.releases import Flag, Release, release_at

UNSET = ("", "None")
"""Values that a flag with ``none_ok`` takes for no value at all (vllm/engine/arg_utils.py: optional_type)."""
_HUMAN = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[kKmMgGtT])")
_HUMAN_FACTORS = {name: 1000**power for power, name in enumerate("kmgt", start=1)} | {
    name: 1024**power for power, name in enumerate("KMGT", start=1)
}


class ArgumentsError(ValueError):
    """The release's parser does not take the arguments."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ArgumentsError(message)


def parse(argv: tuple[str, ...], release: Release) -> dict[str, Any]:
    """What `vllm serve` of this release reads from a command, by canonical flag name, and the model as ``model``.

    Only what is given is in the result. Values are converted as vLLM's parser converts them: numbers, JSON, lists.

    Raises:
        ArgumentsError: the parser would refuse the command; the message is argparse's.
    """
    if argv[:2] != ("vllm", "serve"):
        raise ArgumentsError("the command does not start with `vllm serve`")
    return vars(_parser(release.version).parse_args(_plain([dashed(word) for word in argv[2:]])))


@cache
def _parser(version: str) -> _Parser:
    release = release_at(version)
    parser = _Parser(prog="vllm serve", allow_abbrev=False, add_help=False)
    parser.add_argument("model")
    for flag in {flag.name: flag for flag in (*release.uncertain.values(), *release.flags.values())}.values():
        _add(parser, flag)
    return parser


def _plain(words: list[str]) -> list[str]:
    """The words without the two forms that vLLM's parser rewrites before argparse sees them.

    `--flag.key value` becomes one JSON object behind everything else, `-O2` becomes `--optimization-level 2`.
    """
    plain: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    rest = iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        name, dot, keys = option.partition(".")
        level = OPTIMIZATION.fullmatch(word)
        if level is not None:
            plain += ["--optimization-level", level["level"]]
        elif dot and OPTION.match(word):
            _place(objects.setdefault(name, {}), keys, value if equals else next(rest, ""))
        else:
            plain.append(word)
    return plain + [each for name, content in objects.items() for each in (name, json.dumps(content))]


def _place(content: dict[str, Any], keys: str, text: str) -> None:
    *outer, last = keys.split(".")
    for key in outer:
        content = content.setdefault(key, {})
    if last.endswith("+"):
        content[last[:-1]] = text.split(",")
        return
    try:
        content[last] = json.loads(text)
    except ValueError:
        content[last] = text


def _add(parser: argparse.ArgumentParser, flag: Flag) -> None:
    options: dict[str, Any] = {"dest": flag.name, "default": argparse.SUPPRESS}
    if flag.kind == "flag":
        parser.add_argument(flag.name, *flag.aliases, action="store_true", **options)
        if flag.negations:
            parser.add_argument(*flag.negations, action="store_false", **options)
        return
    options |= {"action": "append"} if flag.repeatable else {"nargs": flag.nargs}
    parser.add_argument(flag.name, *flag.aliases, type=_converter(flag), **options)


def _converter(flag: Flag) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return read_value(flag, text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def read_value(flag: Flag, text: str) -> Any:
    """One value as vLLM's parser reads it.

    Raises:
        ValueError: it is no value of this flag; the message says why.
    """
    if flag.none_ok and text in UNSET:
        return None
    if flag.choices is not None and folded(flag, text) not in flag.choices:
        raise ValueError(f"{text!r} is not one of {', '.join(flag.choices)}")
    if flag.kind in ("json", "json-or-str"):
        return _read_json(flag, text)
    if flag.kind == "int":
        return _read_int(flag, text)
    return float(text) if flag.kind == "float" else text


def folded(flag: Flag, text: str) -> str:
    """The value as the parser compares it with the choices."""
    return text.lower().replace("-", "_") if flag.folds_case else text


def _read_json(flag: Flag, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        if flag.kind == "json-or-str" and not text.lstrip("'\"").startswith(("{", "[")):
            return text
        raise ValueError(f"{text!r} is no JSON") from None


def _read_int(flag: Flag, text: str) -> int:
    human = _HUMAN.fullmatch(text) if flag.human_readable else None
    if human is not None:
        factor = _HUMAN_FACTORS[human["unit"]]
        if factor % 1024 == 0 and "." in human["number"]:
            raise ValueError(f"{text!r}: a unit of 1024 takes no decimals")
        return int(float(human["number"]) * factor)
    if flag.auto_ok and text == "auto":
        return -1
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no whole number") from None
