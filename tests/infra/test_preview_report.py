"""`vllm-infra preview-report`: recordings of the real engine (scripts/record_previews.py), and what these lack."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from infra.answers import answers
from infra.cli import app
from infra.preflight import check_plan
from infra.preview import PreviewError, read_preview
from infra.preview_report import LONGEST, MARKER, report
from infra.redaction import HIDDEN, redacted
from planner.plan import plan_services
from tests.stack_files import STACKS, config

RECORDED = Path(__file__).parent / "previews"
STACK = "recorded"
TOKEN = "hf_TheTokenThatNobodyMaySee000000000"


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.json").read_text()


def comment(name: str, *, allowed: tuple[str, ...] = ()) -> str:
    """The comment about a recording, without plans."""
    return report(read_preview(recorded(name)), None, None, stack=STACK, allowed=allowed).text


def step(
    operation: str,
    resource: str,
    name: str = "one",
    *,
    inputs: dict[str, Any] | None = None,
    old: dict[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """A step as the engine writes it; ``inputs`` and ``old`` are the inputs after and before."""
    metadata = {"metadata": {"name": name}} if resource.startswith("kubernetes:") else {}
    state = {"type": resource, "id": f"ai-infra/{name}", "retainOnDelete": fields.pop("retain", False)}
    before = {**state, "inputs": {**metadata, **(old or {})}}
    after = {**state, "inputs": {**metadata, **(inputs or {})}}
    states: dict[str, Any] = {} if operation == "create" else {"oldState": before}
    if operation not in {"delete", "delete-replaced"}:
        states["newState"] = after
    return {"op": operation, "urn": f"urn:pulumi:{STACK}::vllm::{resource}::{name}", **states, **fields}


def preview(*steps: dict[str, Any], errors: tuple[str, ...] = ()) -> str:
    diagnostics = [{"severity": "error", "message": error} for error in errors]
    return json.dumps({"steps": steps, "diagnostics": diagnostics, "changeSummary": {}})


def rows(text: str, word: str) -> list[str]:
    """The table rows that begin with a word."""
    return [line for line in text.splitlines() if line.startswith(f"| {word}")]


def plan(**changes: Any) -> dict[str, Any]:
    """What `vllm-infra plan --json` prints for the demo with changes (dotted path with __ → value)."""
    found = config("demo", {path.replace("__", "."): value for path, value in changes.items()})
    plans, findings = plan_services(found.nodes, found.services)
    document = answers(plans, [*findings, *check_plan(found, frozenset(), plans)])
    return dict(json.loads(json.dumps(document)))


def planned(name: str, before: dict[str, Any] | None, after: dict[str, Any]) -> str:
    return report(read_preview(recorded(name)), before, after, stack=STACK).text


# --- what changes


def test_nothing_is_said_when_nothing_changes() -> None:
    assert comment("nothing") == "", "a comment that says nothing is noise in every pull request"
    assert planned("nothing", plan(), plan()) == "", "also with plans that are the same"


def test_a_comment_is_found_again_by_its_first_line() -> None:
    assert comment("image").splitlines()[0] == MARKER.format(stack=STACK), "the workflow edits it in place"


def test_a_new_image_updates_the_server_and_its_pull() -> None:
    text = comment("image")
    assert "1 replaced, 2 updated" in text, f"the headline counts:\n{text}"
    image = "`vllm/vllm-openai:v0.31.0` → `vllm/vllm-openai:v0.33.0`"
    assert [image in row for row in rows(text, "updated")] == [True, True], "both values are shown"
    assert image in rows(text, "**replaced**")[0], "the seed Job cannot be changed, and says by which property"


def test_an_argument_is_shown_as_an_argument() -> None:
    (row,) = rows(comment("engine"), "updated")
    assert "`--max-model-len 2048` → `--max-model-len 1024`" in row, "not as word 14 of a command"


def test_an_argument_that_goes_does_not_move_all_others() -> None:
    old = ["vllm", "serve", "m", "--enforce-eager", "--max-num-seqs", "4", "--seed", "1"]
    new = ["vllm", "serve", "m", "--max-num-seqs", "4", "--seed", "1"]
    path = "spec.template.spec.containers[0].command"
    sides = [{"spec": {"template": {"spec": {"containers": [{"command": words}]}}}} for words in (old, new)]
    details = {f"{path}[{index}]": {"kind": "update"} for index in range(3, 8)}
    one = step("update", "kubernetes:apps/v1:Deployment", inputs=sides[1], old=sides[0], detailedDiff=details)
    (change,) = read_preview(preview(one)).changes
    assert [(each.old, each.new) for each in change.properties] == [("--enforce-eager", None)], "one option went"


def test_what_leaves_the_stack_and_stays_is_not_called_deleted() -> None:
    text = comment("claim")
    assert [row.split("|")[2].strip() for row in rows(text, "leaves")] == [
        "PersistentVolumeClaim `vllm-model-0`",
        "PersistentVolume `recorded-vllm-model-0`",
    ], "retain_on_delete keeps both, and they are not lost"
    assert "deleted" not in text.replace("replaced or deleted", ""), "nothing is"


def test_losses_come_first() -> None:
    text = comment("namespace")
    kinds = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ") and "`" in line]
    order = ["**replaced**", "leaves the stack, stays in the cluster", "created"]
    assert kinds == sorted(kinds, key=order.index), f"what can be lost is read first: {kinds}"
    assert "`metadata.namespace`: `recorded` → `elsewhere`" in text, "with the reason"
    assert "8 replaced, 3 leaving the stack, 3 created" in text, "counted in the same order"


def test_a_service_that_goes_is_a_row_for_each_object() -> None:
    text = comment("deletion")
    assert len(rows(text, "**deleted**")) == 7, f"server, address, account, policies, Job, pull:\n{text}"
    assert len(rows(text, "leaves")) == 1, "its claim stays"


def test_a_first_preview_lists_what_is_created() -> None:
    text = comment("create")
    assert len(rows(text, "created")) == 11, "components and providers are no objects of the cluster"
    assert "replaced or deleted" not in text, "there is nothing to lose"


def test_a_refused_preview_says_why() -> None:
    text = comment("refused")
    assert "the preview failed" in text, "in the headline"
    assert "vllm:services.qwen.engine.maxModelLen" in text, f"with the path and the reason:\n{text}"
    assert "non-zero exit code" not in text, "the engine's own sentence says nothing"


def test_a_failure_without_a_reason_is_still_told() -> None:
    found = read_preview(preview(errors=("error: preview failed",)))
    assert "preview failed" in report(found, None, None, stack=STACK).text, "better than silence"


# --- secrets


def test_a_new_secret_is_a_row_and_no_value() -> None:
    text = comment("secret")
    assert "Secret `hf-token-" in text, "it is replaced, and that is said"
    assert f"`data.token`: `{HIDDEN}` → `{HIDDEN}`" in text, "its content is not"


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDED.glob("*.json")))
def test_recordings_hold_no_secret_and_no_machine(name: str) -> None:
    text = recorded(name)
    for forbidden in (TOKEN, TOKEN[::-1], "/root/", '"/home/', "file:///", "stackTrace", "sourcePosition"):
        assert forbidden not in text, f"{name}.json must not hold {forbidden}"


SECRETS = {
    "hub": TOKEN,
    "OpenAI style": "sk-abcdefghijklmnop1234",
    "GitHub": f"ghp_{'a1' * 18}",
    "Pulumi": f"pul-{'0' * 40}",
    "AWS": "AKIAIOSFODNN7EXAMPLE",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJtZSJ9.c2lnbmF0dXJl",
    "password in a URL": "hunter2hunter2",
    "signature": "c0ffee00c0ffee00",
    "header": "abcdefgh12345678",
    "private key": "MIIEowIBAAKCAQEA",
}
CARRIERS = {
    "password in a URL": "https://me:{}@registry.example/v2",
    "signature": "https://cdn.example/file?X-Amz-Signature={}",
    "header": "Authorization: Bearer {}",
    "private key": "-----BEGIN RSA PRIVATE KEY----- {} -----END RSA PRIVATE KEY-----",
}


@pytest.mark.parametrize("form", SECRETS)
def test_a_credential_is_taken_out_wherever_it_is(form: str) -> None:
    value = CARRIERS.get(form, "{}").format(SECRETS[form])
    env = {"spec": {"template": {"spec": {"containers": [{"env": [{"name": "X", "value": value}]}]}}}}
    path = "spec.template.spec.containers[0].env[0].value"
    one = step("update", "kubernetes:apps/v1:Deployment", inputs=env, detailedDiff={path: {"kind": "add"}})
    finding = {"level": "warn", "rule": "X", "path": "services.x", "message": value, "remedy": value, "source": ""}
    after = {"services": {}, "findings": [finding]}
    text = report(read_preview(preview(one, errors=(value,))), None, after, stack=STACK).text
    plain = text.replace("\\", "")
    assert SECRETS[form] not in plain, f"in a value, an error or a finding:\n{text}"
    assert plain.count(HIDDEN) == 4, "and one sees that something was taken out of each"


@pytest.mark.parametrize(
    "harmless",
    [
        "vllm/vllm-openai:v0.31.0",
        f"sha256:{'a' * 64}",
        "a" * 40,
        "--max-model-len 32768",
        "https://huggingface.co/docs",
        "hf-token-5d738789",
        "tokenizer_mode",
    ],
)
def test_what_is_no_credential_stays_readable(harmless: str) -> None:
    assert redacted(harmless) == harmless, "a report of which everything is hidden is none"


@pytest.mark.parametrize(("name", "hidden"), [("HF_TOKEN", True), ("DB_PASSWORD", True), ("VLLM_PORT", False)])
def test_a_variable_with_a_secret_name_is_hidden(name: str, hidden: bool) -> None:
    env = {"spec": {"template": {"spec": {"containers": [{"env": [{"name": name, "value": "plain"}]}]}}}}
    path = "spec.template.spec.containers[0].env[0].value"
    one = step("update", "kubernetes:apps/v1:Deployment", inputs=env, detailedDiff={path: {"kind": "add"}})
    text = report(read_preview(preview(one)), None, None, stack=STACK).text
    assert ("plain" not in text) == hidden, f"the name says what it is:\n{text}"


# --- what needs an allowance

CLAIM = "kubernetes:core/v1:PersistentVolumeClaim"
GUARDED = [
    (CLAIM, "PersistentVolumeClaim/one"),
    ("kubernetes:core/v1:PersistentVolume", "PersistentVolume/one"),
    ("kubernetes:core/v1:Namespace", "Namespace/one"),
    ("aws:eks/nodeGroup:NodeGroup", "NodeGroup/one"),
    ("vllm:index:EksGpuNodeGroup$aws:eks/nodeGroup:NodeGroup", "NodeGroup/one"),
    ("vllm:index:EksCluster$aws:eks/cluster:Cluster", "Cluster/one"),
]


def replaced(resource: str, **fields: Any) -> list[dict[str, Any]]:
    """The three steps of a replacement."""
    details = {"instanceTypes": {"kind": "update-replace", "inputDiff": False}}
    more = {"replaceReasons": ["instanceTypes"], "detailedDiff": details, **fields}
    return [step(one, resource, **more) for one in ("create-replacement", "replace", "delete-replaced")]


@pytest.mark.parametrize(("resource", "allowance"), GUARDED)
@pytest.mark.parametrize("operation", ["replace", "delete"])
def test_what_holds_files_or_nodes_goes_only_when_it_is_allowed(
    tmp_path: Path, resource: str, allowance: str, operation: str
) -> None:
    steps = replaced(resource) if operation == "replace" else [step("delete", resource)]
    code, output = run(tmp_path, preview(*steps))
    assert code == 1, "a pull request does not lose it by accident"
    assert f"--allow {allowance}" in output, f"the way to mean it is named:\n{output}"
    code, output = run(tmp_path, preview(*steps), "--allow", allowance)
    assert code == 0, "it was meant"
    assert "which is allowed" in output, "and the comment still says what goes"


@pytest.mark.parametrize(
    "steps",
    [
        [step("delete", CLAIM, retain=True)],
        [step("create", CLAIM)],
        [step("update", CLAIM, detailedDiff={"spec.resources.requests.storage": {"kind": "update"}})],
        [step("delete", "kubernetes:apps/v1:Deployment")],
        replaced("kubernetes:batch/v1:Job"),
        replaced("aws:ec2/launchTemplate:LaunchTemplate"),
    ],
    ids=["kept", "new", "grown", "a server", "a Job", "a template"],
)
def test_all_else_needs_no_allowance(tmp_path: Path, steps: list[dict[str, Any]]) -> None:
    code, output = run(tmp_path, preview(*steps))
    assert code == 0, f"nothing is lost: {output}"
    assert "--allow" not in output, output


def test_a_claim_that_would_be_replaced_is_refused_even_if_it_is_kept(tmp_path: Path) -> None:
    code, output = run(tmp_path, preview(*replaced(CLAIM, retain=True)))
    assert (code, "--allow PersistentVolumeClaim/one" in output) == (1, True), "the server gets an empty one"


def test_an_allowance_is_for_one_object(tmp_path: Path) -> None:
    steps = [step("delete", CLAIM, name) for name in ("one", "two")]
    code, output = run(tmp_path, preview(*steps), "--allow", "PersistentVolumeClaim/one")
    assert (code, "refused: PersistentVolumeClaim/two" in output) == (1, True), output


@pytest.mark.parametrize("wrong", ["PersistentVolumeClaim", "Deployment/one", "one", "Namespace/"])
def test_an_allowance_that_means_nothing_is_refused(tmp_path: Path, wrong: str) -> None:
    code, output = run(tmp_path, preview(), "--allow", wrong)
    assert (code, "KIND/NAME" in output) == (2, True), output


def test_a_replacement_is_one_row_with_its_reasons() -> None:
    (change,) = read_preview(preview(*replaced("aws:eks/nodeGroup:NodeGroup"))).changes
    assert (change.operation, change.reasons) == ("replace", ("instanceTypes",)), "three steps, one resource"
    text = report(read_preview(preview(*replaced("aws:eks/nodeGroup:NodeGroup"))), None, None, stack=STACK).text
    assert "NodeGroup `one` | `instanceTypes` |" in text, f"and the property that forces it:\n{text}"


# --- before and after


def test_the_figures_that_change_are_shown_on_both_sides() -> None:
    text = planned("engine", plan(), plan(services__qwen__engine__maxModelLen=1024))
    assert "| `qwen` | context asked | 2,048 tokens | 1,024 tokens |" in text, f"memory:\n{text}"
    assert "weights" not in text, "what stays the same is left out"


def test_the_downtime_of_a_restart_is_told() -> None:
    after = plan(services__qwen__engine__maxModelLen=1024)
    seconds = after["services"]["qwen"]["startup"]["downtimeSeconds"]
    text = planned("engine", plan(), after)
    assert f"**downtime of this change** |  | **{seconds:,.0f} s** |" in text, f"the server is stopped:\n{text}"
    assert "compiles once more" not in text, "an eager server compiles nothing"


def test_a_change_that_leaves_the_server_alone_has_no_downtime() -> None:
    before, after = plan(), plan(nodes__lab__pricePerHour=0.5)
    text = planned("nothing", before, after)
    assert "downtime of this change" not in text, "nobody is stopped"
    assert "| `qwen` | cost per hour | none | $0.5 |" in text, f"the plan changes all the same:\n{text}"


def test_a_change_that_recompiles_says_so() -> None:
    compiled = {"services__qwen__engine__enforceEager": False}
    before, after = plan(**compiled), plan(**compiled, services__qwen__engine__maxModelLen=1024)
    extra = after["services"]["qwen"]["compileCache"]["miss_seconds"]
    seconds = after["services"]["qwen"]["startup"]["downtimeSeconds"] + extra
    text = planned("engine", before, after)
    assert f"| `qwen` | compiles once more, for `engine.maxModelLen` |  | +{extra:,.0f} s, counted above |" in text, (
        text
    )
    assert f"**{seconds:,.0f} s**" in text, "and the downtime holds it"
    assert "from the second start on" in text, "both KV figures, since a start that compiles has less"


def test_an_old_plan_without_the_cache_key_is_no_fault() -> None:
    before = plan()
    del before["services"]["qwen"]["compileCache"]
    assert "downtime of this change" in planned("engine", before, plan(services__qwen__engine__maxModelLen=1024)), (
        "the base may be older than the key"
    )


def test_findings_that_come_and_go_are_told() -> None:
    pinned = plan(services__qwen__image__digest=f"sha256:{'a' * 64}")
    text = planned("image", plan(), pinned)
    assert "- gone: `vllm:services.qwen.image.digest`" in text, f"the warning is answered:\n{text}"
    back = planned("image", pinned, plan())
    assert "- new warning: `vllm:services.qwen.image.digest`" in back, f"and comes back:\n{back}"
    assert "as before" in text, "those that stay are counted, not repeated"


def test_a_finding_that_only_says_something_else_is_one_line() -> None:
    text = planned("image", plan(), plan(services__qwen__image__tag="v0.33.0"))
    assert "- warning, now: `vllm:services.qwen.image.digest`" in text, f"the warning is the same one:\n{text}"
    assert "- gone" not in text, "and not answered"


def test_a_box_of_the_checklist_that_changes_is_told() -> None:
    box = {"id": "image", "box": "the image | is pinned", "status": "checked", "where": "PIN-IMAGE"}
    sides = [{"services": {}, "checklist": {"qwen": [{**box, "status": status}]}} for status in ("checked", "held")]
    read = read_preview(recorded("nothing"))
    text = report(read, sides[0], sides[1], stack=STACK).text
    assert "| `qwen` | the image \\| is pinned | checked | held |" in text, f"a box that is held now:\n{text}"
    assert report(read, sides[0], sides[0], stack=STACK).text == "", "one that stands as before is no news"
    assert "checklist" in plan(), "and the plan carries it"


def test_a_new_stack_has_no_before() -> None:
    text = planned("create", None, plan())
    assert "| `qwen` | KV cache | none |" in text, f"only the one side:\n{text}"


def test_a_stack_with_several_services_has_a_sum() -> None:
    services = {name: {"cost": {"dollarsPerHour": 1.0, "dollarsPerMonth": 730.0}} for name in ("one", "two")}
    after = {"services": services, "findings": []}
    text = report(read_preview(recorded("nothing")), {"services": {}, "findings": []}, after, stack=STACK).text
    assert "| all | cost per month | $0 | $1,460.0 |" in text, f"the bill is one:\n{text}"


# --- a comment is a place where others write


@pytest.mark.parametrize("nasty", ["a|b", "`code`", "@everyone", "<img src=x>", "[click](http://x)", "a\n# b", "```"])
def test_what_a_stack_file_says_is_never_markup(nasty: str) -> None:
    env = {"spec": {"template": {"spec": {"containers": [{"image": nasty}]}}}}
    path = "spec.template.spec.containers[0].image"
    one = step("update", "kubernetes:apps/v1:Deployment", inputs=env, detailedDiff={path: {"kind": "add"}})
    finding = {"level": "warn", "rule": "X", "path": nasty, "message": nasty, "remedy": "", "source": ""}
    text = report(read_preview(preview(one)), None, {"services": {}, "findings": [finding]}, stack=STACK).text
    (row,) = rows(text, "updated")
    assert row.replace("\\|", "").count("|") == 4, f"the table keeps its three columns: {row}"
    bullet = next(line for line in text.splitlines() if line.startswith("- new warning"))
    prose = bullet.rpartition("` ")[2]
    for mark in ("<", "@everyone", r"(?<!\\)\[", r"(?<!\\)`"):
        assert not re.search(mark, prose), f"outside code it is escaped: {bullet}"
    assert "\n# b" not in text, "and it stays on its line"


def test_an_error_cannot_close_its_own_block() -> None:
    text = report(read_preview(preview(errors=("```\n# shouted",))), None, None, stack=STACK).text
    assert "````text" in text, f"the fence is longer than what is inside:\n{text}"


def test_a_long_comment_is_cut_at_a_line() -> None:
    steps = [step("update", "kubernetes:core/v1:ConfigMap", f"one-{index}") for index in range(500)]
    assert "440 more" in report(read_preview(preview(*steps)), None, None, stack=STACK).text, "rows are counted"
    endless = ("x" * 70 + "\n") * 2000
    text = report(read_preview(preview(errors=(endless,))), None, None, stack=STACK).text
    assert len(text) < LONGEST + 200, "GitHub refuses more than 65,536 characters"
    assert text.endswith("in the log of the job.\n"), "and says that something is missing"


# --- the command


def run(folder: Path, text: str, *arguments: str) -> tuple[int, str]:
    file = folder / "preview.json"
    file.write_text(text)
    answer = CliRunner().invoke(app, ["preview-report", str(file), "--stack", STACK, *arguments])
    assert answer.exception is None or isinstance(answer.exception, SystemExit), f"no traceback: {answer.exception!r}"
    return answer.exit_code, answer.output


def test_the_standard_input_is_read() -> None:
    answer = CliRunner().invoke(app, ["preview-report"], input=recorded("engine"))
    assert answer.exit_code == 0, answer.output
    assert answer.output == comment("engine"), "the stack's name is in the preview"


def test_a_refused_preview_fails_the_job(tmp_path: Path) -> None:
    code, output = run(tmp_path, recorded("refused"))
    assert (code, "the preview failed" in output) == (1, True), output


def test_both_plans_are_read_from_files(tmp_path: Path) -> None:
    for name, document in (("before", plan()), ("after", plan(services__qwen__engine__maxModelLen=1024))):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    files = ("--before-plan", str(tmp_path / "before.json"), "--after-plan", str(tmp_path / "after.json"))
    code, output = run(tmp_path, recorded("engine"), *files)
    assert (code, "context asked" in output) == (0, True), output


def test_the_base_is_read_from_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = (STACKS / "Pulumi.demo.yaml").read_text()
    asked: list[tuple[str, ...]] = []

    def git(*arguments: str) -> str | None:
        asked.append(arguments)
        return base.replace("maxModelLen: 2048", "maxModelLen: 1024") if arguments[0] == "show" else "commit"

    monkeypatch.setattr("infra.cli.pull_requests._git", git)
    code, output = run(tmp_path, recorded("engine"), "--stack", "demo", "--base-ref", "main")
    assert code == 0, output
    assert asked[-1] == ("show", "--end-of-options", "main:stacks/Pulumi.demo.yaml"), "the file of that commit"
    assert "| `qwen` | context asked | 1,024 tokens | 2,048 tokens |" in output, output


def test_a_base_that_is_not_there_is_refused(tmp_path: Path) -> None:
    code, output = run(tmp_path, recorded("engine"), "--stack", "demo", "--base-ref", "no-such-branch")
    assert (code, "no such commit" in output) == (2, True), output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no JSON"),
        ("Previewing update (demo)", "is no JSON"),
        ("[]", "has no steps"),
        ('{"services": {}}', "has no steps"),
    ],
)
def test_something_else_is_refused(text: str, said: str) -> None:
    with pytest.raises(PreviewError, match=said):
        read_preview(text)


def test_a_plan_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    code, output = run(tmp_path, recorded("engine"), "--after-plan", str(tmp_path / "plan.json"))
    assert (code, "vllm-infra plan --json" in output) == (2, True), output
