"""Typed engine settings to the arguments of `vllm serve`, and what is wrong with the ones given.

Kubernetes hands arguments over as they are: nothing splits them at blanks, expands `$NAME` or removes quotes.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

from planner import caches
from planner.findings import Finding, Level
from planner.releases import Flag, Release, environment_status, flag_status, release_at
from planner.spec import EngineSpec, ServiceSpec

HOST = "0.0.0.0"  # noqa: S104 - probes and the Service reach the container from outside it
"""Address that the server listens on."""

TYPED: Mapping[str, tuple[str, ...]] = {
    field: (f"--{field.replace('_', '-')}",) for field in EngineSpec.model_fields if field != "extra_args"
} | {"cudagraph_capture_sizes": ("--cudagraph-capture-sizes", "--cuda-graph-sizes")}
"""Fields of EngineSpec and the flags that say them, the newest first."""

OWNED: Mapping[str, str] = {
    "--model": "model.id",
    "--served-model-name": "model.servedName",
    "--revision": "model.revision",
    "--port": "exposure.port",
    "--host": "exposure (the server listens on every address of its pod)",
    "--api-key": "the secret vllm:apiKey",
    "--hf-token": "the secret vllm:hfToken",
    "--shutdown-timeout": "stop.drainSeconds",
    "--download-dir": "cache",
} | {flag: f"engine.{EngineSpec.model_fields[field].alias}" for field, flags in TYPED.items() for flag in flags}
"""Flags that one typed field or secret says already, and which one."""

SUPERSEDED: Mapping[str, str] = {flag: field for field, flags in TYPED.items() for flag in flags[1:]}
"""Older names of a flag and the field that renders it: recipes of their release carry them."""

BACK_DOORS: Mapping[str, str] = {
    "VLLM_SERVER_DEV_MODE": "endpoints that run any method on the workers and show the whole configuration",
    "VLLM_TORCH_PROFILER_DIR": "/start_profile and /stop_profile",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "endpoints that load an adapter from any path or hub name the caller gives",
}
"""Variables that add endpoints which the API key does not guard, or which load what a caller names."""

BACK_DOOR_FLAGS: Mapping[str, str] = {
    "--profiler-config": "/start_profile and /stop_profile",
    "--enable-tokenizer-info-endpoint": "/tokenizer_info",
}
"""Flags that add endpoints which the API key does not guard."""

_UNSET = ("", "None")
"""Values that a flag with ``none_ok`` takes for no value at all (vllm/engine/arg_utils.py: optional_type)."""

_STRICT_JSON_FROM = (0, 19, 1)
"""From here on an unknown key of a JSON flag ends the process; 0.11.0 ignores it (vllm/engine/arg_utils.py)."""

_CUDA_GRAPH_SIZES = "cudagraph_capture_sizes"

_HUMAN = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[kKmMgGtT])")
_HUMAN_FACTORS = {name: 1000**power for power, name in enumerate("kmgt", start=1)} | {
    name: 1024**power for power, name in enumerate("KMGT", start=1)
}
_SHELL_VARIABLE = re.compile(r"\$(?:\w+|\{\w+\})")
_POD_VARIABLE = re.compile(r"(?<!\$)\$\((?P<name>[A-Za-z_]\w*)\)")
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|API_?KEY|ACCESS_KEY|ACCESS_KEY_ID|SECRET|SECRET_KEY|PASSWORD|PASSWD|PRIVATE_KEY|CREDENTIALS?)$"
)
_SECRET_VALUE = re.compile(r"^(?:hf_[A-Za-z0-9]{20,}|sk-[\w-]{20,}|AKIA[A-Z0-9]{16})$|://[^/@\s:]*:[^/@\s]+@")
_SETTING_VALUE = re.compile(r"(?:|\d+|true|false|yes|no|on|off)", re.IGNORECASE)
_OFF = ("", "0", "false")
_OPTION = re.compile(r"--?[A-Za-z]")
_OPTIMIZATION = re.compile(r"-O(?P<level>\d)")


def tensor_parallel_size(service: ServiceSpec) -> int:
    """GPUs that share each layer: as set, else all of the replica that no other kind of parallelism takes."""
    engine = service.engine
    if engine.tensor_parallel_size is not None:
        return engine.tensor_parallel_size
    return max(1, service.gpus // ((engine.pipeline_parallel_size or 1) * (engine.data_parallel_size or 1)))


def render(service: ServiceSpec, release: Release) -> tuple[str, ...]:
    """The whole command of the container, the image's entrypoint overridden: ``("vllm", "serve", MODEL, …)``.

    One element for each value, JSON as one compact element, nothing for a setting that is not given. `vllm serve`
    takes the model as its first argument in every release from 0.11.0 on; only the image of 0.11.0, whose entrypoint
    is the API server's module, ignores it there. Whether the result is accepted is what ``check`` says.
    """
    words = ["vllm", "serve", service.model.id, *_pair("--served-model-name", service.model.public_name)]
    if service.model.revision is not None:
        words += _pair("--revision", service.model.revision)
    words += [*_pair("--host", HOST), *_pair("--port", service.exposure.port)]
    for field, value in _settings(service, release).items():
        flag = _typed_flag(field, release)
        words += _words(flag, value) if flag is not None else ()
    timeout = release.certain("--shutdown-timeout")
    if timeout is not None and service.stop.drain_seconds != timeout.default:
        words += _pair(timeout.name, service.stop.drain_seconds)
    return (*words, *service.engine.extra_args)


def _settings(service: ServiceSpec, release: Release) -> dict[str, Any]:
    """The engine settings that are rendered, by field of EngineSpec, in the order of the fields."""
    engine = service.engine
    values = {field: getattr(engine, field) for field in TYPED}
    if values["tensor_parallel_size"] is None and tensor_parallel_size(service) > 1:
        values["tensor_parallel_size"] = tensor_parallel_size(service)
    sizes = values[_CUDA_GRAPH_SIZES]
    if sizes is not None and _typed_flag(_CUDA_GRAPH_SIZES, release) is None:
        # The key of the compilation config has this name in all tables, also while the flag was being renamed.
        values["compilation_config"] = (engine.compilation_config or {}) | {_CUDA_GRAPH_SIZES: list(sizes)}
    return {field: value for field, value in values.items() if value is not None}


def _typed_flag(field: str, release: Release) -> Flag | None:
    """The flag that says a field in this release; of a flag with two names the one that is certain."""
    names = TYPED[field]
    certain = next((flag for flag in map(release.certain, names) if flag is not None), None)
    return certain or (release.find(names[0]) if len(names) == 1 else None)


def _words(flag: Flag, value: Any) -> list[str]:
    if flag.kind == "flag":
        return [flag.name] if value else _negated(flag)
    if isinstance(value, dict):
        return _pair(flag.name, json.dumps(value, separators=(",", ":"), sort_keys=True))
    if isinstance(value, tuple):
        return [flag.name, *map(str, value)]
    return _pair(flag.name, value)


def _negated(flag: Flag) -> list[str]:
    """The spelling of false. `--no-…` is taken by every release that has a negation at all."""
    spelled = sorted(flag.negations, key=lambda each: not each.startswith("--no-"))
    return spelled[:1]


def _pair(flag: str, value: object) -> list[str]:
    """Flag and value as two elements; as one when argparse would take the value for another option."""
    text = str(value)
    return [f"{flag}={text}"] if text.startswith("-") and not isinstance(value, int) else [flag, text]


# What a release's parser reads back


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
    return vars(_parser(release.version).parse_args(_plain([_dashed(word) for word in argv[2:]])))


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
        level = _OPTIMIZATION.fullmatch(word)
        if level is not None:
            plain += ["--optimization-level", level["level"]]
        elif dot and _OPTION.match(word):
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
    if flag.none_ok and text in _UNSET:
        return None
    if flag.choices is not None and _folded(flag, text) not in flag.choices:
        raise ValueError(f"{text!r} is not one of {', '.join(flag.choices)}")
    if flag.kind in ("json", "json-or-str"):
        return _read_json(flag, text)
    if flag.kind == "int":
        return _read_int(flag, text)
    return float(text) if flag.kind == "float" else text


def _folded(flag: Flag, text: str) -> str:
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


def _dashed(word: str) -> str:
    """The word with dashes for the underscores of an option's name, as vLLM's parser reads it."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    head, dot, rest = name.partition(".")
    return f"{head.replace('_', '-')}{dot}{rest}{equals}{value}"


