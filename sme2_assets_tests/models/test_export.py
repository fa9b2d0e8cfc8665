"""Exports as they come out: complete, near the reference, cached, and never half there."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sme2_assets.analysis.numerics import sqnr_db
from sme2_assets.errors import ExportError
from sme2_assets.models import export
from sme2_assets.models.artifact import ExportedModel, OperatorCounts, load_exported, read_manifest
from sme2_assets.models.registry import variants

KEYS = [variant.key for variant in variants()]

# ExecuTorch's own runtime: not ours, and not in the process that loaded the export-time kernels.
RUN_PROGRAMS = """
import sys
from pathlib import Path
import numpy as np, torch
from executorch.runtime import Runtime
runtime = Runtime.get()
for folder in map(Path, sys.argv[1:]):
    method = runtime.load_program(folder / "model.pte").load_method("forward")
    facts = [method.metadata.input_tensor_meta(0), method.metadata.output_tensor_meta(0)]
    inputs = [torch.from_numpy(np.load(path)) for path in sorted(folder.glob("input_*.npy"))]
    for index, output in enumerate(method.execute(inputs)):
        np.save(folder.parent / f"output_{index}.npy", output.numpy())
    (folder.parent / "dtypes.txt").write_text(" ".join(str(fact.dtype()) for fact in facts))
