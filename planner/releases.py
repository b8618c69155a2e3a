"""vLLM releases: flags, environment variables and image of each, and what is certain between the known ones."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal

from planner.spec import ImageSpec

Kind = Literal["flag", "str", "int", "float", "json", "json-or-str"]
Status = Literal["known", "unknown", "uncertain", "removed", "renamed"]
Version = tuple[int, int, int]

_TAG = re.compile(r"v?(?P<version>\d+\.\d+\.\d+)(?:\.post\d+)?(?P<suffix>-[\w.-]+)?")
_CUDA_SUFFIX = re.compile(r"-cu(?P<major>\d\d)(?P<minor>\d)(?:[-.]|$)")


class UnknownReleaseError(ValueError):
    """The image's release cannot be read, or lies outside what is known."""


@dataclass(frozen=True)
class Flag:
    """One option of `vllm serve`.

    ``nargs`` is argparse's (None: exactly one value, or none at all for a ``flag``). ``choices`` is the closed set
    that the parser enforces, ``suggested`` an open one. In a release between two tables ``choices`` and
    ``json_fields`` hold what either neighbour takes, ``certain_choices`` (None: anything) what both take,
    ``uncertain_json_fields`` what only one takes, and ``default_known`` is false when their defaults differ
    (``default`` is then the older one).
    """

    name: str
    kind: Kind
    nargs: str | None
    choices: tuple[str, ...] | None
    suggested: tuple[str, ...] | None
    default: Any
    default_known: bool
    negations: tuple[str, ...]
    aliases: tuple[str, ...]
    json_fields: frozenset[str] | None
    none_ok: bool
    repeatable: bool
    human_readable: bool
    auto_ok: bool
    folds_case: bool
    certain_choices: frozenset[str] | None = None
    uncertain_json_fields: frozenset[str] = frozenset()

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every option string that sets this flag."""
        return (self.name, *self.aliases, *self.negations)


@dataclass(frozen=True)
class Release:
    """What is known of one vLLM release.

    ``exact`` says that the release has a table of its own. Between two tables ``flags`` and ``environment`` hold what
    both neighbours have, ``uncertain`` (by spelling) and ``environment_uncertain`` what only one of them has.
    ``cuda`` is the CUDA version of the image, ``image_bytes`` its compressed size.
    """

    version: str
    exact: bool
    flags: Mapping[str, Flag]
    uncertain: Mapping[str, Flag]
    environment: frozenset[str]
    environment_uncertain: frozenset[str]
    entrypoint: tuple[str, ...]
    cuda: str
    torch: str
    image_bytes: int
    image_bytes_estimated: bool
    model_runner: Literal["V1", "V2"]
    model_runner_estimated: bool

    @property
    def number(self) -> Version:
        """The version as numbers that compare, for example (0, 31, 0)."""
        return version_number(self.version)

    def certain(self, spelling: str) -> Flag | None:
        """The flag that this option string sets in this release, None when it is not certain that one does."""
        return self.flags.get(_by_spelling(self).get(spelling, ""))

    def find(self, spelling: str) -> Flag | None:
        """Like ``certain``, with the flags that only one neighbouring table has."""
        return self.certain(spelling) or self.uncertain.get(spelling)


@dataclass(frozen=True)
class FlagStatus:
    """Whether a release takes an option string, what to do when it does not, and where that is from."""

    status: Status
    remedy: str
    source: str


def version_number(text: str) -> Version:
    """``"0.31.0"`` as (0, 31, 0)."""
    major, minor, patch = (int(part) for part in text.split("."))
    return major, minor, patch


def release_of(image: ImageSpec) -> Release:
    """The release in an image, from ``image.release`` or else from the tag (``v0.31.0``, ``v0.20.2-cu129``).

    Raises:
        UnknownReleaseError: the tag does not say one release (``latest``, ``nightly``), or it is older than the
            oldest table or a minor newer than the newest.
    """
    tag = _TAG.fullmatch(image.tag)
    if image.release is None and tag is None:
        raise UnknownReleaseError(
            f"the tag {image.tag!r} does not say which vLLM release it is; "
            "use a tag like v0.31.0, or set image.release to the release in the image"
        )
    version = image.release or (tag["version"] if tag else "")
    suffix = _CUDA_SUFFIX.search(image.tag)
    release = release_at(version)
    changes: dict[str, Any] = {}
    if suffix is not None:
        changes["cuda"] = f"{suffix['major']}.{suffix['minor']}"
    if image.repository.removeprefix("docker.io/") == _document("release_history.json")["cpuImage"]["repository"]:
        changes |= {
            "image_bytes": _document("release_history.json")["cpuImage"]["bytes"],
            "image_bytes_estimated": True,
        }
    if image.size_bytes is not None:
        changes |= {"image_bytes": image.size_bytes, "image_bytes_estimated": False}
    return replace(release, **changes)


@cache
def release_at(version: str) -> Release:
    """What is known of a release by its version, for example ``"0.26.0"``.

    Raises:
        UnknownReleaseError: it is older than the oldest table, or a minor newer than the newest.
    """
    number, known = version_number(version), known_releases()
    if not version_number(known[0]) <= number or number[:2] > version_number(known[-1])[:2]:
        raise UnknownReleaseError(
            f"vLLM {version} is not known: {known[0]} to {known[-1]} are (tables of {', '.join(known)}, "
            "and what is certain between them)"
        )
    if version in known:
        return _exact(version)
    lower = max((each for each in known if version_number(each) < number), key=version_number)
    above = [each for each in known if version_number(each) > number]
    return _between(version, _exact(lower), _exact(above[0] if above else lower))


@cache
def known_releases() -> tuple[str, ...]:
    """The releases that have a table of their own, oldest first."""
    folder = resources.files("planner") / "data" / "releases"
    names = [entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")]
    return tuple(sorted(names, key=version_number))


def flag_status(release: Release, spelling: str) -> FlagStatus:
    """Whether ``release`` takes the option ``spelling`` (with its dashes), and the remedy when it does not."""
    if release.certain(spelling) is not None:
        return FlagStatus("known", "", "")
    entry = _history("flags", spelling)
    if spelling in release.uncertain:
        return FlagStatus("uncertain", _uncertain_remedy(spelling, entry), _table_source(release))
    older = [each for each in known_releases() if version_number(each) <= release.number]
    last = next((each for each in reversed(older) if _exact(each).certain(spelling)), None)
    if last is not None:
        remedy = entry["remedy"] if entry else f"drop it: vLLM {last} is the last known release that has it"
        source = f"{entry['source']}; {_table_source(release)}" if entry else _table_source(release)
        return FlagStatus("renamed" if entry and "renamedTo" in entry else "removed", remedy, source)
    first = next((each for each in known_releases() if _exact(each).certain(spelling)), None)
    if first is not None:
        remedy = f"vLLM {first} is the first known release that has it" + (f"; {entry['remedy']}" if entry else "")
        return FlagStatus("unknown", remedy, _table_source(release))
    return FlagStatus("unknown", _nearest(release, spelling), _table_source(release))


def environment_status(release: Release, name: str) -> FlagStatus:
    """Whether ``release`` reads the environment variable ``name``, and the remedy when it does not."""
    if name in release.environment:
        return FlagStatus("known", "", "")
    entry = _history("environment", name)
    if name in release.environment_uncertain:
        return FlagStatus("uncertain", _uncertain_remedy(name, entry), _table_source(release))
    if entry is not None:
        return FlagStatus("removed", entry["remedy"], entry["source"])
    near = difflib.get_close_matches(name, release.environment, n=2, cutoff=0.8)
    remedy = f"did you mean {' or '.join(near)}?" if near else "remove it: it has no effect"
    return FlagStatus("unknown", remedy, _table_source(release))


def asks_for_key(release: Release, path: str) -> bool:
    """Whether a server with an API key asks for it at ``path``; elsewhere it answers whoever reaches it."""
    guarded = _era("keyGuards", release.version) or {"value": []}
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in guarded["value"])


@cache
def _document(path: str) -> Any:
    return json.loads((resources.files("planner") / "data" / path).read_text(encoding="utf-8"))


def _history(topic: str, name: str) -> dict[str, Any] | None:
    entries = _document("release_history.json")[topic]
    found: dict[str, Any] | None = next((entry for entry in entries if name in entry["names"]), None)
    return found


def _era(topic: str, version: str) -> dict[str, Any] | None:
    """The last entry of a topic that starts at or before a version."""
    entries = _document("release_history.json")[topic]
    past = [entry for entry in entries if version_number(entry["from"]) <= version_number(version)]
    return past[-1] if past else None


@cache
def _exact(version: str) -> Release:
    document = _document(f"releases/{version}.json")
    runner = _era("modelRunner", version) or {}
    return Release(
        version=version,
        exact=True,
        flags=MappingProxyType({name: _flag(name, entry) for name, entry in document["flags"].items()}),
        uncertain=MappingProxyType({}),
        environment=frozenset(document["environment"]),
        environment_uncertain=frozenset(),
        entrypoint=tuple(document["entrypoint"]),
        cuda=document["cuda"],
        torch=document["torch"],
        image_bytes=document["imageBytes"],
        image_bytes_estimated=document["imageBytesEstimated"],
        model_runner=runner["value"],
        model_runner_estimated=runner["estimated"],
    )


def _flag(name: str, entry: Mapping[str, Any]) -> Flag:
    return Flag(
        name=name,
        kind=entry["kind"],
        nargs=entry.get("nargs"),
        choices=tuple(entry["choices"]) if "choices" in entry else None,
        suggested=tuple(entry["suggested"]) if "suggested" in entry else None,
        default=entry.get("default"),
        default_known=True,
        negations=tuple(entry.get("negations", ())),
        aliases=tuple(entry.get("aliases", ())),
        json_fields=frozenset(entry["jsonFields"]) if "jsonFields" in entry else None,
        none_ok=entry.get("noneOk", False),
        repeatable=entry.get("repeatable", False),
        human_readable=entry.get("humanReadable", False),
        auto_ok=entry.get("autoOk", False),
        folds_case=entry.get("foldsCase", False),
    )


def _between(version: str, lower: Release, upper: Release) -> Release:
    """A release between two tables: certain is what both have, or what its history settles."""
    certain: dict[str, Flag] = {}
    uncertain: dict[str, Flag] = {}
    for name in sorted(lower.flags.keys() | upper.flags.keys()):
        old, new = lower.flags.get(name), upper.flags.get(name)
        flag = _merged(old, new)
        if (old and new) or (new and _settled(name, "thereFrom", version)):
            certain[name] = flag
        gone = {each for each in _spellings(old) - _spellings(new) if _settled(each, "goneFrom", version)}
        doubtful = (_spellings(old) ^ _spellings(new)) - gone - _spellings(certain.get(name))
        uncertain |= dict.fromkeys(sorted(doubtful), flag)
    runner, cuda, torch = _era("modelRunner", version) or {}, _era("cuda", version), _era("torch", version)
    return Release(
        version=version,
        exact=False,
        flags=MappingProxyType(certain),
        uncertain=MappingProxyType(uncertain),
        environment=lower.environment & upper.environment,
        environment_uncertain=lower.environment ^ upper.environment,
        entrypoint=upper.entrypoint,
        cuda=cuda["value"] if cuda else upper.cuda,
        torch=torch["value"] if torch else lower.torch,
        image_bytes=upper.image_bytes,
        image_bytes_estimated=True,
        model_runner=runner["value"],
        model_runner_estimated=runner["estimated"],
    )


def _merged(old: Flag | None, new: Flag | None) -> Flag:
    """What is known of a flag between two tables: spellings of both, values of either."""
    one = new or old
    if one is None:
        raise AssertionError("a flag comes from at least one table")
    if old is None or new is None:
        return replace(one, default_known=False)
    closed = [frozenset(each.choices) for each in (old, new) if each.choices is not None]
    suggested = [frozenset(each.suggested) for each in (old, new) if each.suggested is not None]
    either_fields = None if not (old.json_fields and new.json_fields) else old.json_fields | new.json_fields
    return replace(
        new,
        choices=tuple(sorted(frozenset.union(*closed))) if len(closed) == 2 else None,
        certain_choices=frozenset.intersection(*closed) if closed else None,
        suggested=tuple(sorted(frozenset.intersection(*suggested))) if suggested else None,
        json_fields=either_fields,
        uncertain_json_fields=(old.json_fields or frozenset()) ^ (new.json_fields or frozenset()),
        default=old.default,
        default_known=old.default == new.default,
        negations=tuple(each for each in new.negations if each in old.negations),
        aliases=tuple(each for each in new.aliases if each in old.aliases),
    )


def _spellings(flag: Flag | None) -> frozenset[str]:
    return frozenset(flag.spellings) if flag else frozenset()


def _settled(spelling: str, bound: Literal["thereFrom", "goneFrom"], version: str) -> bool:
    """Whether a flag's history says that it is there, or gone, in a release between two tables."""
    entry = _history("flags", spelling)
    return entry is not None and bound in entry and version_number(entry[bound]) <= version_number(version)


