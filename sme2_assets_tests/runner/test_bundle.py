"""Bundles: the runner with its loader and libraries in one folder, built here and cross-built."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sme2_assets.errors import BuildError
from sme2_assets.evidence.result import CpuFacts
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.runner.build import RunnerBinary, load_runner
from sme2_assets.runner.bundle import build_bundle, host_is_target
from sme2_assets.runner.recording import write_samples
from sme2_assets.targets import Program
from sme2_assets.targets.local import EmulatedTarget
from sme2_assets.toolchain import sdk
from sme2_assets.toolchain.elf import AARCH64, read_needs
from sme2_assets.toolchain.qemu import Qemu
from sme2_assets_tests.reach import skip_out_of_reach


def _silent(line: str) -> None:
    """A log nobody reads."""


@pytest.fixture(scope="session")
def on_this_cpu(emulator: Qemu) -> tuple[str, ...]:
    """What a program for aarch64 is started with here: nothing on such a CPU, the emulator on another."""
    return () if host_is_target() else (str(emulator.path),)


@pytest.fixture(scope="session")
def cross_bundle(artifacts_dir: Path) -> RunnerBinary:
    """Made as on a host of another CPU: the wheel downloaded, the compiler unpacked from its packages."""
    try:
        return build_bundle(
            artifacts_dir, tools=artifacts_dir / "tools", cross=True, fetched_compiler=True, log=print
        )
    except BuildError as error:
        skip_out_of_reach(error)


def _run(
    program: Program,
    model: ExportedModel,
    folder: Path,
    *,
    sme2: str = "off",
    kind: str = "etdump",
    wrapper: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """One pass with nothing of this host's environment."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        *wrapper,
        *program.command_in(str(program.folder)),
        *("--model", str(model.pte), "--pass", kind, "--warmup", "0", "--iterations", "1", "--threads", "2"),
        *(word for path in model.inputs for word in ("--input", str(path))),
        *("--result", str(folder / "result.json"), "--outputs", str(folder / "outputs")),
        *("--etdump", str(folder / "trace.etdump")),
        *(("--samples", str(folder / "recording.json")) if kind == "kernels" else ()),
    ]
    return subprocess.run(
        command, env={"SME2_RUNNER_SME2": sme2}, capture_output=True, text=True, errors="replace", timeout=300
    )


