"""Every model type that the installed transformers registers: is it built, exported at fp32, and run?

Each type is built small, exported, lowered and run once under emulation with SME2 on; its outputs are
compared with the eager model's. What is refused or fails is a row with its cause. Results are kept line by
line: a second run goes on where the first stopped, and a type that ended the process is not tried again.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sme2_assets.errors import Sme2Error
from sme2_assets.evidence.numerics import compare_outputs, first_fault, worst_agreement
from sme2_assets.evidence.result import RunnerResult
from sme2_assets.models.failures import kernel_failure
from sme2_assets.models.huggingface.types import class_of, model_type, type_names
from sme2_assets.models.registry import model_spec
from sme2_assets.models.time_limit import time_limit
from sme2_assets.report.tables import TextTable
from sme2_assets.runner.build import RunnerBinary
from sme2_assets.runner.bundle import runner_for
from sme2_assets.runner.failures import runner_failure
from sme2_assets.store import Store, default_data_root
from sme2_assets.targets import Target, open_target

if TYPE_CHECKING:
    from sme2_assets.models.lowering import LoweredProgram

# One of each kind first, so that a walk that is stopped early has seen all kinds.
FIRST = (
    *("bert", "vit", "resnet", "llama", "t5", "whisper", "clip", "wav2vec2", "detr", "gpt2", "qwen3", "bart"),
    *("swin", "convnext", "segformer", "llava", "mistral", "gemma3_text", "phi3", "mixtral", "mamba"),
    *("distilbert", "roberta", "deberta-v2", "albert", "electra", "deit", "beit", "dinov2", "siglip", "blip"),
    *("hubert", "wavlm", "audio-spectrogram-transformer", "dpt", "sam", "owlvit", "layoutlm", "mt5", "opt"),
)
RUNS, BUILDS, REFUSED, FAILED = "runs", "builds", "refused", "fails"
HEADER = ("model type", "result", "parts", "parameters", "operators delegated", "SQNR dB or cause")


def main() -> None:
    arguments = _arguments()
    store = Store((arguments.data or default_data_root() / "transformers_bench").resolve())
    store.artifacts.mkdir(parents=True, exist_ok=True)
    results = store.root / "results.jsonl"
    if not arguments.table:
        _walk(arguments.types or _in_order(), results, store, arguments)
    rows = _read(results)
    print(_summary(rows))
    print()
    print(TextTable.of(HEADER, [_cells(rows[name]) for name in sorted(rows) if _has_model(name)]).markdown())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("types", nargs="*", help="model types; default: all that transformers registers")
    parser.add_argument("--data", type=Path, help="data folder; default: data/transformers_bench")
    parser.add_argument("--limit-s", type=float, default=300.0, help="seconds that one type may take")
    parser.add_argument("--eager", action="store_true", help="only build them and run them in torch")
    parser.add_argument("--table", action="store_true", help="print what was found so far, and try nothing")
    return parser.parse_args()


def _in_order() -> list[str]:
    return list(dict.fromkeys([*FIRST, *(name for name in type_names() if _has_model(name))]))


def _has_model(name: str) -> bool:
    return class_of(name) is not None


def _read(results: Path) -> dict[str, dict[str, Any]]:
    """The last line of each type; one that began and has no end is what ended the process."""
    if not results.exists():
        return {}
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    last = {line["type"]: line for line in lines}
    return {name: line for name, line in last.items() if line["result"] is not None}


def _walk(names: list[str], results: Path, store: Store, arguments: argparse.Namespace) -> None:
    target = open_target("emulated", store)
    target.require("on")
    runner = runner_for(target, store, log=lambda _: None)
    before = _read(results)
    with results.open("a", encoding="utf-8") as kept:
        for name in names:
            if name in before and (arguments.eager or before[name]["result"] != BUILDS):
                continue
            began = {"type": name, "result": FAILED, "cause": "it ended the process"}
            print(json.dumps(began), file=kept, flush=True)
            started = time.monotonic()
            try:
                row = {"type": name, **_tried(name, target, runner, arguments)}
            except KeyboardInterrupt:
                # Stopped by a person: what was known before stays, and the type is tried again.
                print(json.dumps(before.get(name, {"type": name, "result": None})), file=kept, flush=True)
                raise
            row["seconds"] = round(time.monotonic() - started, 1)
            print(json.dumps(row), file=kept, flush=True)
            print(f"{name}: {row['result']} {row.get('cause') or ''} ({row['seconds']} s)", file=sys.stderr)


def _tried(name: str, target: Target, runner: RunnerBinary, arguments: argparse.Namespace) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    try:
        with time_limit(arguments.limit_s):
            for found in _stages(name, target, runner):
                facts |= found
                if arguments.eager:
                    break
    except Sme2Error as error:
        return {**facts, "result": REFUSED, "cause": error.what.splitlines()[0]}
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]
        return {**facts, "result": FAILED, "cause": f"{type(error).__name__}: {said}"}
    return facts


def _stages(name: str, target: Target, runner: RunnerBinary) -> Iterator[dict[str, Any]]:
    """What is known of a type after each stage: it ends with the first that fails."""
    from sme2_assets.models.export import load_libraries, quiet_libraries
    from sme2_assets.models.inputs import input_array, tensor_array
    from sme2_assets.models.lowering import (
        MOST_HELD_BYTES,
        build_model,
        export_program,
        free_lowered_programs,
        lower_program,
        one_thread,
    )
    from sme2_assets.models.progress import Progress

    progress = Progress(name, lambda _: None)
    with quiet_libraries(), one_thread():
        load_libraries()
        # Also what a type that failed left behind, of which nothing was written.
        free_lowered_programs(MOST_HELD_BYTES)
        built = build_model(model_spec(f"hf:{name.replace('.', '_')}"), "fp32", progress)
        yield {"result": BUILDS, "parameters": built.parameters}
        exported, inputs = export_program(built, "fp32", progress)
        program = lower_program(exported, inputs, progress)
        yield {"delegated": program.delegation.delegated_share}
        given = [input_array(value) for value in program.inputs]
        reference, changed = built.reference, program.changed_inputs
        outputs = _run(target, runner, program, given, steps=len(reference.outputs))
        agreements = compare_outputs(
            [tensor_array(value) for value in reference.expected(changed)],
            outputs,
            classifier=built.is_classifier,
            rankings={len(changed) + index: ranking for index, ranking in reference.rankings.items()},
        )
    worst = worst_agreement(agreements)
    assert worst is not None
    fault = first_fault(agreements, built.minimum_sqnr_db, exact=True)
    yield {
        "sqnr_db": worst.sqnr_db,
        "result": FAILED if fault else RUNS,
        "cause": str(fault) if fault else None,
    }


def _run(
    target: Target, runner: RunnerBinary, program: LoweredProgram, inputs: list[np.ndarray], steps: int
) -> list[np.ndarray]:
    from sme2_assets.models.attribution import describe_lowered

    with target.workspace() as workspace:
        path = Path(workspace.path("model.pte"))
        with path.open("wb") as pte:
            program.executorch.write_to_file(pte)
        command = [*workspace.install(runner.program), "--model", str(path)]
        for index, array in enumerate(inputs):
            file = Path(workspace.path(f"input_{index}.npy"))
            np.save(file, array)
            command += ["--input", str(file)]
        command += ["--pass", "latency", "--threads", "1", "--warmup", "0", "--iterations", "1"]
        command += ["--steps", str(steps)] if steps > 1 else []
        command += ["--result", workspace.path("result.json"), "--outputs", workspace.path("outputs")]
        done = workspace.run(command, {"SME2_RUNNER_SME2": "on"}, 300.0)
        if done.returncode != 0:
            of_kernel = kernel_failure(done.stderr, describe_lowered(program.executorch))
            raise of_kernel or runner_failure(done.returncode, done.stderr)
        found = RunnerResult.read(Path(workspace.path("result.json")))
        folder = Path(workspace.path("outputs"))
        return [np.load(folder / str(fact.file), allow_pickle=False) for fact in found.outputs]


def _summary(rows: dict[str, dict[str, Any]]) -> str:
    counts = Counter(row["result"] for name, row in rows.items() if _has_model(name))
    with_model = sum(_has_model(name) for name in type_names())
    without = len(type_names()) - with_model
    version = importlib.metadata.version("transformers")
    return (
        f"transformers {version} registers {len(type_names())} types: {without} are configurations of parts "
        f"without a model of their own, and are refused as such; {with_model} have a model. "
        f"{sum(counts.values())} of those were tried: {counts[RUNS]} build, export and run, "
        f"{counts[BUILDS]} build and run in torch and were not exported yet, {counts[REFUSED]} are refused "
        f"with a cause, {counts[FAILED]} fail{'s' if counts[FAILED] == 1 else ''}."
    )


def _cells(row: dict[str, Any]) -> list[object]:
    parameters, share, sqnr = row.get("parameters"), row.get("delegated"), row.get("sqnr_db")
    return [
        row["type"],
        row["result"],
        ", ".join(model_type(row["type"]).parts) or None,
        None if parameters is None else f"{parameters / 1e6:.2f} M",
        None if share is None else f"{share:.0%}",
        f"{sqnr:.0f}" if row["result"] == RUNS else row.get("cause"),
    ]


if __name__ == "__main__":
    main()
