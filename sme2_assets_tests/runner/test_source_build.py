"""Runners from source: real CMake, real compiler, real presets, on a miniature of ExecuTorch's checkout.

The miniature has the real project's names of options, targets and installed files, and kernels that are in
the binary when the option is on. Most tests build a runner of one file with it; one builds the real one and
runs a model. What a real clone and a real NDK would add is not tested here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import dagster as dg
import numpy as np
import pytest
from click.testing import CliRunner

from sme2_assets.analysis.registered import registered_kernels
from sme2_assets.cli.runners import build_runner
from sme2_assets.defs import checks
from sme2_assets.defs.assets import runners
from sme2_assets.defs.partitions import range_tags
from sme2_assets.defs.resources import Lab
from sme2_assets.errors import BuildError
from sme2_assets.runner import source_build
from sme2_assets.runner.build import NATIVE_DIR, RunnerBinary, load_runner
from sme2_assets.runner.pairs import (
    RECORD_NAME,
    SWITCHES,
    Record,
    differences,
    is_sme_source,
    kernel_fault,
    read_record,
    sme_kernels,
    source_pair,
)
from sme2_assets.runner.source_build import (
    PRESETS_NAME,
    SourceRequest,
    build_pair,
    build_source_runner,
    folder_hash,
    ndk_version,
    problems,
)
from sme2_assets.store import Store
from sme2_assets_tests.runner.conftest import Runner
from sme2_assets_tests.runner.mini_checkout import SOURCES, XNNPACK, commit_all, git, make_checkout

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the miniature links as on Linux")

KAI = "kai_run_matmul_clamp_f32_f32p8vlx1_f32p8vlx1biasf32_8vlx8vl_sme2_mopa"
XNN = "xnn_pf32_gemm_minmax_ukernel_32x32__neonsme2"
SMALL_RUNNER = """
#include <cstdio>
int main() { std::puts("sme2_runner 0 (executorch " SME2_EXECUTORCH_VERSION ", gcc 0)"); }
"""
SMALL_PROJECT = """
cmake_minimum_required(VERSION 3.28)
project(sme2_runner LANGUAGES CXX)
set(SME2_EXECUTORCH_CHECKOUT "" CACHE PATH "")
include(checkout.cmake)
add_executable(sme2_runner main.cpp)
target_compile_definitions(sme2_runner PRIVATE SME2_EXECUTORCH_VERSION="${SME2_EXECUTORCH_VERSION}")
target_link_libraries(sme2_runner PRIVATE ${SME2_EXECUTORCH_TARGETS})
install(TARGETS sme2_runner RUNTIME DESTINATION .)
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources of a runner that only tells its version, but is built and linked like the real one."""
    folder = tmp_path_factory.mktemp("small_runner")
    (folder / "main.cpp").write_text(SMALL_RUNNER)
    (folder / "CMakeLists.txt").write_text(SMALL_PROJECT)
    for name in ("checkout.cmake", PRESETS_NAME):
        shutil.copy(NATIVE_DIR / name, folder)
    return folder


def small_request(checkout: Path, small: Path) -> SourceRequest:
    return replace(SourceRequest.of(checkout, "linux"), native_dir=small)


def finished(runners: Path) -> list[Path]:
    return [path for path in runners.iterdir() if path.name != "logs" and not path.name.startswith(".")]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path)


Built = tuple[Path, Store, dict[str, RunnerBinary]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, small: Path) -> Built:
    """A checkout, and both of its arms, built once."""
    folder = tmp_path_factory.mktemp("source")
    checkout = make_checkout(folder)
    store = Store(folder / "data")
    arms = build_pair(store, small_request(checkout, small), log=print)
    return checkout, store, arms


def records(arms: dict[str, RunnerBinary]) -> tuple[Record, Record]:
    on, off = (read_record(arms[sme2].path.parent) for sme2 in ("on", "off"))
    return on, off


def test_the_two_arms_differ_in_the_sme_switches_alone(built: Built):
    _, store, arms = built
    on, off = records(arms)
    assert differences(on, off) == []
    assert arms["on"].pair == arms["off"].pair != arms["on"].sha256
    assert arms["on"].sha256 != arms["off"].sha256
    assert {name for name in on["cache"] if on["cache"][name] != off["cache"][name]} == set(SWITCHES)
    compiled_on, compiled_off = (
        {Path(file).name for files in record["flags"].values() for file in files} for record in (on, off)
    )
    assert compiled_on - compiled_off == {"neonsme2.c"}
    pair = source_pair(store, "linux")
    assert {sme2: pair[sme2].path for sme2 in ("off", "on")} == {
        sme2: runner.path for sme2, runner in arms.items()
    }


def test_kernels_are_in_the_binary_with_sme2_and_in_no_other(built: Built):
    _, _, arms = built
    assert sme_kernels(arms["on"].path) == {"sme2": [KAI, XNN], "sme": []}
    # Dead code that packs for SME kernels is in both; it computes nothing.
    assert sme_kernels(arms["off"].path) == {"sme2": [], "sme": []}
    assert kernel_fault(arms["on"], "on") is None
    assert kernel_fault(arms["off"], "off") is None
    assert "no SME2 kernel" in str(kernel_fault(arms["off"], "on"))
    assert "it has SME kernels" in str(kernel_fault(arms["on"], "off"))


def test_a_stripped_binary_says_why_its_kernels_are_not_known(built: Built, tmp_path: Path):
    _, _, arms = built
    stripped = tmp_path / "runner"
    subprocess.run(["strip", "--strip-all", "-o", stripped, arms["on"].path], check=True)
    with pytest.raises(BuildError, match="names no function of XNNPACK") as caught:
        sme_kernels(stripped)
    assert "strip symbols" in str(caught.value.remedy)


def test_the_manifest_tells_what_was_built_with_what(built: Built):
    checkout, _, arms = built
    record, _ = records(arms)
    assert record["sources"]["checkout"]["commit"] == git(checkout, "rev-parse", "HEAD").strip()
    assert record["sources"]["checkout"]["changes"] is None
    assert record["sources"]["submodule"] == {XNNPACK: git(checkout / XNNPACK, "rev-parse", "HEAD").strip()}
    assert len(record["compilers"]) == 2
    assert all(re.search(r"\d+\.\d+", version) for version in record["compilers"].values())
    assert record["cache"]["EXECUTORCH_ENABLE_EVENT_TRACER"] == "ON"
    flags = {file: flags for flags, files in record["flags"].items() for file in files}
    assert "-O2" in flags[str(checkout / XNNPACK / "src" / "gemm-config.c")].split()
    assert any(file.endswith("main.cpp") for file in flags)
    manifest = json.loads(arms["on"].manifest.read_text())
    assert manifest["kernels"] == {"sme2": [KAI, XNN], "sme": []}
    assert manifest["executorch_version"] == (checkout / "version.txt").read_text().strip()


def test_the_checkout_is_left_as_it_was(built: Built):
    checkout, _, _ = built
    assert git(checkout, "status", "--porcelain", "--ignored") == ""


def test_the_same_sources_are_not_built_again(built: Built, small: Path):
    checkout, store, arms = built
    lines: list[str] = []
    again = build_pair(store, small_request(checkout, small), log=lines.append)
    assert all(binary.cached for binary in again.values())
    assert again["on"].path == arms["on"].path
    assert not any("configure" in line for line in lines)
    assert load_runner(arms["on"].path.parent).pair == arms["on"].pair
    assert list((store.artifacts / "runners").glob(".source-*")) == []


@pytest.mark.thorough
def test_a_pair_of_which_one_had_other_flags_is_refused(
    built: Built, small: Path, monkeypatch: pytest.MonkeyPatch
):
    checkout, store, arms = built
    request = small_request(checkout, small)
    monkeypatch.setenv("CFLAGS", "-O3")
    other = build_source_runner(store.artifacts, request, "on", log=print)
    assert other.pair != arms["on"].pair
    source_build.remember(store, request, "on", other)
    try:
        with pytest.raises(BuildError) as caught:
            source_pair(store, "linux")
    finally:
        source_build.remember(store, request, "on", arms["on"])
    assert "cache CMAKE_C_FLAGS: '-O3' with SME2 on, '' with SME2 off" in caught.value.what
    assert "environment CFLAGS: '-O3' with SME2 on, '' with SME2 off" in caught.value.what
    assert "gemm-config.c" in caught.value.what


@pytest.mark.thorough
def test_a_checkout_that_changed_between_the_arms_is_no_pair(built: Built, small: Path):
    checkout, store, arms = built
    source = checkout / XNNPACK / "src" / "f32-gemm-4x8-neon.c"
    former = source.read_text()
    source.write_text(former + "/* changed */\n")
    try:
        on = build_source_runner(store.artifacts, small_request(checkout, small), "on", log=print)
    finally:
        source.write_text(former)
    [found] = differences(*records({"on": on, "off": arms["off"]}))
    assert found.startswith(f"submodule {XNNPACK}: ")
    assert on.pair != arms["off"].pair


@pytest.mark.thorough
def test_a_checkout_that_does_more_than_leave_sme_out_makes_no_pair(
    checkout: Path, small: Path, tmp_path: Path
):
    recipe = checkout / XNNPACK / "CMakeLists.txt"
    more = "if(NOT XNNPACK_ENABLE_ARM_SME2)\n  set(CMAKE_C_FLAGS_RELEASE -O1)\nendif()\n"
    recipe.write_text(recipe.read_text().replace("# KleidiAI compiles", more + "# KleidiAI compiles"))
    store = Store(tmp_path / "data")
    build_pair(store, small_request(checkout, small), log=print)
    with pytest.raises(BuildError, match="not a pair") as caught:
        source_pair(store, "linux")
    assert "gemm-config.c: '-DXNN_LOG_LEVEL=0 -O2 -DNDEBUG' with SME2 on" in caught.value.what


@pytest.mark.thorough
def test_a_checkout_that_changes_while_it_is_built_is_not_taken(checkout: Path, small: Path, tmp_path: Path):
    recipe = checkout / "CMakeLists.txt"
    recipe.write_text(
        recipe.read_text() + 'file(APPEND "${CMAKE_CURRENT_SOURCE_DIR}/notes.txt" "changed\n")\n'
    )
    with pytest.raises(BuildError, match="changed while it was built"):
        build_source_runner(tmp_path, small_request(checkout, small), "on", log=print)
    assert finished(tmp_path / "runners") == []


@pytest.mark.thorough
def test_a_trace_build_logs_its_kernels_and_is_kept_apart(built: Built, small: Path):
    checkout, store, arms = built
    request = replace(small_request(checkout, small), trace=True)
    trace = build_source_runner(store.artifacts, request, "on", log=print)
    source_build.remember(store, request, "on", trace)
    assert any("-DXNN_LOG_LEVEL=5" in flags for flags in read_record(trace.path.parent)["flags"])
    said = subprocess.run([trace.path, "--version"], capture_output=True, text=True, check=True).stderr
    assert [kernel.kernel for kernel in registered_kernels(said)] == [XNN]
    assert (
        registered_kernels(
            subprocess.run([arms["on"].path], capture_output=True, text=True, check=True).stderr
        )
        == []
    )
    assert store.current("source_runner", "linux-sme2_on") == arms["on"].path.parent.name
    assert store.current("trace_runner", "linux-sme2_on") == trace.path.parent.name


@pytest.mark.thorough
def test_the_real_runner_is_built_from_source_and_runs_a_model(
    artifacts_dir: Path, programs: Callable, tmp_path: Path
):
    # Kept between test runs, as the wheel's runner is: the same commit in the same folder is the same key.
    checkout = artifacts_dir / "mini-checkout" / folder_hash(SOURCES)[:16] / "executorch"
    if not checkout.exists():
        checkout.parent.parent.mkdir(parents=True, exist_ok=True)
        made = make_checkout(Path(tempfile.mkdtemp(dir=checkout.parent.parent)))
        made.parent.rename(checkout.parent)
    binary = build_source_runner(artifacts_dir, SourceRequest.of(checkout, "linux"), "on", log=print)
    assert kernel_fault(binary, "on") is None
    program = programs("two_inputs")
    runner = Runner(binary.path, tmp_path)
    done = runner.run(program.pte, program.inputs, kind="etdump")
    np.testing.assert_allclose(done.output(0), program.expected[0], rtol=1e-3, atol=1e-3)
    assert (tmp_path / "trace.etdump").stat().st_size > 0
    assert runner.run(tmp_path / "none.pte", program.inputs).returncode == 3
    assert binary.program.files == ("sme2_runner",)


STAND_IN_TOOLCHAIN = """
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_C_COMPILER cc)
set(CMAKE_CXX_COMPILER c++)
# As the NDK's: nothing outside its own folder is a package.
set(CMAKE_FIND_ROOT_PATH "${CMAKE_CURRENT_LIST_DIR}")
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
"""


@pytest.mark.thorough
def test_an_android_build_goes_through_the_toolchain_file_of_the_ndk(
    built: Built, small: Path, tmp_path: Path
):
    """With a stand-in for the NDK whose compiler is this machine's: the way is tested, not the NDK."""
    checkout, store, _ = built
    ndk = tmp_path / "ndk"
    (ndk / "build" / "cmake").mkdir(parents=True)
    (ndk / "build" / "cmake" / "android.toolchain.cmake").write_text(STAND_IN_TOOLCHAIN)
    (ndk / "source.properties").write_text("Pkg.Revision = 28.2.13676358\n")
    request = replace(SourceRequest.of(checkout, "android", ndk=ndk), native_dir=small)
    binary = build_source_runner(store.artifacts, request, "on", log=print)
    record = read_record(binary.path.parent)
    assert record["sources"]["tool"]["NDK"] == "28.2.13676358"
    cache = record["cache"]
    assert cache["CMAKE_TOOLCHAIN_FILE"] == str(ndk / "build" / "cmake" / "android.toolchain.cmake")
    assert (cache["ANDROID_ABI"], cache["ANDROID_PLATFORM"]) == ("arm64-v8a", "android-28")
    assert kernel_fault(binary, "on") is None
    assert re.search(r"gcc|clang|cc ", binary.compiler.lower())


