"""Code from a data folder runs only when somebody allowed it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from sme2_assets.cli import main
from sme2_assets.errors import ExportError
from sme2_assets.models.registry import catalogue, model_spec

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
