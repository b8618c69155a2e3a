"""The tools that the simulated cluster and the tests need, built from pinned Go modules.

A usable tool on ``PATH`` is taken as it is. The others are built once into a cache outside the
repository; the cache key is made of everything that decides what the binary is, so a changed pin is
a new build and an unchanged one never is.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

MODULES = Path(__file__).parent / "tools"
MINIMUM_GO = (1, 26)
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")


class ToolError(Exception):
    """A tool cannot be had; the message says what is missing and how to get it."""


@dataclass(frozen=True)
class Tool:
    """One executable: where its source is pinned, and from which version on a found one is usable.

    ``minutes`` is what a cold build took on two cores; it is only shown.
    """

    name: str
    module: str
    package: str
    minimum: tuple[int, int, int]
    minutes: float
    version_args: tuple[str, ...] = ("--version",)
    linker_variables: tuple[tuple[str, str], ...] = ()
    copies: tuple[str, ...] = ()
    """Files of the module (``module path:file``) that are copied beside our own ``main``."""
    companions: tuple[str, ...] = ()
    """Scripts of the module (``module path:file``) that are installed beside the executable."""
    tags: tuple[str, ...] = ()
    """Go's build tags."""
    libraries: tuple[tuple[str, str], ...] = ()
    """C libraries it is linked with: pkg-config's name and Debian's package. They need a C compiler."""
    static: bool = False
    """Built without C, so that it runs in an image that holds nothing else."""


KUBERNETES = "v1.37.2"
PULUMI = "v3.274.1"
PROVIDER_MODULE = "github.com/pulumi/pulumi-kubernetes/provider/v4"
_KUBERNETES_VARIABLES = (
    ("k8s.io/component-base/version.gitVersion", KUBERNETES),
    ("k8s.io/component-base/version.gitMajor", "1"),
    ("k8s.io/component-base/version.gitMinor", "37"),
)


def _kubernetes(name: str, minutes: float) -> Tool:
    return Tool(
        name,
        "kubernetes",
        f"k8s.io/kubernetes/cmd/{name}",
        (1, 37, 0),
        minutes,
        linker_variables=_KUBERNETES_VARIABLES,
    )


# In the order of first use: what `make up` needs first is built first.
TOOLS: tuple[Tool, ...] = (
    Tool("etcd", "etcd", "go.etcd.io/etcd/server/v3", (3, 5, 0), 1.5),
    _kubernetes("kube-apiserver", 8.5),
    _kubernetes("kube-controller-manager", 2),
    _kubernetes("kube-scheduler", 1.5),
    Tool("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", (0, 8, 0), 3),
    Tool("kwokctl", "kwok", "sigs.k8s.io/kwok/cmd/kwokctl", (0, 8, 0), 1.5),
    Tool("controller-gen", "controller-gen", "sigs.k8s.io/controller-tools/cmd/controller-gen", (0, 18, 0), 1),
    Tool(
        "pulumi",
        "pulumi",
        "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi",
        (3, 260, 0),
        6.5,
        version_args=("version",),
        linker_variables=(("github.com/pulumi/pulumi/sdk/v3/go/common/version.Version", PULUMI),),
    ),
    Tool(
        "pulumi-language-python",
        "pulumi-language-python",
        "github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python",
        (3, 78, 1),
        1,
        version_args=(),
        companions=("pulumi:github.com/pulumi/pulumi/sdk/v3:python/cmd/pulumi-language-python-exec",),
    ),
    Tool(
        "pulumi-resource-kubernetes",
        "pulumi-resource-kubernetes",
        ".",
        (4, 23, 0),
        15,
        version_args=(),
        linker_variables=((f"{PROVIDER_MODULE}/pkg/version.Version", "v4.25.0"),),
        copies=(
            f"{PROVIDER_MODULE}:cmd/pulumi-resource-kubernetes/schema.json",
            f"{PROVIDER_MODULE}:cmd/pulumi-resource-kubernetes/terraform-mapping.json",
        ),
    ),
    # 2.43.0 is the first that knows scrape_config_files (Prometheus' CHANGELOG, #12019).
    Tool("promtool", "prometheus", "github.com/prometheus/prometheus/cmd/promtool", (2, 43, 0), 10),
    Tool("prometheus", "prometheus", "github.com/prometheus/prometheus/cmd/prometheus", (2, 43, 0), 3),
    # 0.26.0 is the first that reads a web hook's address from a file (Alertmanager's CHANGELOG, #3223).
    Tool("amtool", "alertmanager", "github.com/prometheus/alertmanager/cmd/amtool", (0, 26, 0), 3),
)

CONTAINERD = "v2.4.2"


def _containerd(name: str, minutes: float) -> Tool:
    return _own(
        Tool(
            name,
            "containerd",
            f"github.com/containerd/containerd/v2/cmd/{name}",
            (2, 4, 0),
            minutes,
            linker_variables=(("github.com/containerd/containerd/v2/version.Version", CONTAINERD),),
            static=True,
        )
    )