"""


@pytest.fixture(scope="session")
def ran(exported: dict[str, ExportedModel], python: Callable[..., str]) -> dict[str, ExportedModel]:
    python(RUN_PROGRAMS, *(model.directory for model in exported.values()))
    return exported


@pytest.mark.parametrize("key", KEYS)
def test_the_program_gives_what_the_eager_model_gives(ran: dict[str, ExportedModel], key: str) -> None:
    model = ran[key]
    tolerance = read_manifest(model.manifest).tolerance
    assert tolerance.metric == "sqnr_db"
    for index, path in enumerate(model.expected_outputs):
        measured = np.load(model.directory.parent / f"output_{index}.npy")
        assert sqnr_db(np.load(path), measured) >= tolerance.minimum_db


@pytest.mark.parametrize(
    ("key", "code"), [("toy_cnn-fp32", "6"), ("toy_cnn-fp16", "5"), ("toy_cnn-int8", "6")]
)
def test_the_program_takes_and_gives_the_type_of_its_precision(
    ran: dict[str, ExportedModel], key: str, code: str
) -> None:
    # The runtime tells types as numbers: 5 is half, 6 is float.
    assert (ran[key].directory.parent / "dtypes.txt").read_text().split() == [code, code]


@pytest.mark.parametrize("key", KEYS)
def test_inputs_are_varied_data_of_the_stated_type(exported: dict[str, ExportedModel], key: str) -> None:
    manifest = read_manifest(exported[key].manifest)
    for facts, path in zip(manifest.inputs, exported[key].inputs, strict=True):
        values = np.load(path)
        assert str(values.dtype) == facts.dtype == ("float16" if manifest.precision == "fp16" else "float32")
        assert list(values.shape) == facts.shape
        assert values.astype(np.float64).std() == pytest.approx(1.0, abs=0.1)


def test_fp16_is_judged_by_the_fp32_model_on_the_rounded_input(exported: dict[str, ExportedModel]) -> None:
    full, half = exported["toy_cnn-fp32"], exported["toy_cnn-fp16"]
    assert np.array_equal(np.load(full.inputs[0]).astype(np.float16), np.load(half.inputs[0]))
    assert np.load(half.expected_outputs[0]).dtype == np.float32


@pytest.mark.parametrize("model", ["toy_cnn", "mobilenet_v3_small"])
def test_int8_weights_are_a_quarter_of_the_size(exported: dict[str, ExportedModel], model: str) -> None:
    sizes = {p: exported[f"{model}-{p}"].pte.stat().st_size for p in ("fp32", "int8")}
    assert sizes["int8"] < 0.4 * sizes["fp32"]
    delegated = read_manifest(exported[f"{model}-int8"].manifest).operators.delegated
    assert delegated["quantized_decomposed.dequantize_per_channel.default"] > 0


@pytest.mark.parametrize("key", KEYS)
def test_the_manifest_tells_the_whole_story(exported: dict[str, ExportedModel], key: str) -> None:
    model = exported[key]
    raw = json.loads(model.manifest.read_text(), parse_constant=lambda value: pytest.fail(f"{value} in JSON"))
    assert raw["variant"] == key
    assert raw["content_key"][:16] == model.directory.name
    assert {"python", "torch", "executorch", "torchao"} <= raw["versions"].keys()
    assert set(raw["files"]) | {"manifest.json"} == {path.name for path in model.directory.iterdir()}
    for name, facts in raw["files"].items():
        content = (model.directory / name).read_bytes()
        assert facts == {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    assert model.pte_sha256 == raw["files"]["model.pte"]["sha256"]
    assert raw["parameters"] > 0
    assert raw["macs"] > 0
    assert raw["operators"]["delegates"] > 0
    assert sum(raw["operators"]["delegated"].values()) > 20
    assert "eager fp32" in raw["expected"]
    assert raw["export_seconds"] > 0
    assert isinstance(raw["seed"], int)


@pytest.mark.parametrize("model", ["toy_cnn", "mobilenet_v3_small"])
def test_only_what_xnnpack_cannot_take_stays_outside_of_it(
    exported: dict[str, ExportedModel], model: str
) -> None:
    expected = {"aten::mean.out": 1} if model == "toy_cnn" else {}
    for precision in ("fp32", "fp16", "int8"):
        assert read_manifest(exported[f"{model}-{precision}"].manifest).operators.portable == expected


def test_a_second_export_is_found_without_torch(
    exported: dict[str, ExportedModel], artifacts_dir: Path, python: Callable[..., str]
) -> None:
    printed = python(
        "import sys\n"
        "from pathlib import Path\n"
        "from sme2_assets.models.export import export_variant\n"
        "model = export_variant('toy_cnn-fp32', Path(sys.argv[1]), log=lambda line: None)\n"
        "print(model.cached, 'torch' in sys.modules, model.pte_sha256)",
        artifacts_dir,
    )
    assert printed.split() == ["True", "False", exported["toy_cnn-fp32"].pte_sha256]


def test_an_export_elsewhere_gives_the_same_program_and_tells_its_steps(
    exported: dict[str, ExportedModel], tmp_path: Path, python: Callable[..., str]
) -> None:
    printed = python(
        "import sys\n"
        "from pathlib import Path\n"
        "from sme2_assets.models.export import export_variant\n"
        "print(export_variant('toy_cnn-int8', Path(sys.argv[1]), log=print).pte_sha256)",
        tmp_path,
    )
    *told, sha256 = printed.splitlines()
    assert sha256 == exported["toy_cnn-int8"].pte_sha256
    steps = ("loading torch", "building", "calibrating", "exporting", "lowering", "writing", "exported in")
    lines = [line for line in told if line.startswith("toy_cnn-int8: ")]
    assert len(lines) == len(steps)
    assert all(step in line for step, line in zip(steps, lines, strict=True))


def test_other_code_options_or_versions_are_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    from sme2_assets.models.registry import model_spec, parse_variant

    def key() -> str:
        return export.content_key(model_spec("toy_cnn"), parse_variant("toy_cnn-int8"))

    keys = {key(), key()}
    monkeypatch.setattr(export, "_source_sha256", lambda module: "edited")
    keys.add(key())
    monkeypatch.setitem(export.OPTIONS["int8"], "calibration_batches", 99)
    keys.add(key())
    monkeypatch.setattr(export, "_versions", lambda: {"torch": "9.9"})
    keys.add(key())
    assert len(keys) == 4


@pytest.mark.parametrize("step", ["_lower", "_write_files", "_publish"])
def test_an_export_that_fails_midway_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the disk is on fire\nand more")

    # Lowering and writing are passed over, so that the step that fails is soon reached.
    monkeypatch.setattr(export, "_lower", lambda program: (None, OperatorCounts(0, {}, {})))
    monkeypatch.setattr(export, "_write_files", lambda program, staging: ([], []))
    monkeypatch.setattr(export, step, fail)
    with pytest.raises(ExportError, match="could not be exported: the disk is on fire"):
        export.export_variant("toy_cnn-fp32", tmp_path, log=lambda line: None)
    left = {path.suffix for path in (tmp_path / "models" / "toy_cnn-fp32").iterdir()}
    assert left <= {".lock"}, "nothing but the lock that keeps exports apart"


def test_a_failed_export_names_the_variant_and_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("operator foo.bar has no kernel\nand forty lines more")

    monkeypatch.setattr(export, "_lower", fail)
    with pytest.raises(ExportError) as error:
        export.export_variant("toy_cnn-fp32", tmp_path, log=lambda line: None)
    assert error.value.what == "toy_cnn-fp32 could not be exported: operator foo.bar has no kernel"
    assert isinstance(error.value.__cause__, RuntimeError)


def _copy(model: ExportedModel, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model.directory, tmp_path / model.directory.name))


def test_a_folder_reads_back_as_what_was_exported(exported: dict[str, ExportedModel]) -> None:
    model = exported["toy_cnn-fp16"]
    loaded = load_exported(model.directory)
    assert loaded.cached
    assert (loaded.pte, loaded.etrecord, loaded.inputs, loaded.pte_sha256) == (
        model.pte,
        model.etrecord,
        model.inputs,
        model.pte_sha256,
    )


@pytest.mark.parametrize("name", ["model.pte", "model.etrecord", "input_0.npy", "expected_0.npy"])
def test_an_altered_or_missing_file_is_noticed(
    exported: dict[str, ExportedModel], tmp_path: Path, name: str
) -> None:
    folder = _copy(exported["toy_cnn-fp32"], tmp_path)
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ExportError, match=f"{name}.*altered"):
        load_exported(folder)
    (folder / name).unlink()
    with pytest.raises(ExportError, match=f"{name} is missing"):
        load_exported(folder)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"schema": 99}', '{"schema": 1}', '{"schema": 1, "files": 3}', "\x00"]
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ExportError, match=r"manifest\.json cannot be read"):
        load_exported(tmp_path)


def test_a_folder_without_a_manifest_is_not_an_export(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"manifest\.json is missing"):
        load_exported(tmp_path)


def test_a_manifest_cannot_lead_out_of_its_folder(exported: dict[str, ExportedModel], tmp_path: Path) -> None:
    folder = _copy(exported["toy_cnn-fp32"], tmp_path)
    raw = json.loads((folder / "manifest.json").read_text())
    raw["files"]["../outside"] = raw["files"]["model.pte"]
    shutil.copy(folder / "model.pte", tmp_path / "outside")
    (folder / "manifest.json").write_text(json.dumps(raw))
    with pytest.raises(ExportError, match="outside the folder"):
        load_exported(folder)


def test_a_damaged_export_is_made_again(
    exported: dict[str, ExportedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = exported["toy_cnn-fp32"]
    damaged = tmp_path / "models" / "toy_cnn-fp32" / model.directory.name
    shutil.copytree(model.directory, damaged)
    (damaged / "model.pte").write_bytes(b"short")
    asked: list[str] = []
    # What is exported again is not the point here; that it is asked for is.
    monkeypatch.setattr(export, "_export", lambda spec, variant, *rest: asked.append(variant.key))
    lines: list[str] = []
    export.export_variant("toy_cnn-fp32", tmp_path, log=lines.append)
    assert asked == ["toy_cnn-fp32"]
    assert "model.pte is not the file that was exported" in lines[0]
    assert not damaged.exists()
