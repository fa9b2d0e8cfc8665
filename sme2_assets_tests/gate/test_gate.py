"""A gate over a real model: recorded, unchanged, then changed so that a convolution loses its SME2 kernel."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sme2_assets import launch
from sme2_assets.analysis.claims import heard
from sme2_assets.analysis.statistics import MIN_ROUNDS
from sme2_assets.cli import main
from sme2_assets.defs.partitions import MODEL_VARIANTS
from sme2_assets.experiments import trials
from sme2_assets.gate.baseline import BASELINE_FILE, Baseline, ModelFacts, Times
from sme2_assets.gate.judge import Tolerances, judge
from sme2_assets.gate.summary import MARK
from sme2_assets.gate.take import Taken
from sme2_assets.models.registry import variants
from sme2_assets.report import claims
from sme2_assets.report.advice import advice_section
from sme2_assets.store import CHECKOUT, Store
from sme2_assets.targets.host import host_platform
from sme2_assets.toolchain.qemu import Qemu
from sme2_assets.warehouse import Warehouse
from sme2_assets.warehouse.rebuild import differences
from sme2_assets_tests.claims.zoo import false_sentences
from sme2_assets_tests.gate.test_action import run_step
from sme2_assets_tests.skills import bash_commands

NET = """
import torch

MODEL = {{"factory": "Net", "precisions": ["fp16"]}}


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.body = torch.nn.Conv2d(16, 16, 3, padding=1{groups})

    def forward(self, x):
        x = torch.relu(self.stem(x))
        return self.body(x)


class Net:
    def get_eager_model(self):
        return Layers()

    def get_example_inputs(self):
        return (torch.randn(1, 3, 16, 16),)