def _cni_plugin(name: str) -> Tool:
    package = f"github.com/containernetworking/plugins/plugins/{name}"
    return _own(Tool(name.rpartition("/")[2], "cni-plugins", package, (1, 10, 0), 0.5, static=True))


def _own(tool: Tool) -> Tool:
    """Never one from PATH: the parts of a node fit each other, and a distribution's are years older."""
    return replace(tool, version_args=())


# The real node (sim/real_node) needs them, and nobody else. The first two come from the module of the API
# server with more of its requirements: a module of their own leaves the key of the API server alone.
NODE_TOOLS: tuple[Tool, ...] = (
    _own(replace(_kubernetes("kubelet", 3), module="kubernetes-node")),
    _own(replace(_kubernetes("kube-proxy", 1), module="kubernetes-node")),
    _containerd("containerd", 2),
    _containerd("containerd-shim-runc-v2", 0.5),
    _containerd("ctr", 0.5),
    _own(
        Tool(
            "runc",
            "runc",
            "github.com/opencontainers/runc",
            (1, 5, 0),
            0.5,
            tags=("seccomp",),
            libraries=(("libseccomp", "libseccomp-dev"),),
        )
    ),
    _cni_plugin("main/bridge"),
    _cni_plugin("main/loopback"),
    _cni_plugin("ipam/host-local"),
    _own(Tool("pause", "pause", ".", (0, 0, 0), 0.2, static=True)),
    _own(Tool("stand-in", "stand-in", ".", (0, 0, 0), 0.5, static=True)),
)
_BY_NAME = {tool.name: tool for tool in (*TOOLS, *NODE_TOOLS)}

# An official Pulumi CLI brings its own language host and downloads its own provider.
_PULUMI_PARTS = ("pulumi-language-python", "pulumi-resource-kubernetes")


def by_name(name: str) -> Tool:
    """The tool called ``name``."""
    return _BY_NAME[name]


def cache_folder() -> Path:
    """Where built tools are kept: outside the repository, shared by all checkouts."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "pulumi-vllm" / "tools"


def _linker_flags(tool: Tool) -> str:
    return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in tool.linker_variables)])


def _tag_flags(tool: Tool) -> list[str]:
    return ["-tags", ",".join(tool.tags)] if tool.tags else []


def cache_key(tool: Tool) -> str:
    """A digest of everything that decides what the binary of ``tool`` is."""
    digest = hashlib.sha256()
    for file in sorted((MODULES / tool.module).glob("*")):
        if file.suffix in {".mod", ".sum", ".go"}:
            digest.update(file.read_bytes())
    static = ["CGO_ENABLED=0"] if tool.static else []
    for part in (tool.package, _linker_flags(tool), *tool.copies, *tool.companions, *tool.tags, *static):
        digest.update(part.encode())
    for companion in tool.companions:
        digest.update((MODULES / companion.split(":")[0] / "go.sum").read_bytes())
    return digest.hexdigest()[:16]


def built_path(tool: Tool) -> Path:
    """Where the built executable of ``tool`` is, or will be."""
    return cache_folder() / f"{tool.name}-{cache_key(tool)}" / tool.name


def found_on_path(tool: Tool) -> Path | None:
    """The executable on ``PATH`` if it is there and new enough, else ``None``."""
    path = shutil.which(tool.name, path=_path_without_cache())
    if path is None or not tool.version_args:
        return None
    try:
        answer = subprocess.run([path, *tool.version_args], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = _VERSION.search(answer.stdout + answer.stderr)
    if version is None or tuple(int(part) for part in version.groups()) < tool.minimum:
        return None
    return Path(path)


def _path_without_cache() -> str:
    """``PATH`` without the tools built here: `python -m sim env` puts them there, and they are no found ones."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if cache_folder() not in Path(folder).parents)


def resolve(names: Iterable[str]) -> tuple[dict[str, Path], list[Tool]]:
    """Split ``names`` into what is there (name → executable) and what must be built first."""
    present: dict[str, Path] = {}
    missing: list[Tool] = []
    wanted = list(names)
    if "pulumi" in wanted and found_on_path(by_name("pulumi")):
        wanted = [name for name in wanted if name not in _PULUMI_PARTS]
    for name in wanted:
        tool = by_name(name)
        path = found_on_path(tool) or (built_path(tool) if built_path(tool).is_file() else None)
        if path is None:
            missing.append(tool)
        else:
            present[name] = path
    return present, missing


def ensure(names: Iterable[str] | None = None, report: bool = True) -> dict[str, Path]:
    """Return the executables of ``names`` (default: all but the real node's), building what is missing.

    Raises:
        ToolError: no usable Go, a C library is missing, or a build failed; the message holds the end of its output.
    """
    wanted = [tool.name for tool in TOOLS] if names is None else list(names)
    present, missing = resolve(wanted)
    if missing:
        require_go()
        require_libraries(missing)
    for position, tool in enumerate(missing, start=1):
        if report:
            print(f"[{position}/{len(missing)}] {tool.name}: building, about {tool.minutes:g} min cold …", flush=True)
        started = time.monotonic()
        present[tool.name] = build(tool)
        if report:
            print(f"[{position}/{len(missing)}] {tool.name}: {time.monotonic() - started:.0f} s", flush=True)
    return present


