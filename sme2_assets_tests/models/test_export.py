"""Exports as they come out: complete, near the reference, cached, and never half there."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from executorch.devtools import Inspector
from torch import nn

from sme2_assets.errors import ExportError
from sme2_assets.evidence.delegation import DelegationReport
from sme2_assets.evidence.numerics import compare_outputs, sqnr_db
from sme2_assets.models import export
from sme2_assets.models.artifact import TAPPED, ExportedModel, load_exported, read_manifest
from sme2_assets.models.delegation import NOT_ASKED
from sme2_assets.models.spec import ModelSpec
from sme2_assets.runner.build import RunnerBinary
from sme2_assets_tests.models.run import operator_names, outputs_of
from sme2_assets_tests.models.small import Tangled, spec, thorough, values, variant

KEYS = ["toy_cnn-fp32", "toy_cnn-fp16", "toy_cnn-int8"]

# ExecuTorch's own runtime: not ours, and not in the process that loaded the export-time kernels.
RUN_PROGRAMS = """
import sys
from pathlib import Path
import numpy as np, torch
from executorch.runtime import Runtime
runtime = Runtime.get()
out, *folders = map(Path, sys.argv[1:])
for folder in folders:
    method = runtime.load_program(folder / "model.pte").load_method("forward")
    facts = [method.metadata.input_tensor_meta(0), method.metadata.output_tensor_meta(0)]
    inputs = [torch.from_numpy(np.load(path)) for path in sorted(folder.glob("input_*.npy"))]
    for index, output in enumerate(method.execute(inputs)):
        np.save(out / f"{folder.parent.name}_{index}.npy", output.numpy())
    (out / f"{folder.parent.name}.txt").write_text(" ".join(str(fact.dtype()) for fact in facts))