# What is wrong with them


def check(service: ServiceSpec, release: Release) -> tuple[Finding, ...]:
    """Everything that is wrong with the arguments and variables of a service in its release, all at once.

    Paths are relative to the service, for example ``engine.extraArgs[2]``.
    """
    variables = {**caches.environment(service.offline), **service.env}
    extra = tuple(_read_extra(service.engine.extra_args))
    return (
        *_check_typed(service, release, variables),
        *(finding for argument in extra for finding in _check_extra(argument, service.engine, release, variables)),
        *_check_duplicates(extra, release),
        *_check_together(service, extra, release),
        *_check_environment(service, extra, release),
    )


def _check_typed(service: ServiceSpec, release: Release, variables: Mapping[str, str]) -> Iterator[Finding]:
    for field in TYPED:
        value = getattr(service.engine, field)
        if value is None:
            continue
        path = f"engine.{EngineSpec.model_fields[field].alias}"
        flag = _typed_flag(field, release)
        if flag is not None:
            yield from _check_certain(path, flag, release)
            yield from _check_typed_value(path, flag, value, release, variables)
        elif field != _CUDA_GRAPH_SIZES:
            status = flag_status(release, TYPED[field][0])
            yield Finding(
                "error",
                path,
                f"vLLM {release.version} has no {TYPED[field][0]}",
                f"leave it out, or change image.tag: {status.remedy}",
                "ARG-3",
                status.source,
            )
    if service.engine.cudagraph_capture_sizes and _CUDA_GRAPH_SIZES in (service.engine.compilation_config or {}):
        yield Finding(
            "error",
            "engine.compilationConfig",
            f"{_CUDA_GRAPH_SIZES} is set here and in engine.cudagraphCaptureSizes",
            "keep engine.cudagraphCaptureSizes",
            "NAM-2",
            "vllm/config/vllm.py",
        )


