from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import threading
from pathlib import Path

import pytest

from sme2_assets import store as store_module
from sme2_assets.errors import Sme2Error
from sme2_assets.store import (
    DAGSTER_YAML,
    Store,
    default_data_root,
    new_directory,
    ready_dagster_home,
    safe_name,
    sha256_of_file,
    sha256_of_text,
    write_json,
    write_text_atomically,
)


@pytest.mark.parametrize("name", ["toy_cnn-fp32", "a", "0.1", "linux-sme2_on", "20260101T000000-a1b2c3"])
def test_a_safe_name_is_taken_as_it_is(name):
    assert safe_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "-flag", "_x", "a/b", "a b", "a\n", "ä", "a=b", "a'b"]
)
def test_a_name_that_is_not_safe_everywhere_is_refused(name):
    with pytest.raises(Sme2Error):
        safe_name(name)


def test_names_from_outside_do_not_lead_out_of_the_data_folder(tmp_path: Path):
    store = Store(tmp_path)
    for path in (
        lambda: store.run_dir("../x"),
        lambda: store.current("run", "../../etc/passwd"),
    ):
        with pytest.raises(Sme2Error):
            path()


@pytest.mark.parametrize("name", ["two\nlines", "v\x0bt", "line\u2028separator", "not utf-8 \udcff"])
def test_a_data_folder_whose_path_other_programs_would_misread_is_refused(tmp_path: Path, name: str):
    with pytest.raises(Sme2Error):
        Store(tmp_path / name)
    Store(tmp_path / 'it\'s "50 %" of\u3000日本 [*]')


def test_a_folder_appears_when_it_is_complete(tmp_path: Path):
    final = tmp_path / "deep" / "final"
    with new_directory(final) as staging:
        (staging / "file").write_text("x")
        assert not final.exists()
    assert (final / "file").read_text() == "x"
    assert [path.name for path in final.parent.iterdir()] == ["final"]
    assert stat.S_IMODE(final.stat().st_mode) == 0o755


def test_a_failure_leaves_no_folder(tmp_path: Path):
    def fill() -> None:
        with new_directory(tmp_path / "final") as staging:
            (staging / "file").write_text("x")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_a_text_is_replaced_as_a_whole(tmp_path: Path):
    path = tmp_path / "deep" / "file"
    write_text_atomically(path, "old")
    held = path.open()
    write_text_atomically(path, "new")
    assert (held.read(), path.read_text()) == ("old", "new")
    held.close()
    assert [each.name for each in path.parent.iterdir()] == ["file"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_failed_write_keeps_the_old_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "file"
    write_text_atomically(path, "old")

    def fail(handle: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_text_atomically(path, "new")
    assert path.read_text() == "old"


def test_a_reader_never_sees_half_a_text(tmp_path: Path):
    path = tmp_path / "file"
    texts = {letter * 20_000 for letter in "ab"}
    write_text_atomically(path, "a" * 20_000)
    stop = threading.Event()
    seen = []

    def read() -> None:
        seen.append(path.read_text())
        while not stop.is_set():
            seen.append(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(50):
        write_text_atomically(path, "ab"[number % 2] * 20_000)
    stop.set()
    reader.join()
    assert seen
    assert set(seen) <= texts


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_json_is_strict(tmp_path: Path, value: float):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "file.json", {"x": value})
    assert list(tmp_path.iterdir()) == []


def test_json_comes_back(tmp_path: Path):
    write_json(tmp_path / "file.json", {"x": [1, None, "ä"]})
    assert json.loads((tmp_path / "file.json").read_text()) == {"x": [1, None, "ä"]}


def test_the_current_thing_is_the_last_one_set(tmp_path: Path):
    store = Store(tmp_path)
    assert store.current("run", "toy.linux") is None
    store.set_current("run", "toy.linux", "r1")
    store.set_current("run", "toy.linux", "r2")
    store.set_current("run", "other.linux", "r3")
    assert store.current("run", "toy.linux") == "r2"


def test_hashes_are_sha256(tmp_path: Path):
    data = os.urandom(3_000_000)
    (tmp_path / "file").write_bytes(data)
    assert sha256_of_file(tmp_path / "file") == hashlib.sha256(data).hexdigest()


def test_the_border_between_texts_counts():
    assert sha256_of_text("ab", "c") != sha256_of_text("a", "bc")


def test_the_data_folder_can_be_set_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SME2_DATA", str(tmp_path / "x" / ".." / "data"))
    assert default_data_root() == (tmp_path / "data").resolve()
    monkeypatch.delenv("SME2_DATA")
    assert default_data_root() == store_module.CHECKOUT / "data"


def test_outside_a_checkout_data_go_where_a_persons_data_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store_module, "CHECKOUT", tmp_path / "site-packages")
    monkeypatch.delenv("SME2_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    root = default_data_root()
    assert root.is_relative_to(tmp_path / "home")
    assert root.name == "sme2_assets"


def test_a_new_dagster_home_begins_with_our_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    home = ready_dagster_home(Store(tmp_path))
    assert home == tmp_path / "dagster_home"
    assert (home / "dagster.yaml").read_text() == DAGSTER_YAML.read_text()
    (home / "dagster.yaml").write_text("# mine\n")
    assert ready_dagster_home(Store(tmp_path)) == home
    assert (home / "dagster.yaml").read_text() == "# mine\n"


def test_a_dagster_home_that_is_named_gets_one_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "elsewhere"))
    assert ready_dagster_home(Store(tmp_path / "data")) == tmp_path / "elsewhere"
    assert (tmp_path / "elsewhere" / "dagster.yaml").is_file()
    monkeypatch.setenv("DAGSTER_HOME", "relative")
    with pytest.raises(Sme2Error, match="DAGSTER_HOME"):
        ready_dagster_home(Store(tmp_path / "data"))
