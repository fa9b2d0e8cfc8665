"""The public kit's configurations run unchanged, and every change of meaning is told."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from sme2_assets.defs.resources import Lab
from sme2_assets.experiments.load import Loaded, load
from sme2_assets.experiments.plan import planned
from sme2_assets.experiments.schema import ExperimentError
from sme2_assets.models.registry import parse_variant


def kit(platform: str = "mac", **common: Any) -> dict[str, Any]:
    """What the kit's templates look like, for a model that is known here."""
    build = {"mac": "mac-arm64", "android": "android-arm64-v9a"}[platform]
    settings = {"mode": "timing", "runs": 10, "warmup": 1, "threads": [1], **common}
    return {
        "model": "model_profiling/out_toy_cnn/artifacts/toy_cnn_xnnpack_fp16.pte",
        "output_root": f"model_profiling/out_toy_cnn/runs/{platform}",
        "experiments": [
            {
                "name": f"{platform}_sme2_{state}",
                "runner_path": f"executorch/cmake-out/{build}{suffix}/executor_runner",
                **settings,
            }
            for state, suffix in (("on", ""), ("off", "-sme2-off"))
        ],
        "analysis": {"compare_pairs": []},
    }


def loaded(folder: Path, document: dict[str, Any], platform: str | None = None) -> Loaded:
    path = folder / "kit.json"
    path.write_text(json.dumps(document))
    return load(path, platform)


def complaints(folder: Path, document: dict[str, Any], platform: str | None = None) -> str:
    with pytest.raises(ExperimentError) as caught:
        loaded(folder, document, platform)
    return str(caught.value)


def entry(found: Loaded, index: int = 0) -> dict[str, Any]:
    assert found.experiment.entries is not None
    return found.experiment.entries[index].model_dump(exclude_none=True)


@pytest.mark.parametrize("platform", ["mac", "android"])
def test_a_pair_of_the_kit_is_one_interleaved_session(tmp_path: Path, platform: str):
    found = loaded(tmp_path, kit(platform))
    assert found.from_kit
    assert found.experiment.models == ["toy_cnn-fp16"]
    assert entry(found) == {
        "name": f"{platform}_sme2",
        "arms": {"off": f"{platform}_sme2_off", "on": f"{platform}_sme2_on"},
        "platforms": [{"name": platform}],
        "sme2": "both",
        "threads": [1],
        "iterations": 10,
        "warmup": 1,
        "passes": ["latency", "etdump"],
    }
    told = "\n".join(found.notes)
    for changed in ("runner_path is not used", "one session", "is exported here", "rounds", "output_root"):
        assert changed in told


def test_the_other_spellings_and_the_kits_defaults_are_known(tmp_path: Path):
    document = kit()
    for experiment in document["experiments"]:
        for key in ("runs", "warmup", "threads", "mode"):
            del experiment[key]
    assert (entry(loaded(tmp_path, document))["iterations"], entry(loaded(tmp_path, document))["warmup"]) == (
        100,
        10,
    )
    for experiment in document["experiments"]:
        experiment |= {"num_runs": 7, "num_threads": 4}
    found = entry(loaded(tmp_path, document))
    assert (found["iterations"], found["threads"]) == (7, [4])
    document["experiments"][0]["runs"] = 8
    assert "experiments[0].num_runs: contradicts runs" in complaints(tmp_path, document)


def test_a_trace_becomes_the_kernels_pass_of_the_same_session(tmp_path: Path):
    document = kit()
    traces = copy.deepcopy(document["experiments"])
    for experiment in traces:
        experiment["name"] += "_trace"
        experiment["runner_path"] = experiment["runner_path"].replace("/executor", "-xnnlog/executor")
        experiment |= {"mode": "xnntrace", "runs": 1, "warmup": 0}
    only = entry(loaded(tmp_path, {**document, "experiments": traces}))
    assert (only["sme2"], only["passes"]) == ("both", ["latency", "etdump", "kernels"])
    document["experiments"] += traces
    found = loaded(tmp_path, document)
    assert len(found.experiment.entries or ()) == 1, "what is asked for twice is measured once"
    assert (entry(found)["iterations"], entry(found)["passes"]) == (10, ["latency", "etdump", "kernels"])
    assert any("sampled as they run" in note for note in found.notes)


