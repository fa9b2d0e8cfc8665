"""Runners from source: real CMake, real compiler, real presets, on a miniature of ExecuTorch's checkout.

The miniature has the real project's names of options, targets and installed files, and kernels that are in
the binary when the option is on. Most tests build a runner of one file with it; one builds the real one and
runs a model. What a real clone and a real NDK would add is not tested here.
"""

from __future__ import annotations

import json
import os
import re
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
from sme2_assets.runner import source_build, source_request
from sme2_assets.runner.build import NATIVE_DIR, RunnerBinary, load_runner
from sme2_assets.runner.build_record import BuildRecord, Tree, differences, is_sme_source, pair_difference
from sme2_assets.runner.bundle import host_is_target
from sme2_assets.runner.cross import find_cross_compiler
from sme2_assets.runner.kernels_in import kernels_in
from sme2_assets.runner.presets import SWITCHES, USER_PRESETS, preset_for, presets_text
from sme2_assets.runner.source_build import (
    build_pair,
    build_source_runner,
    folder_hash,
    kernel_fault,
    source_pair,
)
from sme2_assets.runner.source_request import SourceRequest, ndk_version, problems
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
include(source_install.cmake)
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
    found = NATIVE_DIR / "source_install.cmake"
    (folder / "source_install.cmake").write_text(found.read_text())
    return folder


def small_request(checkout: Path, small: Path) -> SourceRequest:
    return replace(SourceRequest.of(checkout, "linux"), native_dir=small)


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


def records(arms: dict[str, RunnerBinary]) -> tuple[BuildRecord, BuildRecord]:
    on, off = (BuildRecord.read(arms[sme2].path.parent) for sme2 in ("on", "off"))
    return on, off


def test_the_two_arms_differ_in_the_sme_switches_alone(built: Built):
    _, store, arms = built
    on, off = records(arms)
    assert pair_difference(on, off) == []
    assert arms["on"].pair == arms["off"].pair != arms["on"].sha256
    assert arms["on"].sha256 != arms["off"].sha256
    assert {difference.where.rsplit("/", 1)[-1] for difference in differences(on, off)} == {
        "SME2",
        *(f"executorch cache {switch}" for switch in SWITCHES),
        "executorch SME definitions",
        "neonsme2.c",
    }
    pair = source_pair(store, "linux")
    assert (pair.on.path, pair.off.path) == (arms["on"].path, arms["off"].path)
    assert {sme2: pair.of(sme2).sha256 for sme2 in ("off", "on")} == {
        sme2: runner.sha256 for sme2, runner in arms.items()
    }


def test_kernels_are_in_the_binary_with_sme2_and_in_no_other(built: Built):
    _, _, arms = built
    on, off = kernels_in(arms["on"].path), kernels_in(arms["off"].path)
    assert on.evidence == off.evidence == "symbols"
    assert on.sme2 == (KAI, XNN)
    # Dead code that packs for SME kernels is in both; it computes nothing.
    assert (off.sme2, off.sme, off.outer_products) == ((), (), 0)
    assert kernel_fault(arms["on"], "on") is None
    assert kernel_fault(arms["off"], "off") is None
    assert "no SME2 kernel" in str(kernel_fault(arms["off"], "on"))
    assert "it has SME kernels" in str(kernel_fault(arms["on"], "off"))


@pytest.fixture
def stripped_arms(request: pytest.FixtureRequest, artifacts_dir: Path, tmp_path: Path) -> dict[str, Path]:
    """Both arms for aarch64 without symbols; on another CPU, programs of the miniature's kernels alone."""
    stripped = {sme2: tmp_path / sme2 for sme2 in ("on", "off")}
    if host_is_target():
        _, _, arms = request.getfixturevalue("built")
        for sme2, path in stripped.items():
            subprocess.run(["strip", "--strip-all", "-o", path, arms[sme2].path], check=True)
        return stripped
    compiler = find_cross_compiler(artifacts_dir / "tools", log=print)
    kernels = SOURCES / "XNNPACK" / "kleidiai"
    for sme2, path in stripped.items():
        sources = [*kernels.glob("*_pack_*.c"), *(kernels.glob("*_mopa.c") if sme2 == "on" else ())]
        command = [*compiler.command, "-x", "c", "-static", "-nostdlib", "-s", "-o", path, *sources]
        subprocess.run(command, env={**os.environ, **compiler.variables}, check=True)
    return stripped


