"""One Markdown comment about a preview: what changes, what is lost, and what the plan says before and after.

Everything that comes from a stack file, a cluster or an error message is shown as code and without what looks like a
credential; a comment says nothing at all when nothing changes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from infra.preview import Change, Preview, PropertyChange
from infra.redaction import redacted
from planner.compile_cache import CompileCacheChange, compare, from_data

Document = Mapping[str, Any]
"""What `vllm-infra plan --json` prints."""

MARKER = "<!-- pulumi-vllm preview of {stack} -->"
"""First line of a comment: a workflow finds its own comment by it and edits it in place."""

LONGEST = 60_000
"""Characters of a comment; GitHub refuses more than 65,536."""

_WORDS = {
    "replace": "**replaced**",
    "delete": "**deleted**",
    "leave": "leaves the stack, stays in the cluster",
    "update": "updated",
    "create": "created",
    "import": "imported",
}
_LOSING = frozenset({"replace", "delete", "leave"})
_SHORT = 80
_ROWS = 60
_MEMORY = (
    ("fits", "fits", ""),
    ("weights", "weightsGiB", " GiB"),
    ("KV cache", "kvGiB", " GiB"),
    ("KV cache", "kvTokens", " tokens"),
    ("context asked", "maxModelLen", " tokens"),
    ("largest context that fits", "maxContext", " tokens"),
    ("requests of full length at once", "fullLengthRequests", ""),
    ("used memory (nvidia-smi)", "nvidiaSmiMiB", " MiB"),
    ("used memory of the container", "containerMiB", " MiB"),
)
_STARTUP = (
    ("downtime of a change, caches warm", "downtimeSeconds", " s"),
    ("first start, nothing cached", "coldSeconds", " s"),
    ("start-up window", "budgetSeconds", " s"),
)
_COST = (("cost per hour", "dollarsPerHour", ""), ("cost per month", "dollarsPerMonth", ""))
_SAYS_NOTHING = re.compile(r"^preview failed$|program exited with non-zero exit code")
_LEVELS = {"error": "error", "warn": "warning", "info": "note"}


@dataclass(frozen=True)
class Report:
    """``text`` is the comment, empty when nothing changes. ``refused`` names the changes that need an allowance which
    was not given, in the form that `--allow` takes."""

    text: str
    refused: tuple[str, ...]


def report(
    preview: Preview,
    before: Document | None,
    after: Document | None,
    *,
    stack: str,
    allowed: Collection[str] = (),
) -> Report:
    """The comment about a preview, with the plan of both sides where it is known.

    ``before`` is None for a stack that is new, ``after`` where no plan was made.
    """
    guarded = [change for change in preview.changes if change.needs_allowance]
    refused = tuple(change.allowance for change in guarded if change.allowance not in allowed)
    planned = [] if after is None else list(_plan_sections(preview, before or {}, after))
    if not preview.changes and not preview.errors and not planned:
        return Report("", ())
    lines = [
        MARKER.format(stack=stack),
        f"### {_code(stack)}: {_headline(preview)}",
        "",
        *_errors(preview),
        *_allowances(guarded, refused),
        *_table_of(preview.changes, losing=True),
        *_table_of(preview.changes, losing=False),
        *planned,
    ]
    return Report(_cut(redacted("\n".join(lines).rstrip() + "\n")), refused)


def _headline(preview: Preview) -> str:
    if preview.errors:
        return "the preview failed"
    count: dict[str, int] = {}
    for change in preview.changes:
        count[change.operation] = count.get(change.operation, 0) + 1
    words = {"replace": "replaced", "delete": "deleted", "leave": "leaving the stack"}
    said = [f"{number} {words.get(name, _WORDS[name])}" for name, number in count.items()]
    return ", ".join(said) or "no resource changes, the plan does"


def _errors(preview: Preview) -> Iterator[str]:
    if preview.errors:
        told = [error.removeprefix("error: ") for error in preview.errors]
        # Beside the reason there is always the engine's own sentence that it failed.
        said = [error for error in told if not _SAYS_NOTHING.search(error)] or told
        longest = max(len(run) for run in re.findall(r"`+|^", "\n".join(said)))
        fence = "`" * max(3, longest + 1)
        yield from (f"{fence}text", *said, fence, "")


def _allowances(guarded: Iterable[Change], refused: Collection[str]) -> Iterator[str]:
    for change in guarded:
        what = f"{change.kind} {_code(change.name)} would be {_WORDS[change.operation]}"
        if change.allowance in refused:
            yield f"> :no_entry: {what}. If that is meant: {_code(f'--allow {change.allowance}')}"
        else:
            yield f"> :warning: {what}, which is allowed by {_code(f'--allow {change.allowance}')}"
        yield ">"
    if guarded:
        yield ""


def _table_of(changes: Iterable[Change], *, losing: bool) -> Iterator[str]:
    chosen = [change for change in changes if (change.operation in _LOSING) == losing]
    if not chosen:
        return
    yield from (f"| {'replaced or deleted' if losing else 'changed'} | resource | why |", "|---|---|---|")
    for change in chosen[:_ROWS]:
        yield f"| {_WORDS[change.operation]} | {change.kind} {_code(change.name)} | {_why(change)} |"
    if len(chosen) > _ROWS:
        yield f"| … | {len(chosen) - _ROWS} more | |"
    yield ""


def _why(change: Change) -> str:
    """The properties behind a change; those that force a replacement first."""
    forced = [one for one in change.properties if one.replaces or one.path in change.reasons]
    named = {one.path for one in forced}
    told = [_property(one) for one in forced]
    told += [_code(reason) for reason in change.reasons if reason not in named and not _inside_any(reason, named)]
    told += [_property(one) for one in change.properties if one not in forced]
    return "<br>".join(told[:8] + ([f"{len(told) - 8} more"] if len(told) > 8 else []))


def _inside_any(path: str, lists: Collection[str]) -> bool:
    return any(path.startswith(f"{one}[") for one in lists)


def _property(change: PropertyChange) -> str:
    path = _code(change.path.removeprefix("spec.template.spec."))
    if change.old is None and change.new is None:
        return path
    return f"{path}: {_value(change.old)} → {_value(change.new)}"


def _value(text: str | None) -> str:
    return "none" if text is None else _code(text)


def _plan_sections(preview: Preview, before: Document, after: Document) -> Iterator[str]:
    old, new = before.get("services", {}), after.get("services", {})
    yield from _section("Downtime", [*_downtimes(preview, old, new), *_rows(old, new, "startup", _STARTUP)])
    yield from _section("Memory", _rows(old, new, "memory", _MEMORY))
    yield from _section("Cost", [*_rows(old, new, "cost", _COST), *_total(old, new)])
    yield from _section("Production checklist", _boxes(before.get("checklist", {}), after.get("checklist", {})))
    yield from _findings(before.get("findings", ()), after.get("findings", ()))


def _section(title: str, rows: list[tuple[str, str, str, str]]) -> Iterator[str]:
    if rows:
        yield from (f"#### {title}", "", "| service | | before | after |", "|---|---|---:|---:|")
        yield from (f"| {' | '.join(row)} |" for row in rows)
        yield ""


def _rows(
    old: Document, new: Document, topic: str, figures: Iterable[tuple[str, str, str]]
) -> list[tuple[str, str, str, str]]:
    """The figures of each service that differ between the two sides."""
    rows = []
    for name in dict.fromkeys((*new, *old)):
        for label, key, unit in figures:
            was, will = (side.get(name, {}).get(topic, {}).get(key) for side in (old, new))
            if was != will:
                dollars = "$" if topic == "cost" else ""
                rows.append((_code(name), label, _figure(was, unit, dollars), _figure(will, unit, dollars)))
    return rows


def _figure(value: Any, unit: str, dollars: str = "") -> str:
    if value is None:
        return "none"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _code(str(value))
    return f"{dollars}{value:,}{unit}"


def _boxes(old: Document, new: Document) -> list[tuple[str, str, str, str]]:
    """The boxes of the production checklist that stand otherwise than before; of a new service, none."""
    rows = []
    for name in (name for name in new if name in old):
        before = {box["id"]: box["status"] for box in old[name]}
        for box in new[name]:
            was = before.get(box["id"])
            if was is not None and was != box["status"]:
                rows.append((_code(name), _text(box["box"]), was, box["status"]))
    return rows


def _total(old: Document, new: Document) -> Iterator[tuple[str, str, str, str]]:
    """The cost of all services together, where there is more than one."""
    was, will = (
        sum(service.get("cost", {}).get("dollarsPerMonth", 0) for service in side.values()) for side in (old, new)
    )
    if was != will and max(len(old), len(new)) > 1:
        yield ("all", "cost per month", _figure(round(was, 2), "", "$"), _figure(round(will, 2), "", "$"))


def _downtimes(preview: Preview, old: Document, new: Document) -> Iterator[tuple[str, str, str, str]]:
    """How long each server that is stopped by this change is away, and what its first start finds."""
    for name in dict.fromkeys(change.service for change in preview.changes if change.restarts_server):
        service = new.get(str(name))
        if service is None:
            continue
        cache = _compile_cache(old.get(str(name)), service)
        seconds = service["startup"]["downtimeSeconds"] + (cache.seconds if cache else 0)
        yield (_code(str(name)), "**downtime of this change**", "", f"**{seconds:,.0f} s**")
        if cache is not None and cache.verdict in {"miss", "perhaps"}:
            yield from _recompilation(str(name), cache)


def _compile_cache(old: Document | None, new: Document) -> CompileCacheChange | None:
    """What the first start finds, where both plans say what the cache depends on."""
    if old is None or "compileCache" not in old or "compileCache" not in new:
        return None
    return compare(from_data(old["compileCache"]), from_data(new["compileCache"]))


def _recompilation(name: str, cache: CompileCacheChange) -> Iterator[tuple[str, str, str, str]]:
    because = ", ".join(_code(changed) for changed in cache.changed)
    may = "" if cache.verdict == "miss" else "perhaps "
    yield (_code(name), f"{may}compiles once more, for {because}", "", f"+{cache.seconds:,.0f} s, counted above")
    if cache.kv_tokens_first != cache.kv_tokens_after:
        first, later = f"{cache.kv_tokens_first:,} tokens", f"{cache.kv_tokens_after:,} tokens"
        yield (_code(name), "KV cache of the start that compiles, and from the second start on", first, later)


def _findings(old: Iterable[Document], new: Iterable[Document]) -> Iterator[str]:
    """Findings that come, that go, and that say something else now; those that stay as they are, are counted."""
    was, will = list(old), list(new)
    gone = [one for one in was if one not in will]
    come = [one for one in will if one not in was]
    if not come and not gone:
        return
    yield from ("#### Findings", "")
    for finding in come:
        before = next((one for one in gone if _place(one) == _place(finding)), None)
        if before is not None:
            gone.remove(before)
        remedy = f" → {_text(finding['remedy'])}" if finding["remedy"] else ""
        level = _LEVELS[finding["level"]]
        label = f"new {level}" if before is None else f"{level}, now"
        yield f"- {label}: {_code(finding['path'])} {_text(finding['message'])}{remedy}"
    for finding in gone:
        yield f"- gone: {_code(finding['path'])} {_text(finding['message'])}"
    if len(will) > len(come):
        yield f"- {len(will) - len(come)} as before"
    yield ""


def _place(finding: Document) -> tuple[str, ...]:
    return (finding["level"], finding["rule"], finding["path"])


def _text(text: str) -> str:
    """Prose of a finding: it can hold what a person wrote, so nothing in it is markup or a mention.

    A backslash does not keep GitHub from notifying whom a comment mentions; a space of no width does.
    """
    flat = re.sub(r"([\\`*_{}\[\]#|~!])", r"\\\1", " ".join(redacted(text).split()))
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "@&#8203;")


def _code(text: str) -> str:
    """A text as code inside a table cell, whatever is in it."""
    flat = " ".join(redacted(text).split()).replace("|", "\\|")
    if len(flat) > _SHORT:
        flat = f"{flat[: _SHORT - 1]}…"
    if "`" in flat:
        return f"`` {flat.replace('``', '` `')} ``"
    return f"`{flat}`" if flat else "(empty)"


def _cut(text: str) -> str:
    """At most as much as a comment may have, ending with a whole line."""
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST].rpartition(chr(10))[0]}\n\n… cut; the whole preview is in the log of the job.\n"