def test_the_exported_file_is_found_as_the_kit_finds_it(tmp_path: Path):
    artifacts = tmp_path / "model_profiling" / "out_toy_cnn" / "artifacts"
    configs = tmp_path / "model_profiling" / "configs"
    artifacts.mkdir(parents=True)
    configs.mkdir()
    (artifacts / "toy_cnn_xnnpack_fp16.pte").write_bytes(b"")
    found = loaded(configs, kit())
    assert found.experiment.models == [str((artifacts / "toy_cnn_xnnpack_fp16.pte").resolve())]
    assert found.experiment.output == str(tmp_path.resolve() / "model_profiling/out_toy_cnn/runs/mac")


def test_a_quantised_program_is_exported_by_its_name(tmp_path: Path):
    found = loaded(tmp_path, {**kit(), "model": "out_toy_cnn/artifacts/toy_cnn_xnnpack_q8.pte"})
    assert found.experiment.models == ["toy_cnn-int8"]


def test_a_program_without_xnnpack_is_exported_by_its_name(tmp_path: Path):
    document = {
        **kit(),
        "model": "out_toy_cnn/artifacts/toy_cnn_portable_fp16.pte",
        "output_root": "out_<model>",
    }
    found = loaded(tmp_path, document)
    assert found.experiment.models == ["toy_cnn@backend=portable-fp16"]
    assert Path(found.experiment.output or "").name == "out_toy_cnn"
    [session] = planned(found, Lab(data_root=str(tmp_path))).sessions
    assert session.variant == "toy_cnn.backend_portable-fp16"
    assert parse_variant(session.variant).file_stem == "toy_cnn_portable_fp16"
    assert "does not exist" in complaints(tmp_path, {**document, "model": "toy_cnn_portable_int8.pte"})


def test_experiments_keep_their_names_where_these_are_true(tmp_path: Path):
    document = kit()
    assert "arms" not in entry(loaded(tmp_path, document, "emulated")), "not measured on a Mac"
    for experiment, name in zip(document["experiments"], ("fast_on", "slow_off"), strict=True):
        experiment["name"] = name
    found = entry(loaded(tmp_path, document))
    assert (found["name"], found["arms"]) == ("fast_on", {"on": "fast_on", "off": "slow_off"})
    assert entry(loaded(tmp_path, document, "emulated"))["arms"] == found["arms"]


def test_threads_of_one_arm_alone_are_a_baseline(tmp_path: Path):
    document = kit()
    document["experiments"][0]["threads"] = [1, 2]
    found = loaded(tmp_path, document)
    assert [(it.sme2, it.threads) for it in found.experiment.entries or ()] == [("both", [1]), ("on", [2])]
    assert any("no counterpart" in note for note in found.notes)


def test_masks_become_cpus_and_arguments_without_meaning_are_listed(tmp_path: Path):
    document = kit("android", cpu_affinity="0xf1", extra_args=["--method_name", "forward"])
    found = loaded(tmp_path, document)
    assert entry(found)["platforms"] == [{"name": "android", "cpus": "0,4,5,6,7"}]
    assert any("--method_name forward" in note for note in found.notes)
    on_mac = loaded(tmp_path, kit("mac", cpu_affinity="80"))
    assert entry(on_mac)["platforms"] == [{"name": "mac"}]
    assert any("cpu_affinity 80" in note and "left out" in note for note in on_mac.notes)
    assert "is not a CPU mask" in complaints(tmp_path, kit("android", cpu_affinity="cpu7"))


def test_another_platform_is_used_only_when_it_is_asked_for(tmp_path: Path):
    found = loaded(tmp_path, kit(), "emulated")
    assert entry(found)["platforms"] == [{"name": "emulated"}]
    assert "mac_sme2_on is measured on emulated, as --platform says, not on mac" in found.notes


@pytest.mark.parametrize(
    ("name", "runner", "state"),
    [
        ("mac_run", "cmake-out/mac-arm64-sme2-off/executor_runner", "off"),
        ("mac_run", "cmake-out/mac-arm64-xnnlog/executor_runner", "on"),
        ("mac_baseline_no_sme2", "mine/executor_runner", "off"),
        ("mac_sme2_on", "mine/executor_runner", "on"),
        ("mac_sme2_off_t4", None, "off"),
        ("mac-SME2-Off", None, "off"),
        ("mac_convolution_sme2_off", None, "off"),
    ],
)
def test_the_state_is_told_by_name_or_runner(tmp_path: Path, name: str, runner: str | None, state: str):
    document = kit()
    document["experiments"] = [{"name": name, "runner_path": runner}]
    assert entry(loaded(tmp_path, document))["sme2"] == state