@pytest.mark.thorough
def test_a_killed_build_leaves_nothing_finished_and_is_continued(checkout: Path, small: Path, tmp_path: Path):
    # A compiler that stops for ever at one file, until it is told not to.
    gate, compiler = tmp_path / "go", tmp_path / "slow-cc"
    waits = 'case "$*" in *neonsme2.c*) while [ ! -e "$GATE" ]; do sleep 0.1; done;; esac'
    compiler.write_text(f'#!/bin/sh\n{waits}\nexec cc "$@"\n')
    compiler.chmod(0o755)
    runners = tmp_path / "artifacts" / "runners"
    script = (
        "import sys; from pathlib import Path; from sme2_assets.runner.source_build import *;"
        "request = SourceRequest(Path(sys.argv[2]), 'linux', native_dir=Path(sys.argv[3]));"
        "build_source_runner(Path(sys.argv[1]), request, 'on', log=lambda line: print(line, flush=True))"
    )
    environment = {**os.environ, "CC": str(compiler), "GATE": str(gate)}
    command = [sys.executable, "-c", script, str(runners.parent), str(checkout), str(small)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment, start_new_session=True)
    try:
        # What Ninja has noted down: a file is there as soon as its compiler begins to write it, and as many
        # are written at once as there are cores.
        noted = ".source-*/cmake/.ninja_log"
        while sum(log.read_text().count(".c.o\t") for log in runners.glob(noted)) < 4:
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert finished(runners) == []

    gate.touch()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "built in" in done.stdout
    log = next((runners / "logs").iterdir()).read_text()
    # Eleven steps from nothing, of which at least four were noted down.
    assert int(re.findall(r"\[\d+/(\d+)\] Linking C static library", log)[0]) <= 7