"""


@pytest.fixture(scope="session")
def ran(
    exported: Callable[[str], ExportedModel], python: Callable[..., str], made_once: Callable[..., Path]
) -> Path:
    """What the programs gave, and their types."""
    folders = [exported(key).directory for key in KEYS]
    return made_once("ran", lambda folder: python(RUN_PROGRAMS, folder, *folders))


@pytest.mark.parametrize(("key", "code"), zip(KEYS, ("6", "5", "6"), strict=True))
def test_the_program_gives_what_the_eager_model_gives_in_the_type_of_its_precision(
    exported: Callable[[str], ExportedModel], ran: Path, key: str, code: str
) -> None:
    model = exported(key)
    tolerance = read_manifest(model.manifest).tolerance
    assert tolerance.metric == "sqnr_db"
    for index, path in enumerate(model.expected_outputs):
        assert sqnr_db(np.load(path), np.load(ran / f"{key}_{index}.npy")) >= tolerance.minimum_db
    # The runtime tells types as numbers: 5 is half, 6 is float.
    assert (ran / f"{key}.txt").read_text().split() == [code, code]


@pytest.mark.parametrize("precision", ["fp32", *thorough("fp16")])
def test_without_xnnpack_nothing_is_delegated_and_the_outputs_are_right(
    exported: Callable[[str], ExportedModel], runner_binary: RunnerBinary, tmp_path: Path, precision: str
) -> None:
    model = exported(f"toy_cnn@backend=portable-{precision}")
    manifest = read_manifest(model.manifest)
    assert (manifest.operators.delegates, manifest.operators.delegated) == (0, {})
    assert {row.reason for row in DelegationReport.read(model.delegation).rows} == {NOT_ASKED}
    assert (model.directory / TAPPED).is_file()
    expected = [np.load(path) for path in model.expected_outputs]
    [agreement] = compare_outputs(expected, outputs_of(model, runner_binary, tmp_path))
    assert agreement.fault(manifest.tolerance.minimum_db) is None
    names = operator_names(model, runner_binary, tmp_path)
    assert "native_call_convolution.out" in names
    assert "DELEGATE_CALL" not in names


@pytest.mark.parametrize("key", KEYS)
def test_inputs_are_varied_data_of_the_stated_type(
    exported: Callable[[str], ExportedModel], key: str
) -> None:
    manifest = read_manifest(exported(key).manifest)
    for facts, path in zip(manifest.inputs, exported(key).inputs, strict=True):
        values = np.load(path)
        assert str(values.dtype) == facts.dtype == ("float16" if manifest.precision == "fp16" else "float32")
        assert list(values.shape) == facts.shape
        assert values.astype(np.float64).std() == pytest.approx(1.0, abs=0.1)


def test_fp16_is_judged_by_the_fp32_model_on_the_rounded_input(
    exported: Callable[[str], ExportedModel],
) -> None:
    full, half = exported("toy_cnn-fp32"), exported("toy_cnn-fp16")
    assert np.array_equal(np.load(full.inputs[0]).astype(np.float16), np.load(half.inputs[0]))
    assert np.load(half.expected_outputs[0]).dtype == np.float32


def test_int8_weights_are_a_quarter_of_the_size(exported: Callable[[str], ExportedModel]) -> None:
    sizes = {p: exported(f"toy_cnn-{p}").pte.stat().st_size for p in ("fp32", "int8")}
    assert sizes["int8"] < 0.4 * sizes["fp32"]
    delegated = read_manifest(exported("toy_cnn-int8").manifest).operators.delegated
    assert delegated["quantized_decomposed.dequantize_per_channel.default"] > 0


@pytest.mark.parametrize("key", KEYS)
def test_the_manifest_tells_the_whole_story(exported: Callable[[str], ExportedModel], key: str) -> None:
    model = exported(key)
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
    assert raw["export_seconds"] > 0
    assert raw["export_peak_memory_bytes"] > 50e6
    assert raw["identity"]["model"] == "toy_cnn"


def test_a_second_export_is_found_without_torch(
    exported: Callable[[str], ExportedModel], artifacts_dir: Path, python: Callable[..., str]
) -> None:
    printed = python(
        "import sys\n"
        "from pathlib import Path\n"
        "from sme2_assets.models.export import export_variant\n"
        "model = export_variant('toy_cnn-fp32', Path(sys.argv[1]), log=lambda line: None)\n"
        "print(model.cached, 'torch' in sys.modules, model.pte_sha256)",
        artifacts_dir,
    )
    assert printed.split() == ["True", "False", exported("toy_cnn-fp32").pte_sha256]


@pytest.mark.thorough
def test_another_process_exports_the_same_program(
    tangled: ExportedModel, python: Callable[..., str], tmp_path: Path
) -> None:
    printed = python(
        "import sys\n"
        "from sme2_assets_tests.models.test_export import export_tangled\n"
        "print(export_tangled(sys.argv[1]).pte_sha256)",
        tmp_path,
    )
    assert printed.split()[-1] == tangled.pte_sha256


def test_another_model_code_options_or_versions_are_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(model: str = "one") -> str:
        return export.content_key(spec(model, nn.Identity), variant("one", "int8"))

    keys = {key(), key(), key("two")}
    monkeypatch.setattr(export, "EXPORT_CODE_VERSION", 99)
    keys.add(key())
    monkeypatch.setitem(export.SCHEMES["int8"], "calibration_batches", 99)
    keys.add(key())
    installed = {"torch": "9.9+cpu", "executorch": "9.9", "torchao": "9.9", "numpy": "9.9"}
    monkeypatch.setattr(export.importlib.metadata, "version", installed.__getitem__)
    keys.add(key())
    assert len(keys) == 5
    # What decides nothing: for which machine torch was built, and what the arrays are written with.
    monkeypatch.setattr(
        export.importlib.metadata, "version", {**installed, "torch": "9.9", "numpy": "8"}.__getitem__
    )
    assert key() in keys


@pytest.mark.parametrize("step", ["lower_program", *thorough("_write_files"), "_publish"])
def test_an_export_that_fails_midway_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the disk is on fire\nand more")

    monkeypatch.setattr(export, step, fail)
    with pytest.raises(ExportError, match="tiny-fp32 could not be exported: the disk is on fire") as error:
        export.export_model(_tiny(), variant("tiny"), tmp_path, log=lambda line: None)
    assert isinstance(error.value.__cause__, RuntimeError)
    left = {path.suffix for path in (tmp_path / "models" / "tiny-fp32").iterdir()}
    assert left <= {".lock"}, "nothing but the lock that keeps exports apart"


def _tiny(**more: object) -> ModelSpec:
    return spec("tiny", lambda: nn.Linear(4, 4), values(2, 4), **more)


def _tangled_inputs() -> dict[str, object]:
    state = {"rest": (values(1, 5, 8, seed=5), values(1, 5, 8, seed=6)), "first": values(1, 5, 8, seed=7)}
    kwargs = {"scale": 0.5, "mask": None, "bias": values(8, seed=8)}
    return {
        "inputs": (torch.arange(5)[None] + 3, state, "sharp"),
        "more": {"get_example_kwarg_inputs": lambda _self: kwargs},
    }


def export_tangled(artifacts: Path | str) -> ExportedModel:
    given = _tangled_inputs()
    model = spec("tangled", Tangled, *given["inputs"], **given["more"])  # type: ignore[misc,arg-type]
    return export.export_model(model, variant("tangled", "fp16"), Path(artifacts), log=print)


@pytest.fixture(scope="session")
def tangled(own_artifacts: Path) -> ExportedModel:
    return export_tangled(own_artifacts)


def test_integer_nested_keyword_and_constant_inputs_reach_the_runner_in_order(
    tangled: ExportedModel, runner_binary: RunnerBinary, tmp_path: Path
) -> None:
    given = outputs_of(tangled, runner_binary, tmp_path)
    agreements = compare_outputs([np.load(path) for path in tangled.expected_outputs], given)
    # Every input counts in the outputs, and no two are alike: a swap would show.
    assert [agreement.fault(30.0, exact=True) for agreement in agreements] == [None, None]
    facts = [(tensor.dtype, tensor.shape) for tensor in read_manifest(tangled.manifest).inputs]
    assert facts[0] == ("int64", [1, 5])
    assert sorted(facts[1:], key=str) == sorted(
        [("float16", [1, 5, 8])] * 3 + [("float64", []), ("float16", [8])], key=str
    )


def test_what_is_no_tensor_is_left_out_of_the_outputs(tangled: ExportedModel) -> None:
    outputs = [(tensor.dtype, tensor.shape) for tensor in read_manifest(tangled.manifest).outputs]
    assert outputs == [("float16", [1, 5, 8]), ("int64", [1, 5])]


def test_a_dynamic_shape_is_kept_and_the_example_shape_is_run(
    own_artifacts: Path, runner_binary: RunnerBinary, tmp_path: Path
) -> None:
    shapes = {"input": {0: torch.export.Dim("rows", min=1, max=32)}}
    model = spec("rows", lambda: nn.Linear(4, 4), values(3, 4), get_dynamic_shapes=lambda _self: shapes)
    exported = export.export_model(model, variant("rows", "int8"), own_artifacts, log=print)
    assert outputs_of(exported, runner_binary, tmp_path)[0].shape == (3, 4)
    # The program takes other numbers of rows too.
    (tmp_path / "more").mkdir()
    np.save(tmp_path / "more.npy", values(17, 4).numpy())
    other = replace(exported, inputs=[tmp_path / "more.npy"])
    assert outputs_of(other, runner_binary, tmp_path / "more")[0].shape == (17, 4)


def test_hooks_wrap_the_model_and_substitute_operators(
    own_artifacts: Path, runner_binary: RunnerBinary, tmp_path: Path
) -> None:
    class Halved(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x) / 2

    class Swish(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.sigmoid(x)

    def substitute(_self: object, model: nn.Module) -> nn.Module:
        model[1] = Swish()  # type: ignore[index]
        return model

    model = spec(
        "hooked",
        lambda: nn.Sequential(nn.Linear(8, 8), nn.SiLU()),
        values(2, 8),
        substitute=substitute,
        wrap=lambda _self, model: Halved(model),
        is_classifier=True,
        minimum_sqnr_db={"fp32": 77.0},
    )
    exported = export.export_model(model, variant("hooked"), own_artifacts, log=print)
    manifest = read_manifest(exported.manifest)
    assert manifest.tolerance.minimum_db == 77.0
    assert manifest.is_classifier
    assert manifest.operators.delegated["aten.sigmoid.default"] == 1
    # What is expected is what the model gave before its operators were replaced.
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(export.SEED)
        wanted = (nn.Sequential(nn.Linear(8, 8), nn.SiLU())(values(2, 8)) / 2).numpy()
    assert sqnr_db(wanted, np.load(exported.expected_outputs[0])) > 100
    assert sqnr_db(wanted, outputs_of(exported, runner_binary, tmp_path)[0]) > 80


def _copy(model: ExportedModel, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model.directory, tmp_path / model.directory.name))


@pytest.mark.parametrize("name", ["model.pte", "model.etrecord", "input_0.npy", "expected_0.npy"])
def test_an_altered_or_missing_file_is_noticed(
    exported: Callable[[str], ExportedModel], tmp_path: Path, name: str
) -> None:
    folder = _copy(exported("toy_cnn-fp32"), tmp_path)
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ExportError, match=f"{name}.*altered"):
        load_exported(folder)
    (folder / name).unlink()
    with pytest.raises(ExportError, match=f"{name} is missing"):
        load_exported(folder)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"schema": 99}', '{"schema": 2}', '{"schema": 2, "files": 3}', "\x00"]
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ExportError, match=r"manifest\.json cannot be read"):
        load_exported(tmp_path)


def test_a_folder_without_a_manifest_is_not_an_export(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"manifest\.json is missing"):
        load_exported(tmp_path)


def test_a_manifest_cannot_lead_out_of_its_folder(
    exported: Callable[[str], ExportedModel], tmp_path: Path
) -> None:
    folder = _copy(exported("toy_cnn-fp32"), tmp_path)
    raw = json.loads((folder / "manifest.json").read_text())
    raw["files"]["../outside"] = raw["files"]["model.pte"]
    shutil.copy(folder / "model.pte", tmp_path / "outside")
    (folder / "manifest.json").write_text(json.dumps(raw))
    with pytest.raises(ExportError, match="outside the folder"):
        load_exported(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda raw: raw["outputs"][0].update(
                ranks={"file": "../elsewhere.npy", "axis": 0, "ordered": True}
            ),
            r"does not vouch for \.\./elsewhere\.npy",
        ),
        (lambda raw: raw.update(files=list(raw["files"])), r"manifest\.json cannot be read"),
    ],
    ids=["ranks", "list of files"],
)
def test_an_edited_manifest_is_refused(
    exported: Callable[[str], ExportedModel], tmp_path: Path, change: Callable[[dict], None], said: str
) -> None:
    folder = _copy(exported("toy_cnn-fp32"), tmp_path)
    raw = json.loads((folder / "manifest.json").read_text())
    change(raw)
    (folder / "manifest.json").write_text(json.dumps(raw))
    with pytest.raises(ExportError, match=said):
        load_exported(folder)


def test_a_damaged_export_is_made_again(
    exported: Callable[[str], ExportedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = exported("toy_cnn-fp32")
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


def test_the_etrecord_has_the_graphs_and_not_the_weights(tmp_path: Path, runner_binary: RunnerBinary) -> None:
    wide = spec("wide", lambda: nn.Sequential(nn.Linear(512, 512), nn.Softplus()), values(1, 512))
    model = export.export_model(wide, variant("wide"), tmp_path, log=print)
    assert model.pte.stat().st_size > 2**20
    assert model.etrecord is not None
    assert model.etrecord.stat().st_size < 100_000
    operator_names(model, runner_binary, tmp_path)
    inspector = Inspector(etdump_path=str(tmp_path / "trace.etdump"), etrecord=str(model.etrecord))
    events = [event for block in inspector.event_blocks for event in block.events]
    assert any("softplus" in str(event.stack_traces) for event in events)