def test_what_tells_no_state_no_platform_or_two_is_an_error(tmp_path: Path):
    document = kit()
    document["experiments"] = [{"name": "mac_run", "runner_path": "mine/executor_runner"}]
    assert "says whether SME2 is on or off" in complaints(tmp_path, document)
    document["experiments"] = [{"name": "mac_sme2_on", "runner_path": "mac-arm64-sme2-off/executor_runner"}]
    assert "says SME2 on, the runner_path" in complaints(tmp_path, document)
    document["experiments"] = [{"name": "sme2_on", "runner_path": "mine/executor_runner"}]
    assert "names the platform. Give it with --platform" in complaints(tmp_path, document)
    assert entry(loaded(tmp_path, document, "linux"))["platforms"] == [{"name": "linux"}]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"modle": "x"}, "modle: there is no such key (did you mean 'model'?)"),
        ({"model": None}, "model: must be a text"),
        ({"model": "REPLACE_WITH_PATH_TO_MODEL_PTE"}, "is the template's placeholder"),
        ({"model": "out_<model>/artifacts/<model>_xnnpack_fp16.pte"}, "is the template's placeholder"),
        ({"model": "out/none_xnnpack_fp16.pte"}, "out/none_xnnpack_fp16.pte does not exist"),
        ({"experiments": []}, "experiments: must be a list that is not empty"),
        (
            {"analysis": {"compare_pair": []}},
            "analysis.compare_pair: there is no such key (did you mean 'compare_pairs'?)",
        ),
    ],
)
def test_what_is_wrong_with_a_kit_file_is_told(tmp_path: Path, change: dict[str, Any], complaint: str):
    assert complaint in complaints(tmp_path, {**kit(), **change})


def test_unknown_keys_of_an_experiment_are_told_with_the_nearest(tmp_path: Path):
    document = kit()
    document["experiments"][1]["warmups"] = 3
    document["experiments"][0]["mode"] = "timings"
    said = complaints(tmp_path, document)
    assert "experiments[1].warmups: there is no such key (did you mean 'warmup'?)" in said
    assert "experiments[0].mode: must be one of timing, xnntrace" in said


def pair(baseline: str, candidate: str, first: int = 1, second: int = 1, label: str = "it") -> dict[str, Any]:
    return {
        "baseline": {"experiment": baseline, "threads": first},
        "candidate": {"experiment": candidate, "threads": second},
        "label": label,
    }


def test_a_pair_to_compare_is_kept_with_its_label(tmp_path: Path):
    document = kit(threads=[1, 2])
    document["analysis"]["compare_pairs"] = [pair("mac_sme2_off", "mac_sme2_on", 2, 2, "two threads")]
    [comparison] = loaded(tmp_path, document).experiment.comparisons or []
    assert comparison.model_dump(exclude_none=True) == {
        "platform": "mac",
        "threads": 2,
        "entry": "mac_sme2",
        "label": "two threads",
    }


def test_a_label_is_of_the_cpus_that_its_pair_ran_on(tmp_path: Path):
    document = kit("android")
    for name, mask in (("big", "0x80"), ("small", "0x0f")):
        for each in kit("android", cpu_affinity=mask)["experiments"]:
            document["experiments"].append({**each, "name": f"{each['name']}_{name}"})
    document["analysis"]["compare_pairs"] = [
        pair(f"android_sme2_off{end}", f"android_sme2_on{end}", 1, 1, end or "any")
        for end in ("", "_big", "_small")
    ]
    plan = planned(loaded(tmp_path, document), Lab(data_root=str(tmp_path)))
    assert [(it.label, it.session.wishes.get("cpus")) for it in plan.shown] == [
        ("any", None),
        ("_big", "7"),
        ("_small", "0,1,2,3"),
    ]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (pair("mac_sme2_off", "mac_sme2_on", 1, 2), "1 threads against 2"),
        (pair("mac_sme2_on", "mac_sme2_on"), "SME2 is on in both"),
        (pair("mac_sme2_of", "mac_sme2_on"), "no experiment 'mac_sme2_of' (did you mean 'mac_sme2_off'?)"),
        (pair("mac_sme2_off", "mac_sme2_on", 3, 3), "is not measured with 3 threads"),
        (pair("mac_sme2_off", "android_sme2_on"), "different platforms or CPUs"),
    ],
)
def test_a_pair_that_is_no_comparison_is_refused_with_the_reason(
    tmp_path: Path, wrong: dict[str, Any], reason: str
):
    document = kit(threads=[1, 2])
    document["experiments"] += kit("android")["experiments"]
    document["analysis"]["compare_pairs"] = [wrong]
    assert reason in complaints(tmp_path, document)