@pytest.mark.thorough
def test_a_failed_build_shows_the_compilers_words(checkout: Path, small: Path, tmp_path: Path):
    (checkout / XNNPACK / "src" / "neonsme2.c").write_text("#error no SME2 today\n")
    request = small_request(checkout, small)
    with pytest.raises(BuildError, match="no SME2 today") as caught:
        build_source_runner(tmp_path / "artifacts", request, "on", log=print)
    assert "whole log" in str(caught.value)


@pytest.mark.thorough
def test_the_asset_builds_the_pair_and_its_checks_look_into_it(
    built: Built, small: Path, monkeypatch: pytest.MonkeyPatch
):
    checkout, store, arms = built
    monkeypatch.setattr(source_build, "NATIVE_DIR", small)
    assets = [runners.source_runner, checks.source_pair_differs_in_sme_only, checks.sme2_kernels_in_binary]
    keys = ("linux-sme2_off", "linux-sme2_on")

    def evaluations(*keys: str) -> dict[str, dg.AssetCheckEvaluation]:
        done = dg.materialize(
            assets,
            resources={"lab": Lab(data_root=str(store.root))},
            tags=range_tags(keys),
            run_config={"ops": {"source_runner": {"config": {"checkout": str(checkout)}}}},
            raise_on_error=False,
        )
        return {evaluation.check_name: evaluation for evaluation in done.get_asset_check_evaluations()}

    found = evaluations(*keys)
    assert {name: evaluation.passed for name, evaluation in found.items()} == {
        "source_pair_differs_in_sme_only": True,
        "sme2_kernels_in_binary": True,
    }
    # One arm built anew with another flag, as after a change of the environment.
    monkeypatch.setenv("CFLAGS", "-O3")
    spoiled = evaluations("linux-sme2_on")["source_pair_differs_in_sme_only"]
    assert not spoiled.passed
    assert "CMAKE_C_FLAGS" in str(spoiled.description)
    monkeypatch.delenv("CFLAGS")
    source_build.remember(store, small_request(checkout, small), "on", arms["on"])


