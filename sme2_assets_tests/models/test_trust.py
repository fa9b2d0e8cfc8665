"""Code from a data folder runs only when somebody allowed it."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from sme2_assets.cli import main
from sme2_assets.diagnostics.model import check_variant
from sme2_assets.diagnostics.steps import FAILED
from sme2_assets.errors import ExportError
from sme2_assets.models import export
from sme2_assets.models.registry import catalogue, model_spec, parse_variant
from sme2_assets.models.sources.folder import is_trusted, trust
from sme2_assets.models.sources.python_code import sha256_of_package
from sme2_assets.store import Store

HARM = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
MODEL = {"factory": "Model", "description": "does harm"}
class Model:
    def get_eager_model(self): ...
    def get_example_inputs(self): ...
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The models folder of a data folder that came from somebody, for a user who has trusted nothing."""
    for name in ("SME2_TRUST_MODELS", "SME2_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SME2_DATA", str(tmp_path / "data"))
    folder = tmp_path / "data" / "models"
    folder.mkdir(parents=True)
    (folder / "given.py").write_text(HARM)
    return folder


def build(name: str = "given") -> None:
    spec = model_spec(name)
    assert spec.factory is not None
    spec.factory()


def test_a_model_of_a_new_folder_is_listed_but_does_not_run(models: Path):
    assert "given" in [spec.name for spec in catalogue().specs]
    with pytest.raises(ExportError, match="nobody has allowed the code") as refused:
        build()
    assert "sme2 models --trust" in str(refused.value.remedy)
    assert not (models / "ran").exists()


def test_it_is_refused_before_torch_is_loaded(models: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(export, "load_libraries", Mock(side_effect=AssertionError("torch is being loaded")))
    variant = parse_variant("given-fp32")
    with pytest.raises(ExportError, match="nobody has allowed the code"):
        export.export_variant(variant.key, tmp_path, log=print)
    check = check_variant(variant, Store(models.parent), log=print)
    assert [step.name for step in check.steps if step.status == FAILED] == ["import"]
    assert "nobody has allowed the code" in str(next(s.problem for s in check.steps if s.problem))


def test_it_runs_once_the_folder_is_trusted_also_after_an_edit(models: Path):
    done = CliRunner().invoke(main, ["models", "--trust"])
    assert done.exit_code == 0, done.output
    assert not (models / "ran").exists(), "listing ran it"
    (models / "given.py").write_text(HARM + "# edited")
    build()
    assert (models / "ran").exists()


def test_trust_is_for_one_folder_and_lies_outside_it(models: Path, tmp_path: Path, monkeypatch):
    CliRunner().invoke(main, ["models", "--trust"])
    models.parent.rename(tmp_path / "other")
    monkeypatch.setenv("SME2_DATA", str(tmp_path / "other"))
    with pytest.raises(ExportError, match="nobody has allowed"):
        build()


def test_a_folder_that_was_configured_by_name_is_trusted(models: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("SME2_DATA", str(tmp_path / "empty"))
    monkeypatch.setenv("SME2_MODELS", str(models))
    build()
    assert (models / "ran").exists()


def test_who_begins_a_folder_trusts_it_and_who_adds_to_one_does_not(models: Path):
    runner = CliRunner()
    assert runner.invoke(main, ["onboard", "mine"]).exit_code == 0
    with pytest.raises(ExportError, match="nobody has allowed"):
        build("mine")
    for path in models.glob("*.py"):
        path.unlink()
    assert runner.invoke(main, ["onboard", "mine"]).exit_code == 0
    build("mine")


def test_a_name_that_other_readers_split_into_lines_gives_no_trust_to_another_folder(
    models: Path, tmp_path: Path
):
    victim = tmp_path / "victim"
    for end in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029":
        # As a path, it goes on after the end of the line with another absolute one.
        hostile = Path(f"{tmp_path}/x{end}{victim}")
        with pytest.raises(ExportError, match="cannot be trusted") as refused:
            trust(hostile)
        assert refused.value.remedy == "rename the folder"
        assert not is_trusted(victim)
        assert not is_trusted(hostile)


def test_a_name_that_is_not_utf_8_is_refused_with_a_sentence(models: Path, tmp_path: Path):
    with pytest.raises(ExportError, match="cannot be trusted"):
        trust(tmp_path / os.fsdecode(b"not\xff8"))
    trust(tmp_path / "Größe 大")
    assert is_trusted(tmp_path / "Größe 大")


def test_a_list_that_an_earlier_release_wrote_trusts_only_whole_lines(models: Path, tmp_path: Path):
    listed = trust(tmp_path / "mine")
    victim = tmp_path / "victim"
    listed.write_bytes(listed.read_bytes() + f"{tmp_path}/x\x85{victim}\r{victim}\n".encode() + b"/\xff\n")
    assert is_trusted(tmp_path / "mine")
    assert not is_trusted(victim)


@pytest.mark.parametrize("package", ["_harmless.sub", "nope.sub", ".x", "__main__", "os.path.x", "a-b", ""])
def test_a_package_that_a_file_names_is_never_imported_without_trust(models: Path, package: str):
    """`find_spec` of a dotted name imports all of it but the last part."""
    text = HARM.replace('"factory"', f'"packages": [{package!r}], "factory"')
    (models / "given.py").write_text(text)
    (models / "other.py").write_text(HARM)
    (models / "_harmless").mkdir()
    (models / "_harmless" / "__init__.py").write_text(HARM)
    assert "other" in [spec.name for spec in catalogue().specs]
    [problem] = [problem for problem in catalogue().problems if problem.name == "given"]
    assert "is not the name of a top-level package" in problem.problem
    for command in (["models"], ["check-model", "given"]):
        said = CliRunner().invoke(main, command)
        assert "not the name of a top-level package" in " ".join(said.output.split())
        assert said.exception is None or isinstance(said.exception, SystemExit)
    assert sha256_of_package(package) == ""
    assert list(models.rglob("ran")) == []


def test_a_top_level_package_beside_a_file_is_identified_without_being_imported(models: Path):
    text = HARM.replace('"factory"', '"packages": ["_harmless"], "factory"')
    (models / "given.py").write_text(text)
    (models / "_harmless").mkdir()
    (models / "_harmless" / "__init__.py").write_text(HARM)
    assert model_spec("given").identity()
    CliRunner().invoke(main, ["check-model", "given"])
    assert list(models.rglob("ran")) == []