def test_a_stripped_binary_is_judged_by_its_instructions(stripped_arms: dict[str, Path]):
    for sme2, words in (("on", 1), ("off", 0)):
        found = kernels_in(stripped_arms[sme2])
        assert found.sme2 == ()
        assert found.outer_products == words
        assert found.evidence == ("instructions" if words else "none")
        assert found.fault(sme2) is None
    assert "name no kernel" in str(kernels_in(stripped_arms["on"]).fault("off"))


def test_the_manifest_tells_what_was_built_with_what(built: Built):
    checkout, _, arms = built
    record, _ = records(arms)
    assert record.checkout["commit"] == git(checkout, "rev-parse", "HEAD").strip()
    assert record.checkout["submodules"] == {XNNPACK: git(checkout / XNNPACK, "rev-parse", "HEAD").strip()}
    assert "kleidiai-0123456789.zip" in record.checkout["kleidiai"]
    assert record.checkout["dirty"] is False
    assert record.binary_sha256 == arms["on"].sha256
    assert str(record.started_at) <= str(record.finished_at)
    tree = record.trees["executorch"]
    assert tree.compilers["C"].split()[0] in ("GNU", "Clang")
    assert tree.cache["EXECUTORCH_ENABLE_EVENT_TRACER"] == "ON"
    assert tree.cache["CMAKE_INSTALL_PREFIX"] == "<install>"
    config = f"<checkout>/{XNNPACK}/src/gemm-config.c"
    assert "-O2" in tree.flag_sets[tree.files[config][0]]
    assert "<runner>/main.cpp" in record.trees["runner"].files
    assert str(checkout.parent) not in record.to_json()


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
    assert [path for path in (store.artifacts / "runners").glob(".source-*") if path.is_dir()] == []


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
    assert "executorch cache CMAKE_C_FLAGS: '-O3' with SME2 on, '' with SME2 off" in caught.value.what
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
    found = pair_difference(*records({"on": on, "off": arms["off"]}))
    assert {difference.where for difference in found} == {"checkout dirty", f"submodule {XNNPACK}"}
    assert on.pair != arms["off"].pair


@pytest.mark.thorough
def test_a_trace_build_logs_its_kernels_and_is_kept_apart(built: Built, small: Path):
    checkout, store, arms = built
    request = replace(small_request(checkout, small), trace=True)
    trace = build_source_runner(store.artifacts, request, "on", log=print)
    source_build.remember(store, request, "on", trace)
    assert "-DXNN_LOG_LEVEL=5" in BuildRecord.read(trace.path.parent).trees["executorch"].flags
    said = subprocess.run([trace.path, "--version"], capture_output=True, text=True, check=True).stderr
    assert [kernel.kernel for kernel in registered_kernels(said)] == [XNN]
    assert (
        registered_kernels(
            subprocess.run([arms["on"].path], capture_output=True, text=True, check=True).stderr
        )
        == []
    )
    assert store.current("source_runner", "linux-sme2_on") == arms["on"].path.parent.name
    with pytest.raises(BuildError, match="SME2 off"):
        source_pair(store, "linux", trace=True)


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
    record = BuildRecord.read(binary.path.parent)
    assert record.ndk == "28.2.13676358"
    for tree in record.trees.values():
        assert tree.cache["CMAKE_TOOLCHAIN_FILE"] == "<ndk>/build/cmake/android.toolchain.cmake"
        assert (tree.cache["ANDROID_ABI"], tree.cache["ANDROID_PLATFORM"]) == ("arm64-v8a", "android-28")
    assert kernel_fault(binary, "on") is None
    assert binary.compiler.split()[0] in ("gnu", "clang")


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
        noted = ".source-*/executorch/.ninja_log"
        while sum(log.read_text().count(".c.o\t") for log in runners.glob(noted)) < 4:
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert [path for path in runners.iterdir() if path.name != "logs" and not path.name.startswith(".")] == []
    assert (checkout / USER_PRESETS).exists()  # ours, and replaced by the next build

    gate.touch()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "built in" in done.stdout
    log = next((runners / "logs").iterdir()).read_text()
    # Nine steps from nothing; of the last file of the killed build not all may have been noted down.
    assert int(re.findall(r"\[\d+/(\d+)\] Linking C static library", log)[0]) <= 6
    assert not (checkout / USER_PRESETS).exists()