def test_the_command_builds_both_and_says_that_they_are_a_pair(
    built: Built, small: Path, monkeypatch: pytest.MonkeyPatch
):
    checkout, store, arms = built
    monkeypatch.setattr(source_build, "NATIVE_DIR", small)
    command = ["--source", str(checkout), "--platform", "linux"]
    done = CliRunner().invoke(build_runner, command, obj=store, catch_exceptions=False)
    assert done.exit_code == 0
    assert "differ in the SME switches alone" in done.output
    facts = json.loads(CliRunner().invoke(build_runner, [*command, "--json"], obj=store).stdout)
    assert facts["on"]["sha256"] == arms["on"].sha256
    assert facts["on"]["pair"] == facts["off"]["pair"]
    assert facts["faults"] == []


# Before any work


def said(request: SourceRequest) -> str:
    return "\n".join(f"{problem.what} {problem.remedy}" for problem in problems(request))


def test_a_good_checkout_has_no_problem(built: Built):
    checkout, _, _ = built
    assert problems(SourceRequest.of(checkout, "linux")) == []


def test_each_obstacle_is_named_with_its_remedy(checkout: Path, tmp_path: Path):
    request = SourceRequest.of(checkout, "linux")
    (checkout / "version.txt").write_text("1.2.0\n")
    commit_all(checkout, "older")
    assert "ExecuTorch 1.2.0" in said(request)
    assert "checkout v" in said(request)

    git(checkout, "submodule", "--quiet", "deinit", "-f", XNNPACK)
    assert f"are missing: {XNNPACK}" in said(request)
    assert "submodule update --init --recursive" in said(request)

    renamed = checkout.rename(tmp_path / "et")
    assert "only the name `executorch`" in said(replace(request, checkout=renamed))
    (renamed / "CMakeLists.txt").unlink()
    assert "no CMakeLists.txt" in said(replace(request, checkout=renamed))
    plain = tmp_path / "plain"
    plain.mkdir()
    assert "not a git checkout" in said(replace(request, checkout=plain))
    assert "git clone" in said(replace(request, checkout=tmp_path / "nowhere"))
    with pytest.raises(BuildError, match="emulated"):
        SourceRequest.of(checkout, "emulated")
    with pytest.raises(BuildError, match="cannot be built on Linux"):
        build_source_runner(tmp_path / "a", SourceRequest.of(checkout, "mac"), "on", log=print)


