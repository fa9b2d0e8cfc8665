"""Files from outside become plain data, or an error that says where; nothing in them is ever executed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sme2_assets.errors import Sme2Error
from sme2_assets.experiments.load import KIND, load
from sme2_assets.written.documents import MOST_BYTES, read_document


def write(folder: Path, content: str | bytes, name: str = "x.yaml") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_words_mean_themselves(tmp_path: Path):
    text = (
        "sme2: off\nmask: 0xf0\nday: 2026-01-02\nyes: yes\nno: ~\nport: 22:22\noctal: 010\n"
        "real: 1.5e3\nint: -3\nflag: true\nquoted: '7'\n"
    )
    assert read_document(write(tmp_path, text), KIND).data == {
        "sme2": "off",
        "mask": "0xf0",
        "day": "2026-01-02",
        "yes": "yes",
        "no": None,
        "port": "22:22",
        "octal": 10,
        "real": 1500.0,
        "int": -3,
        "flag": True,
        "quoted": "7",
    }


def test_every_key_has_its_line(tmp_path: Path):
    lines = read_document(write(tmp_path, "# c\na:\n  - x\n  - b: 1\n    c: 2\n"), KIND).lines
    assert lines == {("a",): 2, ("a", 0): 3, ("a", 1): 4, ("a", 1, "b"): 4, ("a", 1, "c"): 5}


def test_a_byte_order_mark_and_windows_lines_are_fine(tmp_path: Path):
    assert read_document(write(tmp_path, b"\xef\xbb\xbfmodels: toy_cnn\r\n"), KIND).data == {
        "models": "toy_cnn"
    }


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (BOMB, "line 1: anchors"),
        ("a: *b\n", "line 1: anchors .* and aliases"),
        ("a: 1\nb: !!python/object/apply:os.system ['touch PWNED']\n", "line 2: the tag .*python/object"),
        ("a: !!python/name:os.system\n", "the tag"),
        ("!!python/object/new:os.system ['touch PWNED']: 1\n", "the tag"),
        ("models: toy_cnn\nthreads: 1\nmodels: other\n", r"line 3: the key 'models' appears twice.* line 1"),
        ("report:\n\toperators: true\n", "line 2: YAML cannot be indented with tabs"),
        ("a: 1\n---\nb: 2\n", "a second document"),
        ("[" * 5000, "line 1: this is nested too deeply"),
        ("a: " + "{b: " * 50, "nested too deeply"),
        ("a: [1, 2\nb: 3\n", "line 2: this is not YAML"),
        ("? [a, b]\n: 1\n", "a key is a word"),
        ("- a\n- b\n", "not a mapping"),
        ("just words\n", "not a mapping"),
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("a: " + "9" * 5000 + "\n", "line 1: this number is too large"),
        ("a: 1e999\n", "too large"),
        (b"models: caf\xe9\n", "not text in UTF-8: see byte 11"),
        ("a: \x00b\n", "text files cannot have"),
        ("x" * (MOST_BYTES + 1), "larger than 256 KiB"),
    ],
)
def test_hostile_yaml_is_a_clear_error_and_does_nothing(tmp_path, monkeypatch, content, complaint):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Sme2Error, match=complaint) as caught:
        load(write(tmp_path, content))
    assert caught.value.remedy
    assert [path.name for path in tmp_path.iterdir()] == ["x.yaml"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"a": 1, "a": 2}', "'a'|\"a\" appears twice"),
        ('{"a": NaN}', "NaN is not a number"),
        ('{"a": 1e999}', "too large"),
        ('{"a": ' + "9" * 5000 + "}", "far too many digits"),
        ('{\n  "a": 1,\n}', "line 3: this is not JSON|line 2: this is not JSON"),
        ("[" * 100_000, "nested too deeply|no JSON"),
        ("[1]", "not a mapping"),
        ("{}", "is empty"),
    ],
)
def test_hostile_json_is_a_clear_error(tmp_path: Path, content: str, complaint: str):
    with pytest.raises(Sme2Error, match=complaint):
        load(write(tmp_path, content, "x.json"))


def test_a_file_that_is_not_there_or_of_another_kind_is_told(tmp_path: Path):
    with pytest.raises(Sme2Error, match="cannot be read: No such file"):
        load(tmp_path / "x.yaml")
    with pytest.raises(Sme2Error, match="neither YAML nor JSON"):
        load(write(tmp_path, "a: 1", "x.toml"))


def test_only_regular_files_are_read_and_a_pipe_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(Sme2Error, match=r"pipe\.yaml is not a regular file"):
        load(tmp_path / "pipe.yaml")
    write(tmp_path, "models: toy_cnn\n")
    (tmp_path / "link.yaml").symlink_to("x.yaml")
    assert read_document(tmp_path / "link.yaml", KIND).data == {"models": "toy_cnn"}


def test_what_a_file_says_commands_no_terminal(tmp_path: Path):
    hostile = {"models": "toy_cnn", "\x1b[2J": 1, "threads": "\x1b]0;x\x07\x9b"}
    with pytest.raises(Sme2Error) as caught:
        load(write(tmp_path, json.dumps(hostile), "x.json"))
    said = str(caught.value)
    assert "there is no such key" in said
    assert all(sign.isprintable() or sign == "\n" for sign in said)
    with pytest.raises(Sme2Error, match="must be a text of whole characters"):
        load(write(tmp_path, '{"models": "\\ud800"}', "x.json"))
    with pytest.raises(Sme2Error, match="cannot be printed"):
        load(write(tmp_path, '{"models": "a\\u0000b.pte"}', "x.json"))


@pytest.mark.parametrize("name", ["x.yaml", "x.json"])
def test_a_file_full_of_wrong_keys_gets_a_message_of_readable_length(tmp_path: Path, name: str):
    keys = {f"k{number}": 1 for number in range(20000)}
    text = json.dumps(keys) if name.endswith("json") else "\n".join(f"{key}: 1" for key in keys)
    with pytest.raises(Sme2Error, match="more than 50 problems") as caught:
        load(write(tmp_path, text, name))
    assert "k49" in str(caught.value)
    assert "k51" not in str(caught.value)


def test_a_key_that_appears_twice_in_json_is_named_among_very_many(tmp_path: Path):
    keys = ", ".join(f'"k{number}": 1' for number in [*range(15000), 7])
    with pytest.raises(Sme2Error, match='key "k7" appears twice'):
        read_document(write(tmp_path, f"{{{keys}}}", "x.json"), KIND)
