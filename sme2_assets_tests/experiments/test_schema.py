"""What may be in an experiment file: errors name place and remedy, and what is written is what is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sme2_assets.experiments.load import load, parsed
from sme2_assets.experiments.schema import Experiment, ExperimentError, json_schema
from sme2_assets.experiments.write import document_of, templates, yaml_text
from sme2_assets.store import CHECKOUT


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        ("modles: toy_cnn\n", ["modles, line 1: there is no such key (did you mean 'models'?)"]),
        (
            "models: [toy_cnn]\nthreads: [1, 0]\nrounds: ten\nsme2: onn\nwarmup: -1\n",
            [
                "threads[1], line 2: must be at least 1, not 0",
                'rounds, line 3: must be a whole number, not "ten"',
                "sme2, line 4: must be one of both, on, off, not \"onn\" (did you mean 'on'?)",
                "warmup, line 5: must be at least 0, not -1",
            ],
        ),
        (
            "models: x\nplatforms:\n  - linux\n  - name: android\n    powr: boost\n",
            ["platforms[1].powr, line 5: there is no such key (did you mean 'power'?)"],
        ),
        ("models: x\nplatforms: lunix\n", ["(did you mean 'linux'?)"]),
        (
            "models: x\nplatforms:\n - name: mac\n   power: app\n",
            ["platforms[0], line 3: power means nothing on mac"],
        ),
        (
            "models: x\nplatforms:\n - name: linux\n   cpus: fast\n",
            ["line 4: cannot be 'fast': name a cluster"],
        ),
        ("models: x\npasses: [latency, kernels]\n", ["passes, line 2: leaves out etdump"]),
        ("models: [x, x]\n", ["models, line 1: has 'x' twice"]),
        ("models: []\n", ["models, line 1: must be a list that is not empty"]),
        ("models: 3\n", ["models[0], line 1: must be a text, not 3"]),
        ("models: x\nthreads: true\n", ["must be a whole number, not true"]),
        ("models: x\nthreads: 1.5\n", ["must be a whole number, not 1.5"]),
        ("models: x\nbudget_s: a\ntimeout_s: 0\n", ["must be a number", "must be more than 0, not 0"]),
        ("models: x\nreport: yes\n", ["report, line 2: must be a mapping"]),
        ("threads: 1\n", ["models is missing"]),
        ("entries:\n  - threads: 1\n", ["entries[0] names no models"]),
        ("models: x\nentries:\n  - {name: a}\n  - {name: a}\n", ["two entries have the name 'a'"]),
        ("models: x\nname: a/b\n", ["name, line 2: cannot be 'a/b': use letters"]),
        ("models: x\nentries: [{iteration: 3}]\n", ["entries[0].iteration, line 2", "'iterations'"]),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, text: str, complaints: list[str]):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ExperimentError) as caught:
        load(path)
    for complaint in complaints:
        assert complaint in str(caught.value)


def test_an_entry_takes_what_it_leaves_out_from_the_whole():
    experiment = parsed(
        {"models": "a", "threads": [1, 2], "rounds": 3, "entries": [{"rounds": 5}, {"models": ["b"]}]}, "x"
    )
    assert [(part.models, part.threads, part.rounds) for part in experiment.parts()] == [
        (["a"], [1, 2], 5),
        (["b"], [1, 2], 3),
    ]


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
PLATFORMS = st.one_of(
    st.sampled_from(["auto", "linux", "mac", "android", "emulated"]),
    st.fixed_dictionaries(
        {"name": st.just("android")},
        optional={
            "device": TEXTS,
            "cpus": st.sampled_from(["prime", "0-3,7", "0xf0", 7, "7"]),
            "power": st.sampled_from(["boost", "app"]),
        },
    ),
    st.fixed_dictionaries({"name": st.just("linux")}, optional={"cpus": st.just("all")}),
)


def lists(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(items, st.lists(items, min_size=1, max_size=3, unique_by=repr))


SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "models": lists(TEXTS),
    "precisions": lists(st.sampled_from(["fp32", "fp16", "int8", "int8_dynamic", "int4"])),
    "platforms": PLATFORMS | st.lists(PLATFORMS, min_size=1, max_size=1),
    "sme2": st.sampled_from(["both", "on", "off"]),
    "threads": lists(st.integers(1, 1024)),
    "rounds": st.integers(1, 1000),
    "budget_s": st.integers(0, 86400) | st.floats(0, 86400),
    "iterations": st.integers(1, 100000),
    "warmup": st.integers(0, 100000),
    "passes": st.sampled_from([["latency", "etdump"], ["etdump", "latency", "kernels"]]),
    "runner": st.sampled_from(["wheel", "source"]),
    "timeout_s": st.floats(0.001, 86400),
    "quiet_patience_s": st.floats(0, 86400),
}
COMPARISONS = st.fixed_dictionaries(
    {}, optional={"model": TEXTS, "platform": st.just("linux"), "threads": st.integers(1, 9), "label": TEXTS}
)
EXPERIMENTS = st.fixed_dictionaries(
    {"models": SETTINGS["models"]},
    optional={
        **{key: value for key, value in SETTINGS.items() if key != "models"},
        "name": NAMES,
        "description": st.sampled_from(["", "Two\nlines: # no comment", "- \"'"]),
        "entries": st.lists(st.fixed_dictionaries({}, optional=SETTINGS), min_size=1, max_size=3),
        "comparisons": st.lists(COMPARISONS, min_size=1, max_size=2),
        "report": st.fixed_dictionaries({}, optional={"operators": st.booleans()}),
        "output": TEXTS,
    },
)


@settings(max_examples=80)
@given(document=EXPERIMENTS)
@example(document={"models": ["0E0", "1e5", "010", "~", "true", "1.5"]})
def test_any_experiment_is_the_same_after_writing_and_reading(tmp_path_factory, document: dict[str, Any]):
    experiment = parsed(document, "made")
    folder = tmp_path_factory.getbasetemp()
    as_yaml, as_json = folder / "round.yaml", folder / "round.json"
    as_yaml.write_text(yaml_text(experiment), encoding="utf-8")
    as_json.write_text(json.dumps(document_of(experiment)), encoding="utf-8")
    assert load(as_yaml).experiment == experiment
    assert load(as_json).experiment == experiment


def test_the_schema_for_editors_is_current_and_closed():
    committed = json.loads((CHECKOUT / "docs" / "experiment.schema.json").read_text())
    assert committed == json_schema(), "run `sme2 config schema > docs/experiment.schema.json`"
    assert all(
        definition["additionalProperties"] is False
        for definition in [committed, *committed["$defs"].values()]
        if definition.get("type") == "object"
    )
    assert set(committed["properties"]) == set(Experiment.model_fields)


@pytest.mark.parametrize("name", sorted(templates()))
def test_a_template_is_an_experiment(tmp_path: Path, name: str):
    path = tmp_path / f"{name}.yaml"
    path.write_text(templates()[name])
    assert load(path).experiment.models
