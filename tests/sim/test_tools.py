"""Which tool is used: the one on PATH, the one in the cache, or one that must be built."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sim import tools


def _executable(folder: Path, name: str, prints: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\necho '{prints}'\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache of built tools, and a PATH with nothing but a shell."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/bin:/usr/bin")


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("prints", "used"),
    [
        ("etcd Version: 3.4.9", False),
        ("etcd Version: 3.5.0", True),
        ("etcd Version: 3.10.0", True),
        ("no version at all", False),
    ],
)
def test_a_tool_on_path_is_used_if_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prints: str, used: bool
) -> None:
    file = _executable(tmp_path / "found", "etcd", prints)
    monkeypatch.setenv("PATH", f"{file.parent}:/bin:/usr/bin")
    present, missing = tools.resolve(["etcd"])
    assert (present.get("etcd") == file) is used, f"{prints!r} against a minimum of {tools.by_name('etcd').minimum}"
    assert [tool.name for tool in missing] == ([] if used else ["etcd"]), "what cannot be used must be built"


@pytest.mark.usefixtures("cache")
def test_an_executable_that_cannot_be_started_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _executable(tmp_path / "found", "etcd", "etcd Version: 3.7.3")
    file.write_text("#!/no/such/interpreter\n")
    monkeypatch.setenv("PATH", f"{file.parent}:/bin:/usr/bin")
    assert tools.resolve(["etcd"])[0] == {}, "its interpreter is missing"


@pytest.mark.usefixtures("cache")
def test_a_built_tool_is_used_from_the_cache() -> None:
    built = tools.built_path(tools.by_name("etcd"))
    _executable(built.parent, built.name, "etcd Version: 3.7.3")
    assert tools.resolve(["etcd"]) == ({"etcd": built}, []), "it was built with these pins already"


@pytest.mark.usefixtures("cache")
def test_an_official_pulumi_brings_its_own_host_and_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _executable(tmp_path / "official", "pulumi", "v3.300.0")
    monkeypatch.setenv("PATH", f"{file.parent}:/bin:/usr/bin")
    parts = ["pulumi", "pulumi-language-python", "pulumi-resource-kubernetes"]
    assert tools.resolve(parts) == ({"pulumi": file}, []), "ours would shadow those that belong to it"


@pytest.mark.usefixtures("cache")
def test_our_own_pulumi_on_path_is_not_taken_for_an_official_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pulumi", "pulumi-language-python"):
        built = tools.built_path(tools.by_name(name))
        _executable(built.parent, name, "v3.274.1")
        monkeypatch.setenv("PATH", f"{built.parent}{os.pathsep}{os.environ['PATH']}")
    present, _ = tools.resolve(["pulumi", "pulumi-language-python"])
    assert set(present) == {"pulumi", "pulumi-language-python"}, (
        "with `eval $(python -m sim env)` done before, the built language host is needed as before"
    )


def test_a_changed_pin_is_a_new_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = tmp_path / "tools"
    shutil.copytree(tools.MODULES, modules)
    monkeypatch.setattr(tools, "MODULES", modules)
    before = {tool.name: tools.cache_key(tool) for tool in tools.TOOLS}
    pins = modules / "etcd" / "go.mod"
    pins.write_text(pins.read_text().replace("v3.7.3", "v3.7.4"))
    changed = {tool.name for tool in tools.TOOLS if tools.cache_key(tool) != before[tool.name]}
    assert changed == {"etcd"}, "only what the pin decides is built again"


def test_the_script_beside_the_language_host_is_part_of_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = tmp_path / "tools"
    shutil.copytree(tools.MODULES, modules)
    monkeypatch.setattr(tools, "MODULES", modules)
    host = tools.by_name("pulumi-language-python")
    before = tools.cache_key(host)
    (modules / "pulumi" / "go.sum").write_text("")
    assert tools.cache_key(host) != before, "the script comes from the module that pins pulumi"


@pytest.mark.parametrize(
    ("version", "message"),
    [(None, "is needed to build the tools"), ("go1.25.4", "found go1.25.4"), ("go1.26.8", None), ("go1.30.0", None)],
)
def test_go_must_be_there_and_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, message: str | None
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if version is not None:
        _executable(tmp_path, "go", version)
    if message is None:
        tools.require_go()
    else:
        with pytest.raises(tools.ToolError, match=message):
            tools.require_go()


@pytest.mark.usefixtures("cache")
def test_a_node_is_made_of_parts_that_fit_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _executable(tmp_path / "found", "containerd", "containerd github.com/containerd/containerd v9.9.9")
    monkeypatch.setenv("PATH", f"{file.parent}:/bin:/usr/bin")
    present, missing = tools.resolve(["containerd"])
    assert (present, [tool.name for tool in missing]) == ({}, ["containerd"]), "the shim and ctr are of one release"


def test_only_the_real_node_needs_the_tools_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(tools, "resolve", lambda names: (asked.extend(names), ({}, []))[1])
    tools.ensure()
    assert asked, "the others are built"
    assert not {tool.name for tool in tools.NODE_TOOLS} & set(asked), "a simulated cluster runs no container"


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        (("gcc", "pkg-config", "libseccomp"), None),
        (("gcc", "pkg-config"), "apt-get install libseccomp-dev"),
        (("gcc",), "apt-get install pkg-config libseccomp-dev"),
        ((), "apt-get install gcc pkg-config libseccomp-dev"),
    ],
)
def test_a_missing_c_library_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...], missing: str | None
) -> None:
    for name in there:
        _executable(tmp_path, name, "")
    if "libseccomp" not in there and "pkg-config" in there:
        (tmp_path / "pkg-config").write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    if missing is None:
        tools.require_libraries(tools.NODE_TOOLS)
    else:
        with pytest.raises(tools.ToolError, match=missing):
            tools.require_libraries(tools.NODE_TOOLS)
    tools.require_libraries(tools.TOOLS)


@pytest.mark.parametrize("change", [{"tags": ("other",)}, {"static": True}])
def test_how_a_tool_is_built_is_part_of_its_key(change: dict[str, Any]) -> None:
    runc = tools.by_name("runc")
    assert tools.cache_key(replace(runc, **change)) != tools.cache_key(runc), f"{change} is another binary"


def test_the_node_runs_the_release_of_the_api_server() -> None:
    pins = [(tools.MODULES / module / "go.mod").read_text() for module in ("kubernetes", "kubernetes-node")]
    versions = [
        set(re.findall(r"^\s*(?:replace )?(?:k8s\.io/\S+ => )?(k8s\.io/\S+ v\S+)", pin, re.MULTILINE)) for pin in pins
    ]
    assert versions[0] <= versions[1], "kubelet's module has the pins of the API server, and more"


def test_the_modules_of_all_tools_are_pinned() -> None:
    for tool in (*tools.TOOLS, *tools.NODE_TOOLS):
        folder = tools.MODULES / tool.module
        assert (folder / "go.sum").is_file(), f"{tool.name}: without go.sum the build would not be reproducible"
        if tool.package != ".":
            assert (
                f"tool {tool.package}\n" in (folder / "go.mod").read_text()
                or f"\t{tool.package}\n" in (folder / "go.mod").read_text()
            ), f"{tool.name}: {tool.package} must be a tool of its module"


def test_the_monitoring_types_are_pinned_by_an_import() -> None:
    module = tools.MODULES / "controller-gen"
    path = "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring"
    assert f"{path} v0.95.2\n" in (module / "go.mod").read_text(), (
        "a requirement that is not `// indirect` survives `go mod tidy`"
    )
    assert f'_ "{path}/v1"' in (module / "crds.go").read_text(), "it is the import that keeps it"


def test_the_real_node_is_named_with_its_pins() -> None:
    pins = tools.node_versions()
    assert list(pins) == ["Kubernetes", "containerd", "runc"]
    assert f"v{pins['runc']}" in (tools.MODULES / "runc" / "go.mod").read_text(), "the module that it is built from"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", pin) for pin in pins.values()), f"versions, and no Go prefix: {pins}"


@pytest.mark.usefixtures("cache")
def test_a_tool_from_path_is_named_with_its_own_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _executable(tmp_path / "found", "pulumi", "v3.300.0")
    monkeypatch.setenv("PATH", f"{file.parent}:/bin:/usr/bin")
    assert tools.version("pulumi") == "3.300.0", "the pin is of the one that is built here"


@pytest.mark.usefixtures("cache")
def test_a_tool_that_says_no_version_is_refused() -> None:
    built = tools.built_path(tools.by_name("pulumi"))
    _executable(built.parent, "pulumi", "no version at all")
    with pytest.raises(tools.ToolError, match="does not say its version: no version at all"):
        tools.version("pulumi")