def _by_spelling(release: Release) -> Mapping[str, str]:
    return _spelling_index(release.version)


@cache
def _spelling_index(version: str) -> Mapping[str, str]:
    flags = release_at(version).flags.values()
    return MappingProxyType({spelling: flag.name for flag in flags for spelling in flag.spellings})


def _table_source(release: Release) -> str:
    if release.exact:
        return f"argument parser of vLLM {release.version}"
    number = release.number
    below = [each for each in known_releases() if version_number(each) < number]
    above = [each for each in known_releases() if version_number(each) > number]
    return f"argument parsers of vLLM {' and '.join([*below[-1:], *above[:1]])}"


def _uncertain_remedy(name: str, entry: Mapping[str, Any] | None) -> str:
    having = [each for each in known_releases() if _exact(each).certain(name) or name in _exact(each).environment]
    hint = f" {entry['remedy'][0].upper()}{entry['remedy'][1:]}." if entry else ""
    verb = "have" if len(having) > 1 else "has"
    return f"try it before it is rolled out: of the known releases only {', '.join(having)} {verb} it.{hint}"


def _nearest(release: Release, spelling: str) -> str:
    spellings = _by_spelling(release)
    whole = [each for each in spellings if each.startswith(spelling)] if len(spelling) > 3 else []
    if len(whole) == 1:
        return f"it is an abbreviation, which the next release may no longer take; write {whole[0]}"
    near = whole[:3] or difflib.get_close_matches(spelling, spellings, n=2, cutoff=0.75)
    return f"did you mean {' or '.join(near)}?" if near else "remove it: no known release has it"