def _check_certain(path: str, flag: Flag, release: Release) -> Iterator[Finding]:
    if release.certain(flag.name) is None:
        status = flag_status(release, flag.name)
        message = f"whether vLLM {release.version} has {flag.name} is not known"
        yield Finding("warn", path, message, status.remedy, "ARG-3", status.source)


def _check_typed_value(
    path: str, flag: Flag, value: Any, release: Release, variables: Mapping[str, str]
) -> Iterator[Finding]:
    if flag.kind == "flag":
        if value is False and not flag.negations and flag.default:
            yield Finding(
                "error", path, f"vLLM {release.version} cannot switch {flag.name} off", "leave it out", "ARG-3", ""
            )
        return
    if isinstance(value, dict):
        yield from _check_json_writable(path, value)
        yield from _check_json(path, flag, value, release, variables)
        return
    for each in value if isinstance(value, tuple) else (value,):
        yield from _check_value(path, flag, str(each), release, variables)


def _check_json_writable(path: str, value: dict[str, Any]) -> Iterator[Finding]:
    """YAML can say more than JSON: dates, numbers as keys, infinity."""
    try:
        kept = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError):
        kept = False
    if not kept:
        message = "holds something that JSON cannot say, such as a date, a number as a key or infinity"
        yield Finding("error", path, message, "quote it", "ARG-5", "https://www.rfc-editor.org/rfc/rfc8259")


def _check_value(path: str, flag: Flag, text: str, release: Release, variables: Mapping[str, str]) -> Iterator[Finding]:
    """One value in the words of the command line."""
    source = f"argument parser of vLLM {release.version}"
    if flag.none_ok and text in _UNSET:
        message = f"vLLM takes {text!r} for {flag.name} as no value at all"
        yield Finding("error", path, message, "leave it out", "ARG-3", "vllm/engine/arg_utils.py: optional_type")
        return
    if flag.kind in ("json", "json-or-str"):
        yield from _check_variables(path, text, variables)
    try:
        value = read_value(flag, text)
    except ValueError as error:
        remedy, rule = _value_remedy(flag, text)
        yield Finding("error", path, f"{flag.name}: {error}", remedy, rule, source)
        return
    if isinstance(value, dict):
        yield from _check_fields(path, flag, value, release)
    elif flag.kind == "json" and flag.json_fields is not None:
        yield Finding("error", path, f"{flag.name} takes a JSON object, not {text!r}", "write {…}", "ARG-5", source)
    if flag.certain_choices is not None and _folded(flag, text) not in flag.certain_choices:
        message = f"{flag.name}: whether vLLM {release.version} takes {text!r} is not known"
        yield Finding("warn", path, message, "try it before it is rolled out", "ARG-3", source)
    elif flag.suggested is not None and flag.choices is None and text not in flag.suggested:
        message = f"{flag.name}: {text!r} is none of the values that come with vLLM: {', '.join(flag.suggested)}"
        yield Finding("warn", path, message, "keep it only if a plugin adds it", "ARG-3", source)


