"""Draws docs/dashboard.png: the dashboard of a stack's service while its prompts stop hitting the prefix cache.

    python -m scripts.make_dashboard_picture

The dashboard, the rules and the alerts are the stack's own, evaluated by a real Prometheus. The panels are Grafana's
own components (scripts/dashboard_page), shown by Chromium; a Grafana server is not involved. What the servers expose
comes from a queueing model (scripts/simulated_load.py), so the picture shows the dashboard and measures nothing.
Needs Node.js with npm, and Chromium. Takes nine minutes: the last seven are read and evaluated in real time, because
alerts hold for minutes before they fire.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, cast
from urllib.request import urlopen

from components.dashboard import dashboard_json
from components.documents import yaml_text
from components.monitoring import drop_rule, rule_file
from components.monitoring_names import targets_of
from planner.alerts import Target, rule_groups
from planner.plan import plan_services
from planner.scrape import dropped_names
from planner.spec.monitoring import ActiveMonitoring
from scripts.simulated_load import Moment, Server, backfill, page
from sim import tools
from tests.stack_files import config

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "dashboard.png"
PAGE = Path(__file__).parent / "dashboard_page"
STACK, NAMESPACE = "l40s-pair-eks", "vllm"
MONITORING = {"mode": "operator", "labels": {"release": "prometheus"}}
MODEL = "Qwen/Qwen2.5-7B-Instruct"
SHOWN_SECONDS = 3600
BACKFILLED_SECONDS = 2400 + SHOWN_SECONDS
"""Some minutes are lost before what is shown: rates need them, and the load must settle."""
GAP_SECONDS = 90
"""From the beginning of the work to Prometheus' first reading; what is before it is backfilled."""
EVALUATED_SECONDS = 7 * 60
"""How long Prometheus reads and evaluates before the picture is taken: longer than three of the core alerts hold."""
COLLAPSE_SECONDS = 13 * 60
"""How long before the picture prompts stop beginning alike."""
WIDTH, CELL, MARGIN = 1760, 38, 56
"""Pixels: the window's width, a row of Grafana's grid, title and lower edge."""


def target() -> Target:
    """The stack's service with its release, alerts and price."""
    stack = config(STACK, {"monitoring": MONITORING})
    plans, _ = plan_services(stack.nodes, stack.services)
    (made,) = targets_of(plans, cast(ActiveMonitoring, stack.monitoring), NAMESPACE)
    return made


def load(replica: int, length: float) -> Callable[[float], Moment]:
    """What clients do at a replica over ``length`` seconds: slow waves, and at the end another prompt template."""

    def moment(at: float) -> Moment:
        requests = (5.8, 5.4)[replica % 2] + 0.2 * math.sin(at / 400 + replica)
        return Moment(requests, 0.55 if at < length - COLLAPSE_SECONDS else 0.1)

    return moment


@contextmanager
def serving(servers: Mapping[str, Server], start: int) -> Iterator[str]:
    """/POD/metrics of each server as it is at the moment: the address."""

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server = servers[self.path.split("/")[1]]
            server.run_until(time.time() - start)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(page(server).encode())

        def log_message(self, *_: object) -> None:
            """Not a word for each reading."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as listening:
        Thread(target=listening.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{listening.server_port}"
        listening.shutdown()


def scrape(made: Target, servers: Iterable[str], address: str) -> dict[str, Any]:
    """The scrape of the simulated servers: the labels and the dropped names of the stack's own."""
    labels = {"namespace": made.namespace, "service": made.service}
    return {
        "job_name": made.service,
        "scrape_interval": f"{made.scrape_interval_seconds}s",
        "static_configs": [
            {
                "targets": [address],
                "labels": {**labels, "__metrics_path__": f"/{pod}/metrics", "instance": pod, "pod": pod},
            }
            for pod in servers
        ],
        "metric_relabel_configs": [drop_rule(made, (), "source_labels")],
    }


