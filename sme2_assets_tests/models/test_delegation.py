"""The delegation report: everything is in it once, and what was left out has its reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sme2_assets.errors import EvidenceError
from sme2_assets.evidence.delegation import DelegationReport, DelegationRow
from sme2_assets.models.artifact import ExportedModel, read_manifest
from sme2_assets.models.delegation import UNKNOWN_OPERATOR
from sme2_assets.models.export import export_model
from sme2_assets_tests.models.small import spec, values, variant


class Refused(nn.Module):
    """Operators that XNNPACK does not know, and some that it knows in another form."""

    def __init__(self) -> None:
        super().__init__()
        self.solid = nn.Conv3d(1, 2, 3)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        cube = self.solid(x.expand(1, 1, 3, 8, 8))
        y = self.linear(x)
        return cube, torch.cumsum(y, dim=1), y.mean(dim=0), torch.cumsum(y * 2, dim=1)


@pytest.fixture(scope="session")
def report(own_artifacts: Path) -> DelegationReport:
    refused = spec("refused", Refused, values(8, 8))
    model = export_model(refused, variant("refused"), own_artifacts, log=print)
    return DelegationReport.read(model.delegation)


def _row(report: DelegationReport, operator: str) -> DelegationRow:
    (row,) = [row for row in report.rows if row.operator == operator]
    return row


def test_the_partitioners_own_reason_is_told(report: DelegationReport) -> None:
    convolution = _row(report, "aten.convolution.default")
    assert convolution.reason == "Only support 1D + 2D Conv"
    assert convolution.module == "solid"
    assert convolution.source is not None
    assert convolution.source.startswith("sme2_assets_tests/models/test_delegation.py:")
    reason = _row(report, "aten.mean.dim").reason
    assert reason == "mean.dim only supports averaging 4D tensors, got tensor of rank 2"


def test_an_operator_that_xnnpack_does_not_have_is_told_so(report: DelegationReport) -> None:
    cumulative = _row(report, "aten.cumsum.default")
    assert (cumulative.reason, cumulative.delegated, cumulative.count) == (UNKNOWN_OPERATOR, False, 2)


def test_what_was_delegated_has_no_reason(report: DelegationReport) -> None:
    linear = _row(report, "aten.linear.default")
    assert (linear.delegated, linear.reason, linear.module) == (True, None, "linear")


@pytest.mark.parametrize("key", ["toy_cnn-fp32", "toy_cnn-int8"])
def test_every_operator_of_the_program_is_counted_once(
    exported: Callable[[str], ExportedModel], key: str
) -> None:
    report, manifest = DelegationReport.read(exported(key).delegation), read_manifest(exported(key).manifest)
    assert report.delegated == manifest.operators.delegated_total
    assert report.total - report.delegated == manifest.operators.portable_total
    assert report.delegated_share == manifest.delegated_share


def test_what_was_left_out_comes_first(report: DelegationReport) -> None:
    delegated = [row.delegated for row in report.rows]
    assert delegated == sorted(delegated)


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 9, "rows": []}', '{"schema": 1, "rows": [{"a": 1}]}'])
def test_a_report_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "delegation.json").write_text(text)
    with pytest.raises(EvidenceError, match=r"delegation\.json (is not|has version 9)"):
        DelegationReport.read(tmp_path / "delegation.json")