def _value_remedy(flag: Flag, text: str) -> tuple[str, str]:
    if flag.nargs == "+" and "," in text:
        return f"write one element for each value: {', '.join([flag.name, *_parts(text)])}", "ARG-4"
    if flag.kind in ("json", "json-or-str"):
        return "write one JSON object without quotes around it: no shell removes them", "ARG-5"
    return "see `vllm serve --help` of that release", "ARG-3"


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _check_json(
    path: str, flag: Flag, value: Mapping[str, Any], release: Release, variables: Mapping[str, str]
) -> Iterator[Finding]:
    yield from _check_variables(path, json.dumps(value, default=str), variables)
    yield from _check_fields(path, flag, value, release)


def _check_fields(path: str, flag: Flag, value: Mapping[str, Any], release: Release) -> Iterator[Finding]:
    """The top-level keys of a JSON flag whose value is one of vLLM's config classes."""
    if flag.json_fields is None:
        return
    strict = release.number >= _STRICT_JSON_FROM
    source = f"argument parser of vLLM {release.version}"
    for key in sorted(map(str, value)):
        if key not in flag.json_fields:
            effect = "ends the process" if strict else "is ignored without a word"
            message = f"{flag.name} of vLLM {release.version} has no key {key!r}: it {effect}"
            known = f"known: {', '.join(sorted(flag.json_fields))}"
            yield Finding("error" if strict else "warn", path, message, known, "ARG-5", source)
        elif key in flag.uncertain_json_fields:
            message = f"whether {flag.name} of vLLM {release.version} has the key {key!r} is not known"
            yield Finding("warn", path, message, "try it before it is rolled out", "ARG-5", source)


def _check_variables(path: str, text: str, variables: Mapping[str, str]) -> Iterator[Finding]:
    source = "https://kubernetes.io/docs/tasks/inject-data-application/define-command-argument-container/"
    for found in _SHELL_VARIABLE.findall(text):
        name = found.strip("${}")
        message = f"{found} stays as it is: no shell expands it"
        yield Finding("error", path, message, f"write $({name}) and set {name} in env", "ARG-5", source)
    for name in (match["name"] for match in _POD_VARIABLE.finditer(text)):
        if name not in variables:
            message = f"$({name}) stays as it is: the container has no variable {name}"
            yield Finding("error", path, message, f"set {name} in env", "ARG-5", source)


# extraArgs


@dataclass(frozen=True)
class _Extra:
    """One option of extraArgs with what follows it. ``key`` is the part of a dotted JSON option after the dot."""

    path: str
    word: str
    name: str
    key: str
    inline: bool
    values: tuple[tuple[str, str], ...]


def _read_extra(words: tuple[str, ...]) -> Iterator[_Extra]:
    """The options with the words that follow each, as (path, word)."""
    index = 0
    while index < len(words):
        path, word = f"engine.extraArgs[{index}]", words[index]
        index += 1
        following = []
        while index < len(words) and not _OPTION.match(words[index].strip()):
            following.append((f"engine.extraArgs[{index}]", words[index]))
            index += 1
        option, equals, value = word.strip().partition("=")
        name, _, key = _dashed(option).partition(".")
        yield _Extra(path, word, name, key, bool(equals), (((path, value),) if equals else ()) + tuple(following))


def _check_extra(
    argument: _Extra, engine: EngineSpec, release: Release, variables: Mapping[str, str]
) -> Iterator[Finding]:
    yield from _check_shape(argument)
    if not _OPTION.match(argument.word.strip()) or re.search(r"\s", argument.name):
        return
    level = _OPTIMIZATION.fullmatch(argument.name)
    if level is not None:
        yield from _check_optimization(argument, level["level"], release)
        return
    flag = release.find(argument.name)
    if flag is None:
        yield from _check_absent(argument, release)
        return
    if release.certain(argument.name) is None:
        status = flag_status(release, argument.name)
        message = f"whether vLLM {release.version} has {argument.name} is not known"
        yield Finding("warn", argument.path, message, status.remedy, "ARG-3", status.source)
    owner = OWNED.get(flag.name)
    if owner is not None:
        unset = flag.name in SUPERSEDED and getattr(engine, SUPERSEDED[flag.name]) is None
        found = "is not seen by the plan of memory and start-up here" if unset else "is rendered from a setting"
        severity: Level = "warn" if unset else "error"
        source = "ai-runway/airunway#269"
        yield Finding(severity, argument.path, f"{argument.name} {found}", f"use {owner}", "NAM-2", source)
        if not unset:
            return
    yield from _check_count(argument, flag)
    yield from _check_extra_values(argument, flag, release, variables)