"""
BODY_LINE = NET.splitlines().index("        return self.body(x)") + 1


@pytest.fixture(scope="module")
def repository(
    tmp_path_factory: pytest.TempPathFactory, own_artifacts: Path, emulator: Qemu
) -> Iterator[Path]:
    """Somebody's repository with a model and a baseline of it."""
    root = tmp_path_factory.mktemp("repository")
    (root / "nets").mkdir()
    (root / "data").mkdir()
    (root / "data" / "artifacts").symlink_to(own_artifacts)
    (root / "data" / "tools").symlink_to(own_artifacts / "tools")
    (root / "nets" / "net.py").write_text(NET.format(groups=""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SME2_DATA", str(root / "data"))
        patch.setenv("SME2_MODELS", str(root / "nets"))
        done = gate(root, "record", "net")
        assert done.exit_code == 0, done.output
        yield root


def gate(root: Path, *words: str) -> Result:
    command = words[0]
    return CliRunner().invoke(main, ["gate", command, "--baseline", str(root / BASELINE_FILE), *words[1:]])


def test_the_baseline_has_what_the_model_is(repository: Path):
    [(variant, facts)] = Baseline.read(repository / BASELINE_FILE).models.items()
    assert variant == "net-fp16"
    assert [(each.module, each.unit) for each in facts.operators] == [("stem", "on"), ("body", "on")]
    # By hand: places x kernel x input channels x output channels.
    assert [each.macs for each in facts.operators] == [256 * 9 * 3 * 16, 256 * 9 * 16 * 16]
    # Tiles are filled up; of what an inference executes, a part is in no convolution.
    assert all(each.macs <= each.macs_executed == each.macs_on_unit for each in facts.operators)
    assert sum(each.instructions for each in facts.operators) < facts.instructions
    assert facts.outside == []
    assert facts.outputs[0].shape == [1, 16, 16, 16]


def test_a_change_that_loses_a_kernel_fails_with_the_line(repository: Path, own_artifacts: Path):
    """A depthwise convolution, of which XNNPACK has no SME2 kernel; by the step of the action."""
    recorded = (repository / BASELINE_FILE).read_text()
    (repository / "nets" / "net.py").write_text(NET.format(groups=", groups=16"))
    home = repository / "home"
    cache = home / ".cache" / "sme2-gate"
    cache.mkdir(parents=True)
    (cache / "artifacts").symlink_to(own_artifacts)
    (cache / "tools").symlink_to(own_artifacts / "tools")
    files = {name: repository / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    done = run_step(
        "check",
        {
            **{name: str(path) for name, path in files.items()},
            **{"HOME": str(home), "RUNNER_TEMP": str(repository), "SME2_DATA": str(repository / "data2")},
            **{"MODELS": "", "BASELINE": BASELINE_FILE, "OPTIONS": "--update"},
        },
        repository,
    )
    assert done.returncode == 1, done.stderr
    assert (repository / BASELINE_FILE).read_text() == recorded
    text = files["GITHUB_STEP_SUMMARY"].read_text()
    assert text.startswith(f"{MARK}\n## SME2 gate: lost something in net-fp16\n")
    [lost] = [row for row in text.splitlines() if row.startswith("| loss | body")]
    assert f"net.py:{BODY_LINE}" in lost
    assert "lost its SME2 kernel: Convolution (NHWC, PF16) IGEMM, now Convolution (NHWC, F16) DWConv" in lost
    assert "2 of 2 → 1 of 2" in text
    assert f"summary={repository}/sme2-gate.md" in files["GITHUB_OUTPUT"].read_text()


@pytest.mark.thorough
def test_what_was_gained_is_recorded_when_somebody_says_so(repository: Path):
    path = repository / BASELINE_FILE
    recorded = Baseline.read(path).models["net-fp16"]
    (repository / "nets" / "net.py").write_text(NET.format(groups=", groups=16"))
    done = gate(repository, "record", "net-fp16", "--times", host_platform())
    assert done.exit_code == 0, done.output
    smaller = Baseline.read(path).models["net-fp16"]
    times = smaller.times
    assert {(each.platform, each.asked, len(each.rounds_ns) >= MIN_ROUNDS) for each in times} == {
        (host_platform(), "", True)
    }
    assert [each.kernel for each in Baseline.read(path).models["net-fp16"].operators][1].endswith("DWConv")
    (repository / "nets" / "net.py").write_text(NET.format(groups=""))
    # The program is larger again, and executes more. Its weights took other random numbers, and so do the
    # inputs after them.
    done = gate(repository, "check", "net", "--json", "--size", "9", "--work", "9", "--update")
    assert done.exit_code == 0
    found = {(each["kind"], each["where"].split()[0]) for each in json.loads(done.stdout)["net-fp16"]}
    untimed = {("note", each.where.split()[0]) for each in times}
    assert found == {("gain", "body"), ("note", "inputs")} | untimed
    again = Baseline.read(path).models["net-fp16"]
    # Nothing differs between two measurements of a program, not by one instruction. That it may grow is no
    # gain, so the size and the instructions stay.
    assert smaller.program_bytes < recorded.program_bytes
    least = {"program_bytes": smaller.program_bytes, "instructions": smaller.instructions}
    assert again == recorded.model_copy(update={"times": times, **least})


SMALL = """
import torch

MODEL = {"factory": "Net", "precisions": ["fp16", "fp32"]}


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.widen = torch.nn.Sequential(torch.nn.Conv2d(16, 64, 1), torch.nn.ReLU())

    def forward(self, x):
        return self.widen(self.stem(x))


class Net:
    def get_eager_model(self):
        return Layers()

    def get_example_inputs(self):
        return (torch.randn(1, 3, 16, 16),)
"""
# The layers on the unit; None: not tried. At fp16 XNNPACK has no SME2 kernel for 1x1 convolutions.
PROVEN = {
    "as it is": {"stem"},
    "small-fp32": {"stem", "widen.0"},
    "small@rewrite=framed-fp16": {"stem", "widen.0"},
    "small@rewrite=linear-fp16": {"stem", "widen.0"},
    "small@keep=widen-fp16": {"stem", "widen.0"},
    "small@rewrite=two_channels-fp16": None,
    "small@rewrite=delegated-fp16": None,
    "small@rewrite=fused-fp16": None,
}


@pytest.mark.parametrize("options", ["--no-rewrites", pytest.param("", marks=pytest.mark.thorough)])
def test_advice_is_proven_by_what_ran(
    own_artifacts: Path, tmp_path: Path, emulator: Qemu, monkeypatch: pytest.MonkeyPatch, options: str
):
    """The documented command, with a model that is exported and emulated in seconds."""
    proven = {name: units for name, units in PROVEN.items() if not options or "rewrite" not in name}
    recommended = {name for name, units in proven.items() if units and len(units) == 2}
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "small.py").write_text(SMALL)
    monkeypatch.setenv("SME2_MODELS", str(tmp_path / "nets"))
    [command] = bash_commands(CHECKOUT / "docs" / "advise.md")
    # Times would take minutes on AArch64; see warehouse/test_advice.py.
    wanted = f"{command.replace('toy_cnn-fp16', 'small-fp16')} --no-times --json {options}"
    told = json.loads(documented(wanted, own_artifacts, tmp_path, monkeypatch).stdout)
    tried = {each["change"]: each for each in told["tried"]}

    # Kept as rows that a rebuild makes again, and as a section of the reports.
    store = Store(tmp_path)
    warehouse = Warehouse(store.warehouse)
    rows = warehouse.query("FROM advice WHERE variant = 'small-fp16' ORDER BY rank").set_index("change")
    assert list(rows.index) == list(tried)
    on = warehouse.query(
        "SELECT run_id, module FROM operator_facts JOIN runs USING (run_id) WHERE on_sme_unit = 'on' AND "
        "runs.platform = 'emulated' AND runs.sme2 = 'on'"
    )
    assert {
        name: None if it["problem"] else set(on["module"][on["run_id"] == it["run_id"]])
        for name, it in tried.items()
    } == proven
    assert set(rows.index[rows["recommended"]]) == recommended
    assert rows["problem"].dropna().tolist() == ["the model has none"] * [*proven.values()].count(None)
    # What was tried is no partition, but for the models that the UI has anyway.
    with launch.open_instance(store) as instance:
        assert set(instance.get_dynamic_partitions(MODEL_VARIANTS)) <= {it.key for it in variants()}
    found, _ = differences(store, print)
    assert "advice" not in [each.table for each in found]
    with heard() as said:
        [program] = warehouse.query(
            "SELECT pte_sha256 FROM runs WHERE run_id = ?", [rows.loc["as it is", "run_id"]]
        )["pte_sha256"]
        assert len(advice_section(warehouse, "small-fp16", program)) == 1
    assert sum(each.claim is claims.GAIN for each in said) == len(recommended)
    assert false_sentences(warehouse, said) == []


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            lambda text: text.replace('"executorch": "', '"executorch": "0.'),
            "kernels may differ for that reason",
        ),
        (lambda text: text[: len(text) // 2], "is not a JSON document"),
        (lambda text: text.replace('"unit": "on"', '"unit": "maybe"'), "unit"),
    ],
)
def test_a_baseline_of_another_version_or_a_damaged_one_is_refused_before_anything_is_measured(
    repository: Path, tmp_path: Path, damage, told: str
):
    (tmp_path / BASELINE_FILE).write_text(damage((repository / BASELINE_FILE).read_text()))
    done = gate(tmp_path, "check")
    assert done.exit_code == 1
    assert told in done.stderr
    assert "What to do:" in done.stderr


def test_a_model_that_was_never_recorded_is_refused(repository: Path):
    done = gate(repository, "check", "toy_cnn-fp16")
    assert done.exit_code == 1
    assert "does not contain 'toy_cnn-fp16'; it has net-fp16." in done.stderr


def _made(path: Path, **models: str) -> None:
    """A baseline whose models have nothing but a size."""
    facts = {name: _facts() for name in models.values()}
    Baseline(executorch=trials.executorch_version(), models=facts).write(path)


def _facts(**given: Any) -> ModelFacts:
    known = {"program_bytes": 1, "delegate_calls": 0, "steps": 1, "sqnr_db": None, "least_db": 30.0}
    lists: dict[str, list[Any]] = {name: [] for name in ("inputs", "outputs", "operators", "outside")}
    return ModelFacts(**{**known, **lists, **given})


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Called while something is measured, which takes no time here."""
    meanwhile: list[Callable[[], None]] = []

    def measure(store: Store, wanted: dict[str, Any], log: Any, reached: Any) -> dict[str, Taken]:
        for each in meanwhile:
            each()
        return {name: Taken(_facts(), {}) for name in wanted}

    monkeypatch.setattr(trials, "measure", measure)
    return meanwhile


def test_what_others_record_while_this_is_measured_stays(tmp_path: Path, measured: list[Callable[[], None]]):
    path = tmp_path / BASELINE_FILE
    measured.append(lambda: _made(path, theirs="theirs-fp32"))
    assert gate(tmp_path, "record", "toy_cnn-fp16").exit_code == 0
    assert set(Baseline.read(path).models) == {"theirs-fp32", "toy_cnn-fp16"}
    measured.append(lambda: _made(path, theirs="theirs-fp32", more="more-fp32", ours="toy_cnn-fp16"))
    assert gate(tmp_path, "check", "--update", "toy_cnn-fp16").exit_code == 0
    assert set(Baseline.read(path).models) == {"theirs-fp32", "more-fp32", "toy_cnn-fp16"}


def test_a_model_is_checked_by_the_name_that_it_was_recorded_by(tmp_path: Path, measured: list[Any]):
    for model in ("executorch:deep_autoencoder-fp32", "toy_cnn@rewrite=delegated"):
        assert gate(tmp_path, "record", model).exit_code == 0
        done = gate(tmp_path, "check", model)
        assert done.exit_code == 0, done.output
        assert "nothing was lost" in done.stdout


def test_times_that_are_recorded_no_longer_are_told(tmp_path: Path, measured: list[Any]):
    times = Times(
        **{"platform": "linux", "asked": "", "device": "d", "fidelity": "hardware", "sme2": "on"},  # type: ignore[arg-type]
        threads=1,
        cpus="",
        rounds_ns=[1.0],
    )
    models = {"toy_cnn-fp16": _facts(times=[times])}
    Baseline(executorch=trials.executorch_version(), models=models).write(tmp_path / BASELINE_FILE)
    done = gate(tmp_path, "record", "toy_cnn-fp16")
    assert done.exit_code == 0
    assert "The times of toy_cnn-fp16 are no longer in" in done.stderr
    assert "no longer" not in gate(tmp_path, "record", "toy_cnn-fp16").stderr


def test_a_check_of_nothing_or_by_no_number_is_refused(tmp_path: Path):
    _made(tmp_path / BASELINE_FILE)
    done = gate(tmp_path, "check")
    assert done.exit_code == 1
    assert "has no model in it" in done.stderr
    done = gate(tmp_path, "check", "--size", "nan")
    assert done.exit_code == 2
    assert "is not a number" in done.stderr


@pytest.mark.thorough
def test_the_documented_commands_work_in_their_order(
    artifacts_dir: Path, tmp_path: Path, emulator: Qemu, monkeypatch: pytest.MonkeyPatch
):
    commands = bash_commands(CHECKOUT / "docs" / "gate.md")
    assert [shlex.split(command)[2] for command in commands] == ["record", "check"]
    done = [documented(command, artifacts_dir, tmp_path, monkeypatch) for command in commands][-1]
    assert "nothing was lost" in done.stdout
    assert "| toy_cnn-fp16 | ok | 4 of 8 | 62.2% |" in done.stdout
    # The one that the workflow checks with: recorded on another machine, another day.
    kept = Baseline.read(CHECKOUT / "sme2_assets_tests" / "gate" / BASELINE_FILE)
    made = Baseline.read(tmp_path / BASELINE_FILE)
    found = judge(kept.models["toy_cnn-fp16"], made.models["toy_cnn-fp16"], Tolerances())
    assert (kept.executorch, found) == (made.executorch, [])


def documented(command: str, artifacts: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    """The command as it is written, in that folder, which is also its data folder."""
    for name, place in (("artifacts", artifacts), ("tools", artifacts / "tools")):
        if not (folder / name).exists():
            (folder / name).symlink_to(place)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SME2_DATA", str(folder))
    done = CliRunner().invoke(main, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output
    return done


def test_where_nothing_can_be_tried_nothing_is_measured():
    done = CliRunner().invoke(main, ["advise", "toy_cnn-fp16", "--no-rewrites", "--no-precisions"])
    assert done.exit_code == 1
    assert "There is nothing to try with toy_cnn-fp16." in done.stderr
    assert "What to do:" in done.stderr


def test_one_file_is_of_one_version_and_emulated_times_are_none(repository: Path, tmp_path: Path):
    """Refused before anything is measured."""
    older = (repository / BASELINE_FILE).read_text().replace('"executorch": "', '"executorch": "0.')
    (tmp_path / BASELINE_FILE).write_text(older)
    done = gate(tmp_path, "record", "toy_cnn-fp16")
    assert done.exit_code == 1
    assert "one file is for one version" in done.stderr
    assert "sme2 gate record net-fp16 toy_cnn-fp16" in done.stderr
    assert (tmp_path / BASELINE_FILE).read_text() == older
    assert gate(repository, "record", "net-fp16", "--times", "emulated").exit_code == 2