def test_an_ndk_must_be_one_and_know_sme2(tmp_path: Path):
    with pytest.raises(BuildError, match="NDK"):
        ndk_version(None)
    with pytest.raises(BuildError, match=r"source\.properties"):
        ndk_version(tmp_path)
    (tmp_path / "build" / "cmake").mkdir(parents=True)
    (tmp_path / "build" / "cmake" / "android.toolchain.cmake").touch()
    properties = tmp_path / "source.properties"
    properties.write_text("Pkg.Desc = Android NDK\nPkg.Revision = 25.2.9519653\n")
    with pytest.raises(BuildError, match=r"25\.2"):
        ndk_version(tmp_path)
    properties.write_text("Pkg.Desc = Android NDK\nPkg.Revision = 28.2.13676358\n")
    assert ndk_version(tmp_path) == "28.2.13676358"


@pytest.mark.parametrize("platform", ["android", "mac", "linux"])
def test_a_dry_run_needs_no_ndk_and_shows_presets_and_commands(
    built: Built, platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    checkout, _, _ = built
    for name in [name for name in os.environ if name.startswith("ANDROID")]:
        monkeypatch.delenv(name)
    command = ["--dry-run", "--source", str(checkout), "--platform", platform, "--json"]
    done = CliRunner().invoke(build_runner, command, obj=Store(tmp_path), catch_exceptions=False)
    plan = json.loads(done.stdout)
    presets = {preset["name"]: preset for preset in plan["presets"]["configurePresets"]}
    assert presets[f"{platform}-on"]["inherits"] == [platform, "sme-on"]
    assert presets[f"{platform}-off"]["inherits"] == [platform, "sme-off"]
    assert presets["sme-on"]["cacheVariables"] == dict.fromkeys(SWITCHES, "ON")
    assert presets["sme-off"]["cacheVariables"] == dict.fromkeys(SWITCHES, "OFF")
    configure = plan["commands"]["on"][0]
    assert configure[1:3] == ["--preset", f"{platform}-on"]
    if platform == "android":
        assert any("No Android NDK" in problem["what"] for problem in plan["problems"])
    assert list(tmp_path.iterdir()) == []


# What counts as following from the switches


def record(sme2: str, **parts: dict) -> Record:
    """A small record. `parts` replace some of it."""
    return {
        "sources": {"checkout": {"commit": "c"}},
        "compilers": {"cc": "Clang 18.0.1"},
        "cache": dict.fromkeys(SWITCHES, sme2.upper()),
        "flags": {f"-DXNN_ENABLE_ARM_SME2={int(sme2 == 'on')} -O2": ["a.c"]},
        **parts,
    }


@pytest.mark.parametrize(
    ("on", "off", "refused"),
    [
        (record("on"), record("off"), []),
        (record("on", flags={"-O3": ["a.c"]}), record("off"), ["file a.c"]),
        (record("on", flags={"-O2": ["a.c", "src/neonsme2.c"]}), record("off"), []),
        (record("on", flags={"-O2": ["a.c", "assume.c"]}), record("off"), ["file assume.c"]),
        (record("on"), record("off", flags={"-O2": ["a.c", "sme2.c"]}), ["file sme2.c"]),
        (
            record("on", flags={"-O2": ["a.c"], "-O3": ["sme2.c"]}),
            record("off", flags={"-O2": ["a.c", "sme2.c"]}),
            ["file sme2.c"],
        ),
        (record("on", compilers={"cc": "Clang 17"}), record("off"), ["compiler cc"]),
        (record("on"), record("on"), [f"cache {name}" for name in SWITCHES]),
        (record("off"), record("on"), [f"cache {name}" for name in SWITCHES]),
        (record("on", cache={}), record("off", cache={}), [f"cache {name}" for name in SWITCHES]),
        (record("on", sources={"checkout": {"commit": "d"}}), record("off"), ["checkout commit"]),
        (
            record("on", cache={**record("on")["cache"], "NEW_SME2": "ON"}),
            record("off"),
            ["cache NEW_SME2"],
        ),
    ],
)
def test_only_what_follows_from_the_switches_may_differ(on: Record, off: Record, refused: list[str]):
    assert [fault.split(": ")[0] for fault in differences(on, off)] == refused


def test_a_manifest_that_is_no_manifest_is_a_clear_error(tmp_path: Path):
    for content in ("{", "[]", '{"schema": 1, "trees": {}}'):
        (tmp_path / RECORD_NAME).write_text(content)
        with pytest.raises(BuildError, match="not a complete build manifest") as caught:
            read_record(tmp_path)
        assert "build the runner again" in str(caught.value.remedy)


def test_sources_of_sme_kernels_are_known_by_a_whole_word():
    assert is_sme_source("src/amalgam/gen/neonsme2.c")
    assert is_sme_source("kai/ukernels/kai_lhs_pack_f32p2vlx1_f32_sme.c")
    assert not is_sme_source("sme2/assumed.c")
    assert not is_sme_source("src/neon.c")


# Binaries of other kinds


def mach_o(symbols: list[str]) -> bytes:
    """The smallest Mach-O object with a symbol table."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in symbols)
    table = 32 + 24
    header = struct.pack("<IIIIIIII", 0xFEEDFACF, 0x0100000C, 0, 1, 1, 24, 0, 0)
    symtab = struct.pack("<IIIIII", 2, 24, table, len(symbols), table + 16 * len(symbols), len(names))
    entries, offset = b"", 1
    for name in symbols:
        entries += struct.pack("<IBBHQ", offset, 0x0F, 1, 0, 0)
        offset += len(name) + 1
    return header + symtab + entries + names


def test_mach_o_files_are_read_too(tmp_path: Path):
    path = tmp_path / "runner"
    path.write_bytes(mach_o([f"_{KAI}", "_main"]))
    assert sme_kernels(path) == {"sme2": [KAI], "sme": []}
    path.write_bytes(mach_o(["_main"]))
    with pytest.raises(BuildError, match="strip symbols"):
        sme_kernels(path)


NO_PROGRAMS = {
    "a script": b"#!/bin/sh\n",
    "nothing": b"",
    "a cut ELF file": b"\x7fELF\x02\x01\x01" + bytes(40),
    "a wrong Mach-O file": b"\xcf\xfa\xed\xfe" + b"\xff" * 64,
}


@pytest.mark.parametrize("content", NO_PROGRAMS.values(), ids=NO_PROGRAMS)
def test_what_is_no_program_is_a_clear_error(tmp_path: Path, content: bytes):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(BuildError):
        sme_kernels(path)
