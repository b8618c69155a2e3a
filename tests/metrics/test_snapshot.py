"""`vllm-infra snapshot` on a real server: its figures are those of the requests that were sent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.snapshot import parse
from sim.traffic import Answer, Client, at_once
from tests.metrics.prometheus import until
from tests.metrics.service import MAX_NUM_SEQS
from tests.metrics.words import prompt

pytestmark = pytest.mark.metrics
REPOSITORY = Path(__file__).parents[2]
SEND = """
import sys
from sim.traffic import Client
client = Client(int(sys.argv[1]), sys.argv[2])
answers = [client.complete("one two three four five " * 40, 24) for _ in range(3)]
print(sum(each.prompt_tokens for each in answers), sum(each.generated_tokens for each in answers), file=sys.stderr)
"""


def snapshot(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("vllm-infra")), "snapshot", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def of_pages(before: str, after: str, folder: Path) -> dict[str, Any]:
    """What the command says between two pages of the server."""
    files = folder / "before.prom", folder / "after.prom"
    for file, text in zip(files, (before, after), strict=True):
        file.write_text(text, encoding="utf-8")
    answer = snapshot("--before", str(files[0]), "--after", str(files[1]), "--json")
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)["server"]
    return found


def test_counts_are_exact(client: Client, tmp_path: Path) -> None:
    before = client.page()
    answers: list[Answer] = at_once(2 * MAX_NUM_SEQS, lambda number: client.stream(prompt(number, 100), 10 + number))
    answers.append(client.chat([{"role": "user", "content": prompt(1, 60)}], 7))
    found = of_pages(before, client.page(), tmp_path)
    assert found["requests"] == len(answers), "every request has ended"
    assert found["promptTokens"] == sum(each.prompt_tokens for each in answers), "as the answers' usage says"
    assert found["generatedTokens"] == sum(each.generated_tokens for each in answers), "as the answers' usage says"
    assert found["timings"]["timeToFirstToken"]["count"] == len(answers), "each has one first token"
    gaps = sum(each.generated_tokens - 1 for each in answers)
    assert found["timings"]["interTokenLatency"]["count"] == gaps, "and one gap less than tokens"
    assert (found["running"], found["waiting"]) == (0, 0), "nothing is left"
    assert not found["notes"], found["notes"]


def test_the_server_sees_the_first_token_before_its_client(client: Client, tmp_path: Path) -> None:
    before = client.page()
    answers = at_once(MAX_NUM_SEQS, lambda number: client.stream(prompt(number, 200), 8))
    found = of_pages(before, client.page(), tmp_path)
    mean = found["timings"]["timeToFirstToken"]["meanSeconds"]
    at_client = sum(each.first_token_seconds or 0 for each in answers) / len(answers)
    assert 0 < mean < at_client, "what the server measures is a part of what its client waits for"
    parts = [found["timings"][part]["meanSeconds"] for part in ("queue", "prefill")]
    assert abs(sum(parts) + found["timeToFirstTokenRestSeconds"] - mean) < 1e-9, "queue + prefill + rest"


def test_a_prompt_that_is_sent_again_hits_the_prefix_cache(client: Client, tmp_path: Path) -> None:
    text = prompt(9, 400)
    client.complete(text, 1)
    before = client.page()
    again = client.complete(text, 1)
    found = of_pages(before, client.page(), tmp_path)["prefixCache"]
    assert found["queries"] == again.prompt_tokens, "the unit is prompt tokens"
    assert 0 < found["hits"] < again.prompt_tokens, "full blocks hit, the last token never does"
    assert found["hits"] % 16 == 0, "blocks are reused whole"


def test_it_reads_before_and_after_a_command(client: Client) -> None:
    address = f"http://127.0.0.1:{client.port}"
    command = [sys.executable, "-c", SEND, str(client.port), client.model]
    answer = snapshot("--url", address, "--json", "--", *command)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)[address]
    sent = [int(word) for word in answer.stderr.split()[-2:]]
    assert [found["promptTokens"], found["generatedTokens"]] == sent, "what the command sent, and nothing else"
    assert found["requests"] == 3, "so many it was"
    assert found["replicas"] == 1, "one address is one server"


def test_a_request_that_its_client_gives_up_is_said_and_counted_nowhere(client: Client, tmp_path: Path) -> None:
    before = client.page()
    client.abandon(prompt(5, 40), 2000)
    until(lambda: _running(client.page()) == 0, "it has gone")
    client.complete(prompt(6, 40), 4)
    found = of_pages(before, client.page(), tmp_path)
    assert found["timings"]["timeToFirstToken"]["count"] == 2, "both had a first token"
    assert found["requests"] == 1, "vLLM forgets the one that was given up"
    assert any(note.startswith("at least 1 had a first token and no end") for note in found["notes"]), found["notes"]


def _running(page: str) -> float | None:
    return parse(page, "the server").total("vllm:num_requests_running")
