"""The compile caches beside each other: vLLM makes a folder of its own for every set of settings that it compiles.

``torch_compile_cache/KEY`` holds traced graphs, ``torch_compile_cache/torch_aot_compile/KEY`` whole compiled models
(vllm/compilation/backends.py, vllm/compilation/decorators.py). Nothing ever removes one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream

from infra import live
from infra.cold_start.evidence import CONTAINER
from infra.cold_start.log import StartLog
from infra.diagnosis import Unread

COMMAND = ("sh", "-c", 'exec du -k -d 2 "${VLLM_CACHE_ROOT:-$HOME/.cache/vllm}/torch_compile_cache"')
"""Lists the folders with their sizes, in a container; every image of vLLM's has it."""
_FOLDER = re.compile(r"^(?P<size>\d+)\s+\S*/torch_compile_cache/(?P<aot>torch_aot_compile/)?(?P<key>[0-9a-f]{10,64})$")
_KEY = re.compile(r"/torch_compile_cache/(?:torch_aot_compile/)?([0-9a-f]{10,64})/")


@dataclass(frozen=True)
class CacheKey:
    """One key: its name, what its folder takes on disk in KiB, and whether this start read or wrote it."""

    name: str
    kibibytes: int
    used: bool


def listed(api: client.ApiClient, namespace: str, pod: str) -> str:
    """What :data:`COMMAND` prints in the server's container; needs get and create of pods/exec.

    Raises:
        Unread: it may not be run, or its connection broke.
    """
    core = client.CoreV1Api(api)
    try:
        answer = stream(
            core.connect_get_namespaced_pod_exec,
            pod,
            namespace,
            container=CONTAINER,
            command=list(COMMAND),
            stdout=True,
            stderr=False,
            stdin=False,
            tty=False,
            _request_timeout=live.TIMEOUT_SECONDS,
        )
    except (ApiException, OSError) as error:
        reason = str(getattr(error, "reason", None) or error).partition(" -+-+- ")[0]
        raise Unread(f"no command can be run in pod {pod}: {reason}") from None
    return str(answer)


def keys_of(listing: str, log: StartLog) -> tuple[CacheKey, ...]:
    """The keys in what :data:`COMMAND` printed, the largest first."""
    used = set(_used(log))
    found = [_FOLDER.match(line.strip()) for line in listing.splitlines()]
    keys = [CacheKey(each["key"], int(each["size"]), each["key"] in used) for each in found if each]
    return tuple(sorted(keys, key=lambda key: -key.kibibytes))


def _used(log: StartLog) -> Iterator[str]:
    """Keys in the paths that the log names."""
    for match in log.matches:
        if match.name in {"cacheFolder", "cacheHit", "cacheSaved", "cacheBroken"}:
            yield from _KEY.findall(f"{match.values.get('text', '')}/")
