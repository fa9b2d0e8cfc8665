"""Which operator of the lowered program is wrong, where the exported program is right in torch.

The program is lowered again with values in between as outputs, and run. torch computes the same values, each
from those that the *runner* gave before it, so an operator that only passes a fault on is not blamed. First
come the values that the program shows anyway, between its delegates; then those inside the part that is
wrong, which cuts the delegate, until one operator is left. An operator is what XNNPACK runs as one: with
batch norm, activation and quantisation.

A cut can make a fault go away, if it is in what XNNPACK does with several operators at once. Then all of
them are named, and no single one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sme2_assets.errors import ExportError, first_line
from sme2_assets.evidence.numerics import Agreement, compare_outputs, first_fault
from sme2_assets.models.differences import Log, built_to_compare, run_watched
from sme2_assets.models.inputs import ModelInputs, flat_tensors, tensor_array
from sme2_assets.models.lowering import (
    export_program,
    free_lowered_programs,
    lower_with_taps,
    partitioned,
)
from sme2_assets.models.progress import Progress
from sme2_assets.models.provenance import operator_name, origin_of
from sme2_assets.models.spec import ModelSpec
from sme2_assets.models.taps import affordable, fused, quantised
from sme2_assets.models.time_limit import export_timeout_s, time_limit

Arrays = list[npt.NDArray]
# Runs a program with SME2 "off" or "on", once, from its initial state; returns its outputs.
Run = Callable[[bytes, str], Arrays]

# Values that are shown at once inside a wrong part: two rounds are enough for a thousand operators in a row.
_AT_ONCE = 32
_ROUNDS = 6
_NAMED_AT_MOST = 6
# Operators that quantise belong to those before and after them; memory that is not set has no right value.
_NO_POINT = ("quantized_decomposed.", "torchao.", "aten.empty", "aten.new_empty")
_STATIC = "quantized_decomposed.quantize_per_tensor.default"


@dataclass(frozen=True, eq=False)
class Point:
    """An operator, together with what is fused into it, and the node that has its value."""

    nodes: list[Any]
    tap: Any
    delegate: int | None
    """Which delegate of the program runs it, from 1; None for ExecuTorch's own kernels."""

    def __str__(self) -> str:
        operators = " with ".join(map(_name, self.nodes))
        origin = str(origin_of(self.nodes[0]))
        return f"{operators} in {origin}" if origin else operators


Values = dict[Point, npt.NDArray]


@dataclass(frozen=True)
class Finding:
    """The operator at which the runner departs from torch."""

    point: Point
    agreement: Agreement
    shown: list[Point]
    """The values that were shown when it was found."""
    alone: bool = True
    """Whether this value is too far from torch's. If not, differences of several operators add up."""
    others: list[Point] = field(default_factory=list)
    """Operators before it, up to those that are shown: it was not told apart from these."""
    goes_away: bool = False
    """Whether the value is right as soon as those of the others are shown."""
    states: list[str] = field(default_factory=list)
    """In which states of SME2 it is so."""


def wrong_in_the_runner(
    spec: ModelSpec, precision: str, run: Run, *, wrong: Sequence[str], states: Sequence[str], log: Log
) -> str | None:
    """What is wrong with a program whose outputs are wrong with SME2 in these of the states, in words.

    None if the exported program's outputs are wrong in torch, too.
    """
    with time_limit(export_timeout_s()), built_to_compare(spec, precision, log) as (built, progress):
        progress.say("looking for the first wrong operator of the lowered program")
        expected = list(map(tensor_array, built.reference.outputs[0]))
        bound, exact = built.minimum_sqnr_db, not built.has_own_bound
        exported, inputs = export_program(built, precision, progress)

        def fault(outputs: Arrays) -> str | None:
            agreements = compare_outputs(expected, outputs, rankings=built.reference.rankings)
            return first_fault(agreements, bound, exact=exact)

        bisection = _Bisection(exported, inputs, bound, fault, run, progress, portable=spec.portable)
        if fault(bisection.in_torch) is not None:
            return None
        found: list[Finding | None] = []
        for state in wrong:
            if not any(each is not None and state in each.states for each in found):
                found.append(bisection.search(state, states))
        return ". ".join(dict.fromkeys(bisection.sentence(each, states) for each in found))