@pytest.mark.thorough
def test_a_failed_build_shows_the_compilers_words_and_cleans_up(checkout: Path, small: Path, tmp_path: Path):
    (checkout / XNNPACK / "src" / "neonsme2.c").write_text("#error no SME2 today\n")
    request = small_request(checkout, small)
    with pytest.raises(BuildError, match="no SME2 today") as caught:
        build_source_runner(tmp_path / "artifacts", request, "on", log=print)
    assert "whole log" in str(caught.value)
    assert not (checkout / USER_PRESETS).exists()


@pytest.mark.thorough
def test_the_asset_builds_the_pair_and_its_checks_look_into_it(
    built: Built, small: Path, monkeypatch: pytest.MonkeyPatch
):
    checkout, store, arms = built
    monkeypatch.setattr(source_request, "NATIVE_DIR", small)
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
    monkeypatch.setattr(source_request, "NATIVE_DIR", small)
    command = ["--checkout", str(checkout), "--platform", "linux"]
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


def test_presets_of_the_users_own_are_never_overwritten(checkout: Path, tmp_path: Path):
    theirs = checkout / USER_PRESETS
    theirs.write_text('{"version": 6}\n')
    with pytest.raises(BuildError, match=USER_PRESETS):
        build_source_runner(tmp_path / "a", SourceRequest.of(checkout, "linux"), "on", log=print)
    assert theirs.read_text() == '{"version": 6}\n'
    theirs.write_text(presets_text([]))
    assert problems(SourceRequest.of(checkout, "linux")) == []


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
def test_a_dry_run_needs_no_ndk_and_shows_the_difference_of_the_pair(
    built: Built, platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    checkout, _, _ = built
    for name in [name for name in os.environ if name.startswith("ANDROID")]:
        monkeypatch.delenv(name)
    command = ["--dry-run", "--checkout", str(checkout), "--platform", platform, "--json"]
    done = CliRunner().invoke(build_runner, command, obj=Store(tmp_path), catch_exceptions=False)
    plan = json.loads(done.stdout)
    assert plan["faults"] == []
    assert {one["where"] for one in plan["differences"]} == {
        "SME2",
        *(f"executorch cache {switch}" for switch in SWITCHES),
    }
    configure = plan["commands"]["on"][0]
    assert configure[1:3] == ["--preset", f"sme2-{platform}-on"]
    if platform == "android":
        assert any("No Android NDK" in problem["what"] for problem in plan["problems"])
        assert all(
            "android.toolchain.cmake" in one["toolchainFile"] for one in plan["presets"]["configurePresets"]
        )
    assert list(tmp_path.iterdir()) == []


# What counts as following from the switches


def record(sme2: str, **tree: dict) -> BuildRecord:
    """A small manifest. `tree` replaces parts of the ExecuTorch tree."""
    cache = dict.fromkeys(SWITCHES, sme2.upper())
    parts = {"cache": cache, "compilers": {"C": "Clang 18.0.1"}, "files": {"a.c": ["x"]}, **tree}
    return BuildRecord(
        platform="android",
        sme2=sme2,
        trace=False,
        preset=sme2,
        checkout={"commit": "c", "version": "1.5.1", "submodules": {}},
        ndk="28",
        cmake="4.0",
        runner_sources_sha256="s",
        environment={},
        trees={"executorch": Tree(**{"flag_sets": {"x": ["-O2"], "y": ["-O3"]}, **parts})},
    )


@pytest.mark.parametrize(
    ("on", "off", "refused"),
    [
        (record("on"), record("off"), []),
        (record("on", files={"a.c": ["y"]}), record("off"), ["executorch file a.c"]),
        (record("on", files={"a.c": ["x"], "src/neonsme2.c": ["x"]}), record("off"), []),
        (record("on", files={"a.c": ["x"], "assume.c": ["x"]}), record("off"), ["executorch file assume.c"]),
        (record("on"), record("off", files={"a.c": ["x"], "sme2.c": ["x"]}), ["executorch file sme2.c"]),
        (
            record("on", files={"a.c": ["x"], "sme2.c": ["y"]}),
            record("off", files={"a.c": ["x"], "sme2.c": ["x"]}),
            ["executorch file sme2.c"],
        ),
        (record("on", compilers={"C": "Clang 17"}), record("off"), ["executorch compiler of C"]),
        (record("on"), record("on"), [*(f"executorch cache {name}" for name in SWITCHES), "SME2"]),
        (record("off"), record("on"), ["SME2", *(f"executorch cache {name}" for name in SWITCHES)]),
        (replace(record("on"), ndk="27"), record("off"), ["NDK"]),
        (replace(record("on"), trace=True), record("off"), ["trace"]),
    ],
)
def test_only_what_follows_from_the_switches_may_differ(
    on: BuildRecord, off: BuildRecord, refused: list[str]
):
    assert [difference.where for difference in pair_difference(on, off)] == refused


def test_sources_of_sme_kernels_are_known_by_a_whole_word():
    assert is_sme_source("src/amalgam/gen/neonsme2.c")
    assert is_sme_source("kai/ukernels/kai_lhs_pack_f32p2vlx1_f32_sme.c")
    assert not is_sme_source("sme2/assumed.c")
    assert not is_sme_source("src/neon.c")


def test_presets_of_a_platform_are_the_same_but_for_the_switches():
    for platform in ("android", "mac", "linux"):
        on, off = (preset_for(platform, sme2, ndk=Path("/ndk")) for sme2 in ("on", "off"))
        assert {name for name in on.cache if on.cache[name] != off.cache[name]} == set(SWITCHES)
        assert on.cache.keys() == off.cache.keys()
        assert on.toolchain_file == off.toolchain_file


# Binaries of other kinds


def mach_o(symbols: list[str], words: list[int]) -> bytes:
    """The smallest Mach-O object with a symbol table and a code section."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in symbols)
    text = struct.pack(f"<{len(words)}I", *words)
    start = 32 + 72 + 80 + 24
    table = start + len(text)
    header = struct.pack("<IIIIIIII", 0xFEEDFACF, 0x0100000C, 0, 1, 2, 72 + 80 + 24, 0, 0)
    segment = struct.pack("<II16sQQQQIIII", 0x19, 152, b"", 0, len(text), start, len(text), 7, 7, 1, 0)
    section = struct.pack(
        "<16s16sQQIIIIIIII", b"__text", b"__TEXT", 0, len(text), start, 2, 0, 0, 0x80000400, 0, 0, 0
    )
    at = table + 16 * len(symbols)
    symtab = struct.pack("<IIIIII", 2, 24, table, len(symbols), at, len(names))
    entries, offset = b"", 1
    for name in symbols:
        entries += struct.pack("<IBBHQ", offset, 0x0F, 1, 0, 0)
        offset += len(name) + 1
    return header + segment + section + symtab + text + entries + names


def test_mach_o_files_are_read_too(tmp_path: Path):
    path = tmp_path / "runner"
    path.write_bytes(mach_o([f"_{KAI}", "_main"], [0xD503201F, 0x80810000, 0xD65F03C0]))
    assert kernels_in(path).sme2 == (KAI,)
    assert kernels_in(path).outer_products == 1
    path.write_bytes(mach_o(["_main"], [0xA0810000]))
    assert kernels_in(path).evidence == "instructions"


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
        kernels_in(path)