def _check_shape(argument: _Extra) -> Iterator[Finding]:
    source = "vllm#8273; lightspeed-core/lightspeed-stack#1014"
    word = argument.word
    if not _OPTION.match(word.strip()):
        message = f"{word!r} follows no option"
        yield Finding("error", argument.path, message, "put the option before it", "ARG-4", source)
        return
    if word != word.strip():
        message = f"{word!r} has a blank at its beginning or end, which becomes part of the argument"
        yield Finding("error", argument.path, message, f"write {word.strip()}", "ARG-4", source)
    if re.search(r"\s", argument.name):
        parts = word.split(maxsplit=1)
        message = f"{word!r} is one argument: nothing splits it at the blank"
        yield Finding("error", argument.path, message, f"write two elements: {', '.join(parts)}", "ARG-4", source)
    for path, value in argument.values:
        if value != value.strip():
            message = f"{value!r} has a blank at its beginning or end, which becomes part of the argument"
            yield Finding("error", path, message, f"write {value.strip()}", "ARG-4", source)


def _check_optimization(argument: _Extra, level: str, release: Release) -> Iterator[Finding]:
    """-O0 to -O3: the level of compilation at 0.11.0, another scale under --optimization-level from 0.19.1 on."""
    if release.certain("--optimization-level") is None and release.certain("-O") is None:
        message = f"whether -O{level} is a compilation or an optimisation level in vLLM {release.version} is not known"
        remedy = "set engine.compilationConfig, or try it before it is rolled out"
        yield Finding("warn", argument.path, message, remedy, "ARG-3", "vllm/utils/argparse_utils.py")
    elif release.certain("-O") is not None:
        remedy = f"use engine.compilationConfig: {{level: {level}}}"
        message = f"-O{level} is rendered from a setting of its own"
        yield Finding("error", argument.path, message, remedy, "NAM-2", "vllm/utils/argparse_utils.py")
    elif int(level) > 3:
        message = f"-O{level}: the levels are 0 to 3"
        yield Finding("error", argument.path, message, "use -O0 to -O3", "ARG-3", "vllm/utils/argparse_utils.py")


def _check_absent(argument: _Extra, release: Release) -> Iterator[Finding]:
    status = flag_status(release, argument.name)
    verb = {"removed": "no longer has", "renamed": "has another name for"}.get(status.status, "has no")
    message = f"vLLM {release.version} {verb} {argument.name}"
    yield Finding("error", argument.path, message, status.remedy, "ARG-3", status.source)


def _check_count(argument: _Extra, flag: Flag) -> Iterator[Finding]:
    """Whether as many values follow as the flag takes."""
    count = len(argument.values)
    path = argument.values[-1][0] if argument.values else argument.path
    if flag.kind == "flag":
        if count:
            no = f" or {_negated(flag)[0]}" if flag.negations else ""
            message = f"{argument.name} takes no value"
            yield Finding("error", path, message, f"write {flag.name}{no} alone", "ARG-4", "argparse")
    elif count == 0 and flag.nargs != "?":
        message, remedy = f"{argument.name} lacks its value", "put the value into the next element"
        yield Finding("error", path, message, remedy, "ARG-4", "argparse")
    elif count > 1 and (flag.nargs != "+" or argument.inline):
        message, remedy = f"{argument.name} takes one value, {count} follow", "remove what is too much"
        yield Finding("error", path, message, remedy, "ARG-4", "argparse")


def _check_extra_values(
    argument: _Extra, flag: Flag, release: Release, variables: Mapping[str, str]
) -> Iterator[Finding]:
    if flag.kind == "flag":
        return
    if argument.key:
        yield from _check_dotted(argument, flag, release, variables)
        return
    for path, text in argument.values:
        yield from _check_value(path, flag, text.strip(), release, variables)
        open_list = flag.nargs == "+" and flag.kind == "str" and flag.choices is None
        if open_list and "," in text and not text.lstrip().startswith("{"):
            message = f"{flag.name}: {text!r} is one value, comma included"
            remedy = f"if several are meant, write one element for each: {', '.join(_parts(text))}"
            yield Finding("warn", path, message, remedy, "ARG-4", "ai-dynamo/aiconfigurator#377")


