"""`/metrics` of a server, from a URL, a saved page or the pods of a service."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import urlencode, urlsplit

from kubernetes import client
from prometheus_client.parser import text_string_to_metric_families

from components import naming
from infra import live
from infra.port_forward import ForwardError, Pod, Request, ask_pod

PREFIX = "vllm:"
STARTED = "process_start_time_seconds"
"""When the server's process began: of prometheus_client, absent where several API servers are merged."""
GPU_UTILISATION = "DCGM_FI_DEV_GPU_UTIL"
"""Percent of time in which a kernel ran (https://github.com/NVIDIA/dcgm-exporter, etc/default-counters.csv)."""
Labels = frozenset[tuple[str, str]]


class SnapshotError(Exception):
    """A page cannot be had or is not vLLM's; the message says which, why and what helps."""


@dataclass(frozen=True)
class Exposition:
    """One server at one moment: the value of each series, by sample name (``vllm:prompt_tokens_total``) and labels."""

    samples: Mapping[str, Mapping[Labels, float]]

    def total(self, name: str) -> float | None:
        """The sum over all labels, ``None`` when the page has no such name."""
        return sum(self.samples[name].values()) if name in self.samples else None


def parse(text: str, origin: str) -> Exposition:
    """The series of a page.

    Raises:
        SnapshotError: empty, no exposition, or without any series of vLLM's.
    """
    samples = _samples(text, origin)
    if not any(name.startswith(PREFIX) for name in samples):
        found = ", ".join(sorted(samples)[:3])
        raise SnapshotError(
            f"{origin} has no series that begins with {PREFIX}"
            + (f" (it has {found}, …)" if found else " (it is empty)")
            + ": it is not vLLM's /metrics, or the server runs with --disable-log-stats"
        )
    return Exposition(samples)


def from_file(path: Path) -> Exposition:
    """A saved page.

    Raises:
        SnapshotError: unreadable, or as :func:`parse`.
    """
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise SnapshotError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def from_url(url: str) -> Exposition:
    """The page at a URL; ``/metrics`` when the URL has no path.

    Raises:
        SnapshotError: not reached, refused, or as :func:`parse`.
    """
    return parse(_fetch(url), url)


def from_pods(api: client.ApiClient, namespace: str, service: str, port: int) -> dict[str, Exposition]:
    """The page of every ready replica of a service, by pod, each through a port-forward.

    Raises:
        SnapshotError: no replica is ready, or one cannot be read.
        infra.live.LiveError: the cluster cannot be reached.
    """
    pods = _ready_pods(api, namespace, service)
    if not pods:
        raise SnapshotError(
            f"no replica of {service} is ready in namespace {namespace}: `vllm-infra diagnose --service {service}`"
        )
    return {pod: parse(_forwarded(api, namespace, pod, port), f"/metrics of pod {pod}") for pod in pods}


def gpu_utilisation(url: str, pods: frozenset[str]) -> float:
    """Mean utilisation of the GPUs of ``pods`` in %, from a DCGM exporter; of all its GPUs when it names no such pod.

    Raises:
        SnapshotError: not reached, or no page of a DCGM exporter.
    """
    found = _samples(_fetch(url), url).get(GPU_UTILISATION)
    if not found:
        raise SnapshotError(f"{url} has no {GPU_UTILISATION}: it is no page of a DCGM exporter")
    ours = [
        value for labels, value in found.items() if pods & {dict(labels).get("pod"), dict(labels).get("exported_pod")}
    ]
    return fmean(ours or found.values())


def _samples(text: str, origin: str) -> dict[str, dict[Labels, float]]:
    samples: dict[str, dict[Labels, float]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(sample.name, {})[frozenset(sample.labels.items())] = float(sample.value)
    except (ValueError, IndexError, KeyError) as error:
        raise SnapshotError(f"{origin} is no page of metrics: {error or 'it cannot be parsed'}") from None
    return samples


def _fetch(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise SnapshotError(f"{url} is no http address: write http://HOST:PORT")
    address = url if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/metrics"
    try:
        with urllib.request.urlopen(address, timeout=live.TIMEOUT_SECONDS) as answer:  # noqa: S310 - checked above
            return str(answer.read().decode(errors="replace"))
    except urllib.error.HTTPError as error:
        with error:
            raise SnapshotError(f"{address} answers {error.code}: is it the address of the server?") from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise SnapshotError(f"{address} cannot be reached: {reason}") from None


def _ready_pods(api: client.ApiClient, namespace: str, service: str) -> list[str]:
    labels = ",".join(f"{key}={value}" for key, value in naming.selector_labels(service, "server").items())
    path = f"/api/v1/namespaces/{namespace}/pods?{urlencode({'labelSelector': labels})}"
    answer = live.get(api, path)
    if answer.status != HTTPStatus.OK:
        raise SnapshotError(f"the cluster answers {answer.status} to a read of the pods of namespace {namespace}")
    return sorted(pod["metadata"]["name"] for pod in json.loads(answer.body)["items"] if _is_ready(pod))


def _is_ready(pod: Mapping[str, Any]) -> bool:
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
    return ready and "deletionTimestamp" not in pod["metadata"]


def _forwarded(api: client.ApiClient, namespace: str, pod: str, port: int) -> str:
    try:
        answer = ask_pod(api, Pod(namespace, pod, port), Request("/metrics"), live.TIMEOUT_SECONDS)
    except ForwardError as error:
        raise SnapshotError(str(error)) from None
    if answer.status != HTTPStatus.OK:
        raise SnapshotError(f"/metrics of pod {pod} answers {answer.status}")
    return answer.body.decode(errors="replace")