@contextmanager
def prometheus(folder: Path, job: Mapping[str, Any]) -> Iterator[str]:
    """A Prometheus with the rules and blocks of ``folder``: its address."""
    settings = {"rule_files": ["rules.yaml"], "scrape_configs": [job]}
    (folder / "prometheus.yaml").write_text(json.dumps(settings), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command: list[str | Path] = [
        tools.ensure(["prometheus"])["prometheus"],
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with (folder / "prometheus.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            wait_until_ready(server, f"http://{address}/-/ready")
            yield f"http://{address}"
        finally:
            server.terminate()


def wait_until_ready(server: subprocess.Popen[bytes], url: str) -> None:
    """Return when ``url`` answers; raise when the server has ended."""
    while server.poll() is None:
        try:
            with urlopen(url, timeout=5):  # noqa: S310
                return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"Prometheus ended with {server.returncode}")


def bundle() -> Path:
    """The page as one script; its libraries are installed once, beside the tools."""
    key = hashlib.sha256((PAGE / "package.json").read_bytes()).hexdigest()[:16]
    folder = tools.cache_folder() / f"dashboard-page-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    for file in PAGE.iterdir():
        shutil.copyfile(file, folder / file.name)
    if not (folder / "node_modules").is_dir():
        run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], folder)
    options = [
        "--bundle",
        "--minify",
        "--format=iife",
        "--jsx=automatic",
        "--loader:.svg=dataurl",
        "--loader:.ttf=empty",
    ]
    define = '--define:process.env.NODE_ENV="production"'
    run(["node_modules/.bin/esbuild", "page.tsx", "--outfile=page.js", "--log-level=error", define, *options], folder)
    return folder / "page.js"


def run(command: list[str | Path], folder: Path) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, cwd=folder, check=True)


def draw(made: Target, address: str, end: int, folder: Path) -> None:
    """Show the dashboard with what Prometheus knows at ``end`` and take its picture."""
    document = dashboard_json(made)
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in json.loads(document)["panels"])
    constants = f"const DASHBOARD={document},PROMETHEUS={json.dumps(address)},FROM={end - SHOWN_SECONDS},TO={end};"
    script = bundle()
    (folder / "page.html").write_text(
        f'<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="{script.with_suffix(".css")}">'
        f'<div id="page"></div><script>{constants}</script><script src="{script}"></script>',
        encoding="utf-8",
    )
    command: list[str | Path] = [
        "chromium",
        "--headless=new",
        "--no-sandbox",
        "--hide-scrollbars",
        "--allow-file-access-from-files",
        f"--window-size={WIDTH},{rows * CELL + MARGIN}",
        "--virtual-time-budget=60000",
        f"--screenshot={PICTURE}",
        (folder / "page.html").as_uri(),
    ]
    PICTURE.unlink(missing_ok=True)
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if not PICTURE.is_file():
        raise RuntimeError(f"Chromium made no picture: {answer.stderr}")


def main() -> None:
    """Backfill what was, let Prometheus read and evaluate what is, and draw what it knows then."""
    made = target()
    interval = made.scrape_interval_seconds
    first = int(time.time()) // interval * interval + GAP_SECONDS
    start, end = first - BACKFILLED_SECONDS, first + EVALUATED_SECONDS
    servers = {
        f"{name}-6c5d8f7b9-x{replica}kqz": Server(
            made.metrics, MODEL, made.kv_tokens, load(replica, end - start), replica
        )
        for replica, name in enumerate(made.servers)
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rules.yaml").write_text(rule_file(made), encoding="utf-8")
        (folder / "records.yaml").write_text(yaml_text({"groups": rule_groups(made)[:1]}), encoding="utf-8")
        labels = {"namespace": made.namespace, "service": made.service, "job": made.service}
        dropped = re.compile("|".join(dropped_names(made)))
        before = backfill(servers, labels, range(start, first, interval), dropped)
        (folder / "readings").write_text(before, encoding="utf-8")
        create: list[str | Path] = [tools.ensure(["promtool"])["promtool"], "tsdb", "create-blocks-from"]
        run([*create, "openmetrics", "--quiet", "readings", "data"], folder)
        with serving(servers, start) as address, prometheus(folder, scrape(made, servers, address)) as url:
            period = [f"--start={start}", f"--end={first}", f"--eval-interval={interval}s"]
            run([*create, "rules", *period, f"--url={url}", "--output-dir=data", "records.yaml"], folder)
            time.sleep(max(0.0, end - time.time()))
            draw(made, url, end, folder)


if __name__ == "__main__":
    main()