def _check_dotted(argument: _Extra, flag: Flag, release: Release, variables: Mapping[str, str]) -> Iterator[Finding]:
    """`--flag.key value`: one part of a JSON flag."""
    key = argument.key.split(".")[0].removesuffix("+")
    if flag.kind not in ("json", "json-or-str"):
        message = f"{flag.name} has no parts: its value is no JSON"
        yield Finding("error", argument.path, message, f"write {flag.name}", "ARG-5", "vllm/utils/argparse_utils.py")
        return
    yield from _check_fields(argument.path, flag, {key: None}, release)
    for path, text in argument.values:
        yield from _check_variables(path, text, variables)


def _check_duplicates(extra: tuple[_Extra, ...], release: Release) -> Iterator[Finding]:
    seen: dict[tuple[str, str], str] = {}
    for argument in extra:
        flag = release.find(argument.name)
        if flag is None or flag.repeatable:
            continue
        place = (flag.name, argument.key)
        if place in seen:
            message = f"{argument.name} is given twice (first in {seen[place]}); only the last one counts"
            yield Finding("error", argument.path, message, "keep one", "NAM-2", "eugr/spark-vllm-docker#32")
        seen.setdefault(place, argument.path)


# Rules about several arguments


def _given(extra: tuple[_Extra, ...], release: Release) -> dict[str, tuple[_Extra, Any]]:
    """extraArgs by canonical flag name, with what each sets."""
    found: dict[str, tuple[_Extra, Any]] = {}
    for argument in extra:
        flag = release.find(argument.name)
        if flag is None or argument.key:
            continue
        if flag.kind == "flag":
            found[flag.name] = argument, argument.name not in flag.negations
        elif argument.values:
            found[flag.name] = argument, argument.values[0][1].strip()
    return found


def _check_together(service: ServiceSpec, extra: tuple[_Extra, ...], release: Release) -> Iterator[Finding]:
    given = _given(extra, release)
    yield from _check_typed_together(service)
    yield from _check_extra_together(service, given, release)
    for name, effect in BACK_DOOR_FLAGS.items():
        if name in given and given[name][1] not in (False, "{}"):
            path = given[name][0].path
            message = f"{name} adds {effect}, which no API key guards"
            yield Finding("error", path, message, "remove it", "SEC-DEV", "vllm/entrypoints/openai/api_server.py")


def _check_typed_together(service: ServiceSpec) -> Iterator[Finding]:
    engine = service.engine
    tokens, sequences, length = engine.max_num_batched_tokens, engine.max_num_seqs, engine.max_model_len
    if engine.enable_auto_tool_choice and engine.tool_call_parser is None:
        message = "the server does not start with enableAutoToolChoice and no toolCallParser"
        remedy = "set engine.toolCallParser to the parser of this model, for example hermes"
        yield Finding("error", "engine.enableAutoToolChoice", message, remedy, "ARG-3", "vllm/entrypoints")
    if tokens is not None and sequences is not None and tokens < sequences:
        message = f"maxNumBatchedTokens {tokens} is less than maxNumSeqs {sequences}"
        remedy = f"raise it to {sequences} at least, or lower maxNumSeqs"
        yield Finding("error", "engine.maxNumBatchedTokens", message, remedy, "ARG-3", "vllm/config/scheduler.py")
    if engine.enable_chunked_prefill is False and tokens is not None and length is not None and tokens < length:
        message = f"maxNumBatchedTokens {tokens} is less than maxModelLen {length}, and prompts are not split"
        remedy = f"raise it to {length} at least, or leave enableChunkedPrefill out"
        yield Finding("error", "engine.maxNumBatchedTokens", message, remedy, "ARG-3", "vllm/config/scheduler.py")