class _Bisection:
    """The search in one program. Programs with the same values shown are lowered once."""

    def __init__(
        self,
        exported: Any,
        inputs: ModelInputs,
        bound: float,
        fault: Callable[[Arrays], str | None],
        run: Run,
        progress: Progress,
        *,
        portable: bool,
    ) -> None:
        if any(map(_changes, exported.graph.nodes)):
            # Of values that are changed in place, a graph does not say who reads them before and who after.
            exported = exported.run_decompositions({})
        self.module, self.inputs = exported.module(), inputs
        self.in_torch, finite = self._in_torch()
        self.bound, self.fault = bound, fault
        self.run, self.progress, self.portable = run, progress, portable
        with progress.step("lowering, to see what is between delegates"):
            visible, delegate_of = _lowered_names(exported, portable)
        self.delegates = len(set(delegate_of.values()))
        self.points = _points(self.module, delegate_of)
        # The runner refuses outputs with infinities, which masks have on purpose.
        self.finite = [point for point in self.points if point.tap in finite]
        [end] = self.module.graph.find_nodes(op="output")
        last = self._points_before(end, self.finite)[1]
        shown = affordable([point for point in self.finite if point.nodes[-1].name in visible])[0]
        self.between_delegates = [point for point in self.finite if point in {*shown, *last}]
        self._lowered: dict[tuple[Point, ...], bytes] = {}

    def search(self, state: str, states: Sequence[str]) -> Finding | None:
        """Where the runner departs from torch; None if its outputs are right once values are shown."""
        found = self._narrow_down(state)
        if found is None:
            return None
        others = [other for other in states if other != state and self._is_wrong(found, other)]
        return replace(found, states=sorted([state, *others]))

    def _narrow_down(self, state: str) -> Finding | None:
        shown, found = self.between_delegates, None
        if not shown:
            raise ExportError(
                "no value between the inputs and the outputs can be shown", "look at the whole program"
            )
        for _ in range(_ROUNDS):
            try:
                outputs, from_runner = self._run(shown, state)
            except Exception as error:
                if found is None:
                    raise
                self.progress.say(f"it could not be narrowed down further: {first_line(error)}")
                return found
            agreements = self._agreements(shown, from_runner)
            faulty = [point for point in shown if agreements[point].fault(self.bound)]
            if not faulty and found is None and self.fault(outputs) is None:
                return None
            if not faulty and found and found.alone:
                # Judged as in the round before, is it still wrong? If not, the cut has mended it.
                as_before = {p: from_runner[p] for p in shown if p is found.point or p not in found.others}
                if self._agreements(list(as_before), as_before)[found.point].fault(self.bound) is None:
                    return replace(found, goes_away=True)
            point = faulty[0] if faulty else min(shown, key=lambda each: agreements[each].sqnr_db)
            part, before = self._points_before(point.tap, [each for each in shown if each is not point])
            others = [each for each in part if each is not point]
            found = Finding(point, agreements[point], shown, bool(faulty), others)
            inside = [each for each in reversed(part) if each in self.finite]
            wanted = {*before, *inside[:: -(-len(inside) // _AT_ONCE)]}
            shown = affordable([each for each in self.points if each in wanted])[0]
            if point not in shown or set(others).isdisjoint(shown):
                break
        return found

    def _is_wrong(self, found: Finding, state: str) -> bool:
        _, from_runner = self._run(found.shown, state)
        return self._agreements(found.shown, from_runner)[found.point].fault(self.bound) is not None

    def sentence(self, found: Finding | None, states: Sequence[str]) -> str:
        if found is None:
            return (
                "In torch the model at this precision is close enough, and so is the first inference in the "
                "runner if the values between delegates are outputs too: no operator can be named"
            )
        point, agreement = found.point, found.agreement
        where = f"in delegate {point.delegate} of {self.delegates}" if point.delegate else "in no delegate"
        where += f", with SME2 {' and '.join(found.states)}"
        if len(states) == 1:
            where += ", the only state that could be run"
        elif found.alone and len(found.states) < len(states):
            where += " only"
        said = agreement.fault(self.bound) or f"it: {agreement.sqnr_db:.1f} dB"
        what = f"{point}: {said.partition(': ')[2]} against torch's value on the same inputs ({where})"
        if not found.alone:
            what = f"No operator alone is as far off in the runner. The furthest value: {what}"
        elif found.others:
            what = f"The first wrong value in the runner: {what}"
        else:
            what = f"The first operator that is wrong in the runner: {what}"
        if not found.others:
            return what
        named = [str(each) for each in found.others[-_NAMED_AT_MOST:]]
        if more := len(found.others) - len(named):
            named = [f"{more} more", *named]
        others = f"the operators before it: {'; '.join(named)}"
        if found.goes_away:
            return (
                f"{what}. It is right if the values before it are outputs too, so it is wrong only together "
                f"with {others}"
            )
        return f"{what}. It was not told apart from {others}"

    def _run(self, shown: list[Point], state: str) -> tuple[Arrays, Values]:
        key = tuple(shown)
        if key not in self._lowered:
            with self.progress.step(f"lowering with {len(shown)} values between as outputs"):
                taps = [point.tap for point in shown]
                lowered = lower_with_taps(self.module, taps, self.inputs, portable=self.portable)
                self._lowered[key] = bytes(lowered.buffer)
                # A search lowers many programs, and only their bytes are needed.
                free_lowered_programs(len(self._lowered[key]))
        with self.progress.step(f"running it with SME2 {state}"):
            outputs = self.run(self._lowered[key], state)
        first = len(outputs) - len(shown)
        return outputs[first - len(self.in_torch) : first], dict(zip(shown, outputs[first:], strict=True))

    def _in_torch(self) -> tuple[Arrays, set[Any]]:
        """The outputs of the exported program in torch, and the nodes with finite values only."""
        finite = set()

        def see(node: Any, value: Any) -> Any:
            if bool(value.isfinite().all()):
                finite.add(node)
            return value

        outputs = flat_tensors(run_watched(self.module, self.inputs, see))
        return [tensor_array(value.clone()) for value in outputs], finite

    def _agreements(self, shown: list[Point], from_runner: Values) -> dict[Point, Agreement]:
        """How close each value is to what torch makes of the runner's values before it."""
        import torch

        point_of = {point.tap: point for point in shown}
        agreements = {}

        def see(node: Any, value: Any) -> Any:
            if (point := point_of.get(node)) is None:
                return value
            agreements[point] = _agreement(node, tensor_array(value), from_runner[point])
            its = torch.from_numpy(from_runner[point])
            # The same order of elements in memory: a `view` of the value may rely on it.
            return torch.empty_like(value).copy_(its) if its.shape == value.shape else value

        run_watched(self.module, self.inputs, see)
        return agreements

    def _points_before(self, node: Any, shown: Sequence[Point]) -> tuple[list[Point], list[Point]]:
        """The points that a value depends on, its own included: up to those that are shown, and these."""
        stops, seen, waiting = {point.tap for point in shown}, {node}, [node]
        reached = set()
        while waiting:
            for each in waiting.pop().all_input_nodes:
                if each in stops:
                    reached.add(each)
                elif each not in seen:
                    seen.add(each)
                    waiting.append(each)
        return [p for p in self.points if p.tap in seen], [p for p in self.points if p.tap in reached]


def _agreement(node: Any, expected: npt.NDArray, actual: npt.NDArray) -> Agreement:
    if operator_name(node) == _STATIC:
        # Neighbouring steps are close, unlike other integers.
        zero = float(node.args[2])
        expected, actual = expected.astype(np.float32) - zero, actual.astype(np.float32) - zero
    return compare_outputs([expected], [actual])[0]


def _points(graph_module: Any, delegate_of: dict[str, int]) -> list[Point]:
    """Every operator whose value is computed at run time, in order."""
    import torch

    at_run_time, covered, points = set[Any](), set[Any](), list[Point]()
    for node in graph_module.graph.nodes:
        inputs = node.all_input_nodes
        state = node.op == "get_attr" and any(map(_changes, node.users))
        made = node.op == "call_function" and not inputs
        if node.op == "placeholder" or state or made or not at_run_time.isdisjoint(inputs):
            at_run_time.add(node)
        if node.op != "call_function" or node not in at_run_time or node in covered:
            continue
        if not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        if _name(node).startswith(_NO_POINT) and _name(node) != _STATIC:
            continue
        nodes = fused(node)
        tap = quantised(nodes[-1])
        covered.update((*nodes, tap))
        delegate = next((delegate_of[each.name] for each in nodes if each.name in delegate_of), None)
        points.append(Point(nodes, tap, delegate))
    return points


def _name(node: Any) -> str:
    """One result out of several has the name of the operator that gave them."""
    return operator_name(node) or operator_name(node.args[0]) or str(node.target)


def _changes(node: Any) -> bool:
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def _lowered_names(exported: Any, portable: bool) -> tuple[set[str], dict[str, int]]:
    """The exported program's nodes whose values are visible between delegates, and those in each delegate."""
    from executorch.exir.lowered_backend_module import get_lowered_submodules

    edge, _ = partitioned(exported, portable=portable)
    graph_module = edge.exported_program().graph_module
    visible = {name for node in graph_module.graph.nodes for name in _exported_names(node)}
    delegate_of = {
        name: number
        for number, (_, lowered, _) in enumerate(get_lowered_submodules(graph_module), 1)
        for node in lowered.original_module.graph.nodes
        for name in _exported_names(node)
    }
    return visible, delegate_of


def _exported_names(node: Any) -> list[str]:
    """The names of the nodes of the exported program that it comes from."""
    names = []
    for source in node.meta.get("from_node", []) if node.op == "call_function" else []:
        while source.from_node:
            source = source.from_node[-1]
        names.append(source.name)
    return names