def build(tool: Tool) -> Path:
    """Build ``tool`` into the cache; a build that was interrupted resumes from Go's build cache."""
    target = built_path(tool)
    target.parent.mkdir(parents=True, exist_ok=True)
    with only_one(target.parent / ".lock"):
        if target.is_file():
            return target
        source = _source_folder(tool)
        partial = target.with_name(f".{tool.name}.partial")
        flags = ["-trimpath", "-buildvcs=false", "-ldflags", _linker_flags(tool), *_tag_flags(tool)]
        environment = {"CGO_ENABLED": "0"} if tool.static else {}
        _go(["build", *flags, "-o", str(partial), tool.package], source, tool.name, environment)
        for companion in tool.companions:
            module, path, file = companion.split(":")
            script = target.parent / Path(file).name
            shutil.copyfile(_module_folder(path, MODULES / module) / file, script)
            script.chmod(script.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH | stat.S_IWUSR)
        partial.rename(target)
    return target


def _source_folder(tool: Tool) -> Path:
    """The folder to build in: the pinned module, or a copy of it with the files it embeds."""
    module = MODULES / tool.module
    if not tool.copies:
        return module
    source = built_path(tool).parent / "source"
    source.mkdir(exist_ok=True)
    for file in module.iterdir():
        if file.suffix in {".mod", ".sum", ".go"}:
            shutil.copyfile(file, source / file.name)
    for copy in tool.copies:
        path, embedded = copy.split(":")
        shutil.copyfile(_module_folder(path, module) / embedded, source / Path(embedded).name)
    return source


def _module_folder(path: str, module: Path) -> Path:
    """Where the module cache holds ``path`` at the version that ``module`` pins."""
    return Path(json.loads(_go(["mod", "download", "-json", _pinned(path, module)], module, path))["Dir"])


def node_versions() -> dict[str, str]:
    """What the real node is made of, as pinned: none of it is ever taken from ``PATH``."""
    runc = _pinned("github.com/opencontainers/runc", MODULES / "runc").partition("@")[2]
    pins = {"Kubernetes": KUBERNETES, "containerd": CONTAINERD, "runc": runc}
    return {name: pin.removeprefix("v") for name, pin in pins.items()}


def version(name: str) -> str:
    """What the tool ``name`` says its version is, whether it was found or built here.

    Raises:
        ToolError: it says none.
    """
    tool = by_name(name)
    executable = ensure([name], report=False)[name]
    answer = subprocess.run([executable, *tool.version_args], capture_output=True, text=True, timeout=30, check=False)
    said = _VERSION.search(answer.stdout)
    if said is None:
        raise ToolError(f"{executable} does not say its version: {answer.stdout}{answer.stderr}")
    return said[0].removeprefix("v")


def _pinned(path: str, module: Path) -> str:
    version = re.search(rf"^\s*(?:require )?{re.escape(path)} (v\S+)", (module / "go.mod").read_text(), re.MULTILINE)
    if version is None:
        raise ToolError(f"{module / 'go.mod'} does not pin {path}")
    return f"{path}@{version.group(1)}"


def _go(arguments: list[str], folder: Path, what: str, variables: Mapping[str, str] | None = None) -> str:
    environment = {**os.environ, **(variables or {})}
    command = ["go", *arguments]
    answer = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        end = "\n".join(answer.stderr.strip().splitlines()[-15:])
        raise ToolError(f"building {what} failed; run the same command again to resume.\n{end}")
    return answer.stdout


def require_go() -> None:
    """Raise ToolError, with what to install, unless a Go that can build the tools is on ``PATH``."""
    wanted = ".".join(str(part) for part in MINIMUM_GO)
    if shutil.which("go") is None:
        raise ToolError(f"Go {wanted} or newer is needed to build the tools: install it and put `go` on PATH")
    answer = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=False)
    version = re.search(r"go(\d+)\.(\d+)", answer.stdout)
    if version is None or tuple(int(part) for part in version.groups()) < MINIMUM_GO:
        raise ToolError(f"Go {wanted} or newer is needed to build the tools; found {answer.stdout.strip() or 'none'}")


def require_libraries(wanted: Iterable[Tool]) -> None:
    """Raise ToolError, with what to install, unless what ``wanted`` are linked with is there."""
    libraries = {library for tool in wanted for library in tool.libraries}
    if not libraries:
        return
    packages = [name for name in ("gcc", "pkg-config") if shutil.which(name) is None]
    for library, package in sorted(libraries):
        if "pkg-config" in packages or subprocess.run(["pkg-config", "--exists", library], check=False).returncode:
            packages.append(package)
    if packages:
        raise ToolError(
            f"{' and '.join(packages)} must be there to build a tool: on Debian and Ubuntu, "
            f"apt-get install {' '.join(packages)}"
        )


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Keep every other process that asks for the same ``lock`` file waiting."""
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