def _check_extra_together(
    service: ServiceSpec, given: Mapping[str, tuple[_Extra, Any]], release: Release
) -> Iterator[Finding]:
    def on(name: str) -> bool:
        return name in given and given[name][1] is not False

    source = f"argument parser of vLLM {release.version}"
    if on("--enable-log-outputs") and not on("--enable-log-requests"):
        message = "the server does not start with --enable-log-outputs and no --enable-log-requests"
        path = given["--enable-log-outputs"][0].path
        yield Finding("error", path, message, "add --enable-log-requests, or remove it", "ARG-3", source)
    if on("--enable-per-request-metrics") and on("--disable-log-stats"):
        message = "--enable-per-request-metrics and --disable-log-stats exclude each other"
        yield Finding("error", given["--disable-log-stats"][0].path, message, "remove one", "ARG-3", source)
    if on("--headless"):
        message = "--headless starts no HTTP server, so no probe and no client would be answered"
        yield Finding("error", given["--headless"][0].path, message, "remove it", "NAM-2", source)
    active, most = given.get("--max-num-active-seqs"), service.engine.max_num_seqs
    if active and most is not None and str(active[1]).isdigit() and int(active[1]) > most:
        message = f"--max-num-active-seqs {active[1]} is more than maxNumSeqs {most}"
        yield Finding("error", active[0].path, message, f"lower it to {most}", "ARG-3", source)
    largest, sizes = given.get("--max-cudagraph-capture-size"), service.engine.cudagraph_capture_sizes
    if largest and sizes and str(largest[1]) != str(max(sizes)):
        message = f"--max-cudagraph-capture-size {largest[1]} is not the largest of cudagraphCaptureSizes, {max(sizes)}"
        yield Finding("error", largest[0].path, message, "remove it", "ARG-3", source)


# Environment variables


def _check_environment(service: ServiceSpec, extra: tuple[_Extra, ...], release: Release) -> Iterator[Finding]:
    given = _given(extra, release)
    fatal = "--fail-on-environ-validation" in given and given["--fail-on-environ-validation"][1] is True
    for name, value in service.env.items():
        path = f"env.{name}"
        yield from _check_secret(path, name, value)
        yield from _check_back_door(path, name, value, service, release)
        if name.startswith("VLLM_"):
            yield from _check_known(path, name, release, fatal)
    updating = service.env.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "")
    if (service.engine.api_server_count or 1) > 1 and updating.lower() not in _OFF:
        message = "more than one API server excludes VLLM_ALLOW_RUNTIME_LORA_UPDATING"
        yield Finding(
            "error", "engine.apiServerCount", message, "set it to 1", "ARG-3", "vllm/entrypoints/cli/serve.py"
        )


def _check_known(path: str, name: str, release: Release, fatal: bool) -> Iterator[Finding]:
    status = environment_status(release, name)
    if status.status == "known":
        return
    doubt = status.status == "uncertain"
    message = (
        f"whether vLLM {release.version} reads {name} is not known"
        if doubt
        else (f"vLLM {release.version} does not read {name}")
    )
    level: Level = "error" if fatal and not doubt else "warn"
    yield Finding(level, path, message, status.remedy, "ARG-3", status.source)


def _check_back_door(path: str, name: str, value: str, service: ServiceSpec, release: Release) -> Iterator[Finding]:
    known = environment_status(release, name).status in ("known", "uncertain")
    if name not in BACK_DOORS or not known or value.lower() in _OFF:
        return
    exposure = service.exposure
    named = bool(exposure.allow_from.namespaces or exposure.allow_from.cidrs)
    accepted = name in service.security.accepted_back_doors and exposure.type == "ClusterIP" and named
    yield Finding(
        "warn" if accepted else "error",
        path,
        f"{name} adds {BACK_DOORS[name]}",
        "remove it, or name it in security.acceptedBackDoors of a ClusterIP service whose clients exposure.allowFrom "
        "names",
        "SEC-DEV",
        "vllm/entrypoints/openai/api_server.py",
    )


def _check_secret(path: str, name: str, value: str) -> Iterator[Finding]:
    """A secret by its name or its form. The value is never repeated."""
    by_name = _SECRET_NAME.search(name.upper()) and not _SETTING_VALUE.fullmatch(value)
    if by_name or _SECRET_VALUE.search(value):
        secret = "vllm:hfToken" if "HF_" in name or "HUGGING" in name else "vllm:apiKey"
        remedy = (
            f"use `pulumi config set --secret {secret}` if it is that one; "
            "what is in env stands in the state, in the cluster and in every diff in the clear"
        )
        yield Finding("error", path, f"{name} looks like a secret", remedy, "SEC-ENV", "https://12factor.net/config")
