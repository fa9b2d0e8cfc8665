"""Faults for the lowered program alone: what is lowered is a changed copy, and torch keeps the original."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from sme2_assets.models import lowering

Change = Callable[[Any], None]


def plant_fault(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """From now on every program is lowered with this change."""
    lower = lowering.partitioned

    def lower_changed(program: Any, **more: Any) -> Any:
        program = copy.deepcopy(program)
        change(program)
        return lower(program, **more)

    monkeypatch.setattr(lowering, "partitioned", lower_changed)


def other_operator(name: str, other: Any) -> Change:
    def change(program: Any) -> None:
        [node] = [node for node in program.graph.nodes if str(node.target) == name]
        node.target = other
        program.graph_module.recompile()

    return change


def other_dimension(name: str) -> Change:
    def change(program: Any) -> None:
        node = next(node for node in program.graph.nodes if str(node.target) == name)
        node.args = (node.args[0], 0)
        program.graph_module.recompile()

    return change


def weights_of(module: str) -> Change:
    def change(program: Any) -> None:
        [name] = [each for each in program.state_dict if each.endswith(f"{module}.weight")]
        # One channel of sixteen.
        program.state_dict[name].data[3] *= -1.0

    return change


def no_weights(number: int) -> Change:
    """Zeros instead of the weights of one convolution."""

    def change(program: Any) -> None:
        nodes = [node for node in program.graph.nodes if str(node.target).startswith("aten.conv2d")]
        weight = nodes[number].args[1]
        while weight.op != "placeholder":
            weight = weight.args[0]
        signature = program.graph_signature
        name = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}[weight.name]
        program.state_dict[name].data.zero_()

    return change
