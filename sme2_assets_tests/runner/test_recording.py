"""From the recording of a kernels pass to its samples file: which files name functions, which must not."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sme2_assets.errors import EvidenceError
from sme2_assets.evidence.samples import Samples
from sme2_assets.runner.build import find_compiler
from sme2_assets.runner.recording import write_samples
from sme2_assets.runner.symbols import read_image

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="compiles an ELF library")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    source = folder / "library.cpp"
    source.write_text('extern "C" int exported(int x) { return 3 * x + 1; }')
    path = folder / "library.so"
    command = [
        *find_compiler(),
        "-shared",
        "-fPIC",
        "-O1",
        "-Wl,--build-id=sha1",
        str(source),
        "-o",
        str(path),
    ]
    subprocess.run(command, check=True)
    return path


def address_of(library: Path) -> int:
    listed = subprocess.run(["nm", "-D", str(library)], capture_output=True, text=True, check=True).stdout
    return next(int(line.split()[0], 16) for line in listed.splitlines() if line.endswith(" exported"))


def recording_of(library: Path, **changes: Any) -> dict[str, Any]:
    """A recording of three samples: two in the library's function, one in no module."""
    image, address = read_image(library), address_of(library)
    module = {"path": f"/device/{library.name}", "build_id": image.build_id, "image": None} | changes
    return {
        "schema": 1,
        "arch": platform.machine(),
        "period_ns": 500_000,
        "dropped": 0,
        "missed": 2,
        "clock": {"trace_ns": 10, "monotonic_ns": 5, "lag_ns": 1},
        "threads": [{"tid": 7, "name": "main", "main": True}],
        "modules": [module],
        "places": {
            "module": [0, None, 0],
            "address": [address, 1 << 40, address + 4],
            "word": [image.word_at(address), None, image.word_at(address + 4)],
        },
        "samples": {"time_ns": [1, 2, 3, 4], "thread": [0, 0, 0, 0], "place": [0, 2, 1, 0]},
    }


def named(document: Any, folder: Path, *folders: Path) -> dict[str, Any]:
    (folder / "recording.json").write_text(json.dumps(document))
    write_samples(folder / "recording.json", folder / "samples.json", folders)
    return json.loads((folder / "samples.json").read_text())


def test_functions_are_named_by_the_file_that_ran(library, tmp_path):
    address = address_of(library)
    samples = named(recording_of(library), tmp_path, library.parent)
    assert samples["functions"] == [
        {"library": library.name, "offset": address, "symbol": "exported"},
        {"library": None, "offset": 1 << 40, "symbol": None},
    ]
    assert samples["samples"]["function"] == [0, 0, 1, 0]
    assert samples["samples"]["address"] == [address, address + 4, 1 << 40, address]
    read = Samples.read(tmp_path / "samples.json")
    assert (len(read), read.missed, read.lag_ns) == (4, 2, 1)


def test_the_module_s_own_path_is_looked_at_too(library, tmp_path):
    samples = named(recording_of(library, path=str(library)), tmp_path)
    assert samples["functions"][0]["symbol"] == "exported"


def test_bytes_in_the_recording_name_what_is_in_no_file(library, tmp_path):
    samples = named(recording_of(library, path="linux-vdso.so.1", image=library.read_bytes().hex()), tmp_path)
    assert samples["functions"][0] == {
        "library": "linux-vdso.so.1",
        "offset": address_of(library),
        "symbol": "exported",
    }


def unnamed(library: Path) -> list[tuple[str | None, int]]:
    """The functions of the recording when no file tells more: every address stands for itself."""
    address = address_of(library)
    return [(library.name, address), (None, 1 << 40), (library.name, address + 4)]


def functions_in(samples: dict[str, Any]) -> list[tuple[str | None, int]]:
    assert {function["symbol"] for function in samples["functions"]} == {None}
    return [(function["library"], function["offset"]) for function in samples["functions"]]


def test_without_the_file_samples_keep_module_and_address(library, tmp_path):
    assert functions_in(named(recording_of(library), tmp_path, tmp_path)) == unnamed(library)


@pytest.mark.parametrize("build_id", [None, "00" * 20])
def test_a_file_of_another_build_names_nothing(library, tmp_path, build_id):
    document = recording_of(library, build_id=build_id)
    assert functions_in(named(document, tmp_path, library.parent)) == unnamed(library)


def test_a_file_with_other_instructions_names_nothing(library, tmp_path):
    document = recording_of(library)
    document["places"]["word"][2] ^= 1
    assert functions_in(named(document, tmp_path, library.parent)) == unnamed(library)


def test_a_damaged_file_names_nothing(library, tmp_path):
    (tmp_path / library.name).write_bytes(library.read_bytes()[:100])
    assert functions_in(named(recording_of(library), tmp_path, tmp_path)) == unnamed(library)


def test_the_right_one_of_two_files_of_one_name_is_taken(library, tmp_path):
    shutil.copy("/bin/true", tmp_path / library.name)
    samples = named(recording_of(library), tmp_path, tmp_path, library.parent)
    assert samples["functions"][0]["symbol"] == "exported"


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(schema=2),
        lambda d: d.pop("schema"),
        lambda d: d.pop("clock"),
        lambda d: d["places"].update(module=[0]),
        lambda d: d["places"].update(module=[0, 5, 0]),
        lambda d: d["places"].update(address=["x", 1, 2]),
        lambda d: d["samples"].update(place=[0, 9, 0, 0]),
        lambda d: d["samples"].update(place=[0, -1, 0, 0]),
        lambda d: d["modules"].insert(0, None),
        lambda d: d.update(more=1),
        lambda d: d["samples"].update(place=[0, 1]),
        lambda d: d["modules"][0].update(path=3),
        lambda d: d["modules"][0].update(image="xyz"),
    ],
)
def test_a_recording_that_cannot_be_believed_is_a_clear_error(library, tmp_path, change):
    document = recording_of(library)
    change(document)
    with pytest.raises(EvidenceError, match="recording"):
        named(document, tmp_path, library.parent)
    assert not (tmp_path / "samples.json").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"\xff\xfe"])
def test_what_is_no_recording_is_refused(tmp_path, content):
    (tmp_path / "recording.json").write_bytes(content)
    with pytest.raises(EvidenceError, match="recording"):
        write_samples(tmp_path / "recording.json", tmp_path / "samples.json", ())


def test_a_missing_recording_is_told(tmp_path):
    with pytest.raises(EvidenceError, match="is missing"):
        write_samples(tmp_path / "recording.json", tmp_path / "samples.json", ())
