"""A .pte from elsewhere is profiled as it is; a broken one is told so."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from executorch.exir.schema import ScalarType, Tensor, TensorShapeDynamism

from sme2_assets.errors import ExportError
from sme2_assets.evidence.delegation import DelegationReport
from sme2_assets.models.artifact import ExportedModel, read_manifest
from sme2_assets.models.existing import _seeded_inputs
from sme2_assets.models.export import NOT_EXPECTED, _existing, export_model
from sme2_assets.models.progress import Progress
from sme2_assets.models.spec import AS_IS, ModelSpec, Variant
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.store import sha256_of_file
from sme2_assets_tests.models.run import outputs_of
from sme2_assets_tests.runner.mutants import mutant

VARIANT = Variant("given", AS_IS)


def _spec(pte: Path, **more: object) -> ModelSpec:
    return ModelSpec(
        name="given",
        description="A program as it is",
        source="pte",
        place=str(pte),
        identify=lambda: {"pte": sha256_of_file(pte)},
        precisions=(AS_IS,),
        pte=pte,
        **more,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="session")
def given(exported: Callable[[str], ExportedModel], own_artifacts: Path) -> ExportedModel:
    return export_model(_spec(exported("toy_cnn-int8").pte), VARIANT, own_artifacts, log=print)


def test_the_program_is_copied_as_it_is(
    given: ExportedModel, exported: Callable[[str], ExportedModel]
) -> None:
    assert given.pte_sha256 == exported("toy_cnn-int8").pte_sha256
    assert given.etrecord is None


def test_inputs_are_made_from_what_the_program_says(
    given: ExportedModel, runner_binary: RunnerBinary, tmp_path: Path
) -> None:
    (facts,) = read_manifest(given.manifest).inputs
    assert (facts.dtype, facts.shape) == ("float32", [1, 3, 64, 64])
    assert np.load(given.inputs[0]).std() == pytest.approx(1.0, abs=0.05)
    assert outputs_of(given, runner_binary, tmp_path)[0].shape == (1, 10)


def test_there_is_nothing_expected_of_its_outputs(given: ExportedModel) -> None:
    manifest = read_manifest(given.manifest)
    assert given.expected_outputs == []
    assert manifest.expected == NOT_EXPECTED
    assert manifest.parameters is None
    assert [(tensor.file, tensor.shape) for tensor in manifest.outputs] == [(None, [1, 10])]
    assert manifest.operators.delegates == 2
    assert manifest.operators.portable == {"aten::mean.out": 1}


def test_its_reasons_are_not_known(given: ExportedModel) -> None:
    (left_out,) = [row for row in DelegationReport.read(given.delegation).rows if not row.delegated]
    assert left_out.reason == "not known: the program was lowered elsewhere"


def test_an_etrecord_and_inputs_beside_it_are_taken(
    exported: Callable[[str], ExportedModel], tmp_path: Path
) -> None:
    model = exported("toy_cnn-fp32")
    with_more = _spec(model.pte, etrecord=model.etrecord, input_files=tuple(model.inputs))
    taken = export_model(with_more, VARIANT, tmp_path, log=print)
    assert taken.etrecord is not None
    assert np.array_equal(np.load(taken.inputs[0]), np.load(model.inputs[0]))


def test_inputs_that_do_not_fit_are_refused(exported: Callable[[str], ExportedModel], tmp_path: Path) -> None:
    np.save(tmp_path / "wrong.npy", np.zeros((1, 3, 64, 64), dtype=np.int64))
    wrong = _spec(exported("toy_cnn-fp32").pte, input_files=(tmp_path / "wrong.npy",))
    with pytest.raises(ExportError, match=r"Input 0 of model\.pte is float32 .*wrong\.npy has int64"):
        export_model(wrong, VARIANT, tmp_path, log=print)


def test_a_small_program_cannot_ask_for_inputs_that_fill_the_memory() -> None:
    """All inputs together are limited: a list of inputs may even name the same one again and again."""
    input_of_a_quarter = Tensor(
        ScalarType.HALF, 0, [1 << 27], [0], False, 0, 0, None, TensorShapeDynamism.STATIC
    )
    with pytest.raises(ExportError, match=r"takes inputs of 1,342,177,280 bytes") as caught:
        _seeded_inputs(Path("greedy.pte"), [input_of_a_quarter] * 5)
    assert "greedy.input_0.npy" in str(caught.value.remedy)


def test_mutants_of_a_program_are_read_or_refused(
    exported: Callable[[str], ExportedModel], tmp_path: Path
) -> None:
    whole = exported("toy_cnn-int8").pte.read_bytes()
    # The table comes first, and the weights behind it mean nothing to who reads it.
    table = int.from_bytes(whole[12:20], "little") if whole[8:10] == b"eh" else 20_000
    draw, refused = random.Random(11), 0
    staging = tmp_path / "staging"
    staging.mkdir()
    for _ in range(40):
        pte = tmp_path / "mutant.pte"
        pte.write_bytes(mutant(whole[:table], draw) + whole[table:])
        try:
            _existing(_spec(pte), staging, Progress("given", print))
        except ExportError:
            refused += 1
    assert refused > 5


@pytest.mark.parametrize("kind", ["empty", "text", "cut", "zeroed"])
def test_a_broken_program_is_told_so_and_leaves_nothing(
    exported: Callable[[str], ExportedModel], tmp_path: Path, kind: str
) -> None:
    whole = exported("toy_cnn-fp32").pte.read_bytes()
    broken = {"empty": b"", "text": b"no program", "cut": whole[:200], "zeroed": whole[:16] + bytes(5000)}
    pte = tmp_path / "broken.pte"
    pte.write_bytes(broken[kind])
    with pytest.raises(ExportError, match=r"broken\.pte is (broken|not an ExecuTorch program)"):
        export_model(_spec(pte), VARIANT, tmp_path, log=print)
    assert not list((tmp_path / "models").rglob("*.pte"))