def test_a_bundle_copied_elsewhere_takes_nothing_but_its_own_files(
    bundle: RunnerBinary, on_this_cpu: tuple[str, ...], tmp_path: Path
) -> None:
    for name in bundle.program.files:
        shutil.copy2(bundle.program.folder / name, tmp_path)
    loader = next(name for name in bundle.program.files if name.startswith("ld-linux"))
    listed = subprocess.run(
        [*on_this_cpu, f"./{loader}", "--library-path", ".", "--list", "./sme2_runner"],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    taken = {line.split("=>")[1].split()[0] for line in listed.splitlines() if "=>" in line}
    # The loader itself is listed by the path under which the libraries ask for it.
    taken = {path for path in taken if Path(path).name != loader}
    assert {Path(path).name for path in taken} == set(bundle.program.files) - {loader, "sme2_runner"}
    assert all(path.startswith("./") or Path(path).parent == tmp_path for path in taken)


def test_a_bundle_computes_what_the_runner_does_and_names_its_kernels(
    bundle: RunnerBinary,
    runner_binary: RunnerBinary,
    on_this_cpu: tuple[str, ...],
    exported: Callable[[str], ExportedModel],
    tmp_path: Path,
) -> None:
    model = exported("toy_cnn-fp32")
    for name, binary, wrapper in (("bundle", bundle, on_this_cpu), ("runner", runner_binary, ())):
        done = _run(binary.program, model, tmp_path / name, kind="kernels", wrapper=wrapper)
        assert done.returncode == 0, done.stderr
    _assert_same_outputs(tmp_path / "bundle", tmp_path / "runner")
    samples = tmp_path / "samples.json"
    write_samples(tmp_path / "bundle" / "recording.json", samples, [bundle.program.folder])
    functions = json.loads(samples.read_text())["functions"]
    assert "libexecutorch_backend_xnnpack.so" in {function["library"] for function in functions}
    assert any(function["symbol"] for function in functions)


def test_a_bundle_is_stored_whole_and_made_once(bundle: RunnerBinary, artifacts_dir: Path) -> None:
    again = build_bundle(artifacts_dir, tools=artifacts_dir / "tools", log=_silent)
    assert again.cached
    assert again == replace(bundle, cached=True) == load_runner(bundle.path.parent)
    folder = bundle.program.folder
    assert set(bundle.program.files) == {path.name for path in folder.iterdir()} - {"manifest.json"}
    assert 10e6 < sum((folder / name).stat().st_size for name in bundle.program.files) < 25e6
    assert {read_needs(folder / name).machine for name in bundle.program.files} == {AARCH64}


def test_a_bundle_with_a_changed_library_is_refused(bundle: RunnerBinary, tmp_path: Path) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(bundle.path.parent, copy)
    with (copy / "libm.so.6").open("ab") as library:
        library.write(b"more")
    with pytest.raises(BuildError, match=r"libm\.so\.6 is not the file"):
        load_runner(copy)
    (copy / "libm.so.6").unlink()
    with pytest.raises(BuildError, match="no complete runner"):
        load_runner(copy)


def test_a_cross_built_bundle_takes_sme2_kernels_when_on_and_none_when_off(
    cross_bundle: RunnerBinary,
    runner_binary: RunnerBinary,
    exported: Callable[[str], ExportedModel],
    emulator: Qemu,
    tmp_path: Path,
) -> None:
    model = exported("toy_cnn-fp32")
    emulated = (str(emulator.path), "-cpu", "max")
    for sme2 in ("on", "off"):
        done = _run(cross_bundle.program, model, tmp_path / sme2, sme2=sme2, wrapper=emulated)
        assert done.returncode == 0, done.stderr
        assert (b"PF32" in (tmp_path / sme2 / "trace.etdump").read_bytes()) == (sme2 == "on")
        native, wrapper = tmp_path / f"native-{sme2}", emulated if host_is_target() else ()
        assert _run(runner_binary.program, model, native, sme2=sme2, wrapper=wrapper).returncode == 0
        _assert_same_outputs(tmp_path / sme2, native)


@pytest.mark.usefixtures("x86_64_host")
def test_the_emulated_platform_of_an_x86_64_host_takes_a_bundle(
    cross_bundle: RunnerBinary, emulator: Qemu, artifacts_dir: Path
) -> None:
    target = EmulatedTarget(artifacts_dir / "tools")
    assert target.bundled
    assert target.availability("on").ok
    assert target.facts().arch == "aarch64"
    with target.workspace() as workspace:
        done = workspace.run([*workspace.install(cross_bundle.program), "--cpu"], {}, timeout_s=600)
    assert CpuFacts.model_validate_json(done.stdout).sme2_usable


def _assert_same_outputs(bundled: Path, native: Path) -> None:
    """To the bit, but where this host's own runner is for another CPU, whose kernels round elsewhere."""
    names = [path.name for path in sorted((bundled / "outputs").iterdir())]
    assert names
    for name in names:
        one, other = (np.load(folder / "outputs" / name) for folder in (bundled, native))
        if host_is_target():
            np.testing.assert_array_equal(one, other)
        else:
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "recorded", "complaint"),
    [
        ("executorch/lib/libexecutorch.so", b"other", "not what its RECORD says"),
        ("executorch/lib/../../../escaped", b"content", "cannot be the name"),
    ],
)
def test_a_wheel_that_is_not_what_it_says_is_refused(
    name: str, recorded: bytes, complaint: str, tmp_path: Path
) -> None:
    wheel = tmp_path / "executorch-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(name, b"content")
        archive.writestr("executorch-1.0.dist-info/RECORD", f"{name},{sdk._record_hash(recorded)},7\n")
    with pytest.raises(BuildError, match=complaint):
        sdk._unpack_wheel(wheel, "1.0", tmp_path / "sdk" / "deep")
    assert not (tmp_path / "escaped").exists()


def test_a_version_that_does_not_exist_or_has_no_libraries_is_told_from_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real pip, with a folder in place of the index."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))

    def refused(version: str) -> str:
        with pytest.raises(BuildError) as raised:
            sdk.fetch_sdk(version, "Linux aarch64", tmp_path / "tools", log=_silent)
        return str(raised.value)

    assert "package index does not answer" in refused("9.8.7")
    info = "executorch-9.8.7.dist-info"
    with zipfile.ZipFile(index / "executorch-9.8.7-py3-none-manylinux_2_28_aarch64.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: executorch\nVersion: 9.8.7\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n")
        archive.writestr(f"{info}/RECORD", "")
    assert "ExecuTorch 9.8.7 has no C++ libraries" in refused("9.8.7")
    assert "There is no ExecuTorch 9.9.9 for aarch64 Linux" in (told := refused("9.9.9"))
    assert "Choose another version: 9.8.7." in told
    assert not [path for path in (tmp_path / "tools" / "executorch").iterdir() if path.is_dir()]


def test_a_file_that_is_no_whole_program_is_told_from_one(bundle: RunnerBinary, tmp_path: Path) -> None:
    content = bundle.path.read_bytes()
    assert hashlib.sha256(content).hexdigest() == bundle.sha256
    assert "libexecutorch.so" in read_needs(bundle.path).libraries
    broken = tmp_path / "broken"
    for text, complaint in (
        (b"#!/bin/sh\n", "not an ELF"),
        (b"\x7fELF\x01\x01" + bytes(60), "64-bit"),
        (content[:200], "damaged"),
        (content[:4096], "damaged"),
    ):
        broken.write_bytes(text)
        with pytest.raises(ValueError, match=complaint):
            read_needs(broken)
