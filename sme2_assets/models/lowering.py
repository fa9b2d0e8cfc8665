"""From an eager model to a lowered program: build, adapt, quantise, export, delegate to XNNPACK if asked to.

Everything here runs with torch loaded. Errors name the operator, module and line at fault.
"""

from __future__ import annotations

import contextlib
import copy
import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sme2_assets.errors import ExportError, first_line
from sme2_assets.evidence.arms import Taps
from sme2_assets.evidence.delegation import DelegationReport
from sme2_assets.evidence.numerics import MINIMUM_SQNR_DB
from sme2_assets.models.artifact import OperatorCounts
from sme2_assets.models.delegation import delegation_report, partitioner_reasons
from sme2_assets.models.failures import failure
from sme2_assets.models.inputs import (
    ModelInputs,
    at_sizes,
    bind_constants,
    calibration_inputs,
    example_inputs,
    exported_graph,
    flat_inputs,
    flat_tensors,
    give_tensors_only,
    given_inputs,
)
from sme2_assets.models.progress import Progress
from sme2_assets.models.provenance import operator_name
from sme2_assets.models.quantise import CALIBRATION_BATCHES, halved, quantise
from sme2_assets.models.reference import (
    STEPS,
    Reference,
    blame_first_not_finite,
    not_finite,
    products_of_halves_in_float,
    run_reference,
    state_kept,
    too_small,
)
from sme2_assets.models.spec import SEED, EagerModel, ModelSpec
from sme2_assets.models.tapped import DelegateGraphs, delegate_graphs, with_outputs
from sme2_assets.models.taps import Layer, affordable, compared_outputs, layers_of, tapped_program
from sme2_assets.models.time_limit import end_if_time_is_up

# How much programs that are no longer used may hold, and what the graph of one holds at least.
MOST_HELD_BYTES, _GRAPH_BYTES = 32 << 20, 4 << 20
_held_bytes = 0

_MODEL_REMEDY = "correct the model or its example inputs: it must run in plain PyTorch first"
_HALF_REMEDY = (
    "at fp16, weights and inputs are half, but a tensor that the model's code makes with a type of its own "
    "(`dtype=torch.float32`) is not: give it the type of an input (`.to(x.dtype)`), or do not offer fp16 "
    "(`precisions` of MODEL)"
)
_FINITE_REMEDY = (
    "correct the model or its example inputs: a program cannot be judged by values that are not finite "
    "(untrained weights can overflow: scale them)"
)


@dataclass(frozen=True)
class BuiltModel:
    """An eager model in fp32, ready to be exported, with its outputs for its example inputs."""

    eager: EagerModel
    model: Any
    inputs: ModelInputs
    """In fp32, but rounded to the precision's own type: the reference sees the values the program sees."""
    reference: Reference
    parameters: int
    is_classifier: bool
    minimum_sqnr_db: float
    has_own_bound: bool


@dataclass(frozen=True)
class LoweredProgram:
    """A lowered program and what is known about it, before it is written."""

    executorch: Any
    edge_program: Any
    """The graph before anything of it was delegated, without weights, for the ETRecord."""
    inputs: list[Any]
    outputs: list[Any]
    """What the program returns, computed by torch: types and shapes are the program's."""
    operators: OperatorCounts
    delegation: DelegationReport
    changed_inputs: list[int]
    """Inputs that the program changes in place. It returns them too, before its outputs."""
    partitioners: str
    """The partitioners that decided what XNNPACK takes, in order; empty without XNNPACK."""
    state_bytes: int
    """The size of the buffers that an inference changes."""
    delegate_graphs: DelegateGraphs


def build_model(spec: ModelSpec, precision: str, progress: Progress) -> BuiltModel:
    """The model with its hooks applied, and its outputs in fp32."""
    import torch

    with _seeded():
        eager = spec.build()
        model = _as_module(eager.get_eager_model()).eval()
        inputs = at_sizes(example_inputs(eager), spec.sizes)
    # Substituted operators must give the same results: the model before substitution is the reference.
    reference = copy.deepcopy(model) if hasattr(eager, "substitute") else None
    model = _hooked(eager, "wrap", _hooked(eager, "substitute", model))
    types = {value.dtype for value in (*model.parameters(), *model.buffers()) if value.is_floating_point()}
    if narrow := sorted(str(dtype).removeprefix("torch.") for dtype in types if dtype.itemsize < 4):
        progress.say(f"weights in {' and '.join(narrow)} are converted to float32, from which all is made")
    model = model.float()
    _fold_parametrisations(model, progress.say)
    scripted = [path for path, each in model.named_modules() if isinstance(each, torch.jit.ScriptModule)]
    if scripted:
        which = f"Its module {scripted[0]!r}" if scripted[0] else "The model"
        raise ExportError(
            f"{which} is TorchScript, which torch.export cannot read",
            "give the module as Python code, without torch.jit.script, torch.jit.trace and torch.jit.load",
        )
    # Nothing is trained.
    model.requires_grad_(False)
    if spec.input_files:
        inputs = given_inputs(inputs, model, spec.input_files)
    # To the precision's type and back: the reference sees the same rounded inputs as the program.
    given = inputs.at(precision).at("fp32")
    inputs = bind_constants(model, given)
    with torch.no_grad(), _blamed("Running the eager model", model, remedy=_MODEL_REMEDY):
        with state_kept(model):
            give_tensors_only(model, inputs.call(model), progress.say)
        made = run_reference(model, inputs)
        # Code that dynamo compiled for control flow while values were watched fails in an export.
        torch._dynamo.reset()
        if reference is not None:
            reference = _hooked(eager, "wrap", reference).float()
            unsubstituted = run_reference(reference, given)
            if len(unsubstituted.outputs) != len(made.outputs):
                raise ExportError(
                    f"The model changes its buffers ({', '.join(unsubstituted.state or made.state)}) only "
                    "with or only without `substitute`",
                    "substitute in a way that keeps what the model remembers",
                )
            made = replace(made, outputs=unsubstituted.outputs, rankings=unsubstituted.rankings)
    _judge(made, model, inputs, progress)
    own_bounds = getattr(eager, "minimum_sqnr_db", None) or {}
    return BuiltModel(
        eager=eager,
        model=model,
        inputs=inputs,
        reference=made,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        is_classifier=bool(getattr(eager, "is_classifier", False)),
        minimum_sqnr_db=float(own_bounds.get(precision, MINIMUM_SQNR_DB[precision])),
        has_own_bound=precision in own_bounds,
    )


def export_program(built: BuiltModel, precision: str, progress: Progress) -> tuple[Any, ModelInputs]:
    """The exported program of the model at that precision, and the inputs it takes. Changes the model."""
    import torch

    model, inputs = built.model, built.inputs
    with torch.no_grad():
        if precision == "fp16":
            model, inputs = halved(model, kept_in_float(built.eager)), inputs.at("fp16")
        elif precision != "fp32":
            doing = f"quantising to {precision}"
            if precision == "int8":
                doing = f"calibrating on {CALIBRATION_BATCHES} batches"
            with progress.step(doing, "export"), _blamed("Quantisation", model):
                model = quantise(
                    model, precision, inputs, lambda: calibration(built), kept=kept_in_float(built.eager)
                ).model
        with progress.step("exporting", "export"), _blamed("torch.export", model):
            program = exported_graph(model, inputs)
            for rewrite in getattr(built.eager, "rewrite_graphs", tuple)():
                program = exported_graph(rewrite(program), inputs)
            return program, inputs


def kept_in_float(eager: EagerModel) -> tuple[str, ...]:
    """The names of modules that stay in fp32 at every precision."""
    return tuple(getattr(eager, "keep_float", ()))


def calibration(built: BuiltModel) -> list[ModelInputs]:
    with _seeded():
        return calibration_inputs(built.eager, built.inputs, CALIBRATION_BATCHES)


def lower_program(
    exported_program: Any, inputs: ModelInputs, progress: Progress, *, portable: bool = False
) -> LoweredProgram:
    """The program for the runner, with as much of it as possible in XNNPACK, or without XNNPACK."""
    import torch

    flat = flat_inputs(exported_program, inputs)
    module = exported_program.module()
    graphs = (exported_program.graph_module,)
    with (
        progress.step("running the exported program once, for the types of its outputs", "export"),
        _blamed("Running the exported program", module, graphs, types_remedy=_HALF_REMEDY),
        torch.no_grad(),
        state_kept(module),
        products_of_halves_in_float(),
    ):
        outputs = flat_tensors(inputs.call(module))
    lowering = "lowering without XNNPACK" if portable else "lowering to XNNPACK"
    with progress.step(lowering, "lower"), _blamed(f"L{lowering[1:]}", graphs=graphs):
        undelegated: list[Any] = []
        with partitioner_reasons() as reasons, delegate_graphs() as graphs_of_delegates:
            edge, partitioners = partitioned(
                exported_program, portable=portable, say=progress.say, keep=undelegated.append
            )
        signature = edge.exported_program().graph_signature
        changed = [signature.user_inputs.index(name) for name in signature.user_inputs_to_mutate.values()]
        if changed:
            progress.say(
                f"the model changes its input {', '.join(map(str, changed))} in place: every inference gets "
                "a copy of it, and the changed input is compared with the eager model's too"
            )
        graph_module = edge.exported_program().graph_module
        report = delegation_report(graph_module, partitioners[-1] if partitioners else None, reasons)
        delegated = _delegated_operators(graph_module)
    with (
        progress.step("planning memory", "lower"),
        _blamed("Emitting the program", graphs=(graph_module, *graphs)),
    ):
        executorch = _executorch(edge)
        state_bytes = sum(value.nbytes for value in _state(edge.exported_program()).values())
    delegates, kernels = called_operators(executorch.executorch_program.execution_plan[0])
    counts = OperatorCounts(delegates, delegated, kernels)
    outputs = [*(flat[index] for index in changed), *outputs]
    names = ", ".join(type(partitioner).__name__ for partitioner in partitioners)
    edge_program = undelegated[-1]
    return LoweredProgram(
        executorch,
        edge_program,
        flat,
        outputs,
        counts,
        report,
        changed,
        names,
        state_bytes,
        graphs_of_delegates,
    )


def partitioned(
    exported_program: Any,
    *,
    portable: bool = False,
    say: Callable[[str], None] = lambda _: None,
    keep: Callable[[Any], None] | None = None,
) -> tuple[Any, list[Any]]:
    """The edge program with its delegates, and the partitioners that made them; none if it is portable.

    `keep` gets the edge program without delegates, once for every way of lowering that is tried.
    """
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackDynamicallyQuantizedPartitioner,
        XnnpackPartitioner,
    )

    if portable:
        edge = _edge(exported_program, [], say)
        if keep is not None:
            keep(_copied(edge.exported_program()))
        return edge, []
    partitioners = [_keeping(XnnpackPartitioner(), keep)]
    try:
        return _edge(exported_program, partitioners, say), partitioners
    except Exception as error:
        # Layers that share a dynamically quantised input may be merged into partitions that need each other.
        if "cycle" not in str(error):
            raise
        partitioners = [_keeping(XnnpackDynamicallyQuantizedPartitioner(), keep), XnnpackPartitioner()]
        return _edge(exported_program, partitioners, say), partitioners


def _keeping(partitioner: Any, keep: Callable[[Any], None] | None) -> Any:
    """A partitioner that keeps the program as it is before it is cut.

    ExecuTorch's own `generate_etrecord=True` copies the weights too, and holds the copy until the end.
    """
    if keep is not None:
        partition = partitioner.partition

        def kept_first(program: Any) -> Any:
            keep(_copied(program))
            return partition(program)

        partitioner.partition = kept_first
    return partitioner


def _copied(program: Any) -> Any:
    """A copy of the program that shares its weights."""
    weights = (*program.state_dict.values(), *program.constants.values())
    return copy.deepcopy(program, {id(value): value for value in weights})


def _edge(exported_program: Any, partitioners: list[Any], say: Callable[[str], None]) -> Any:
    """Lower as much as the partitioners take."""
    from executorch.exir import to_edge, to_edge_transform_and_lower

    try:
        return to_edge_transform_and_lower(exported_program, partitioner=partitioners)
    except ExportError:
        raise
    except Exception as error:
        if "cycle" in str(error):
            raise
        # Operators that XNNPACK wants whole also stay whole where it cannot take them after all: in branches
        # of control flow, or a PReLU of anything but images. The older way decomposes them everywhere.
        try:
            edge = to_edge(exported_program)
            for partitioner in partitioners:
                edge = edge.to_backend(partitioner)
        except ExportError:
            raise
        except Exception:
            raise error from None
        say(
            f"the usual way of lowering failed ({first_line(error)}); "
            "this is the one that decomposes all operators first: a linear layer is an `addmm` in it"
        )
        return edge


def _executorch(edge: Any) -> Any:
    """The program. Its mutable buffers start with the model's values where these are not zero."""
    from executorch.exir import ExecutorchBackendConfig
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    program = edge.exported_program()
    state = _state(program)
    starting = [
        placeholder
        for placeholder, name in program.graph_signature.inputs_to_buffers.items()
        if name in state and bool(state[name].any())
    ]
    return edge.to_executorch(ExecutorchBackendConfig(passes=[InitializedMutableBufferPass(starting)]))


def _state(program: Any) -> dict[str, Any]:
    """The buffers that an inference changes, by name, with their initial values."""
    values = {**program.constants, **program.state_dict}
    return {name: values[name] for name in program.graph_signature.buffers_to_mutate.values()}


def program_with_taps(
    exported_program: Any, lowered: LoweredProgram, inputs: ModelInputs, precision: str, progress: Progress
) -> tuple[Taps, Any | None]:
    """The lowered program with intermediate values as outputs; None if it cannot show them."""
    import torch

    layers, shown, tapped, why = list[Layer](), list[Layer](), None, None
    with progress.step("writing it once more, with taps", "lower"), torch.no_grad():
        graph_module = exported_program.module()
        try:
            layers = layers_of(graph_module, precision, inputs.copied().flat())
            tapped, shown = with_outputs(
                lowered.executorch, lowered.delegate_graphs, exported_program.graph, affordable(layers)[0]
            )
        except Exception as error:
            end_if_time_is_up(error)
            # The program itself is fine; only its intermediate values cannot be shown.
            why = f"the program with taps cannot be made: {first_line(error)}"
            progress.say(f"the intermediate values are not compared, {why}")
        outputs = compared_outputs(graph_module, precision, lowered.outputs, layers)
    # XNNPACK has the channels of images last, too.
    between = [layer.value.model_copy(update={"channel_axis": -1}) for layer in shown]
    left_out = [layer.value.name for layer in layers if layer not in shown]
    values = [*outputs, *between]
    return Taps(outputs=len(outputs), values=values, left_out=left_out, only_outputs=why), tapped


def lower_with_taps(graph_module: Any, taps: Sequence[Any], inputs: ModelInputs, *, portable: bool) -> Any:
    """The program with the values of those nodes as further outputs."""
    edge, _ = partitioned(tapped_program(graph_module, taps, inputs), portable=portable)
    return _executorch(edge)


def free_lowered_programs(written_bytes: int) -> None:
    """Give back the memory of programs that are no longer used, of which one more was just written.

    torch remembers the calls that it traced and ExecuTorch the nodes that it compared, of every program of
    the process and with all its weights. To forget them takes a second, and what torch knew of small programs
    makes the next one faster: so not before they hold much.
    """
    from executorch.exir.backend.utils import is_same_node
    from torch._subclasses.fake_tensor import FakeTensorMode

    global _held_bytes
    _held_bytes += written_bytes + _GRAPH_BYTES
    if _held_bytes < MOST_HELD_BYTES:
        return
    _held_bytes = 0
    is_same_node.cache_clear()
    FakeTensorMode.cache_clear()
    gc.collect()


def called_operators(plan: Any) -> tuple[int, dict[str, int]]:
    """Delegate calls and kernel calls as the runtime will make them, from the method's own plan."""
    delegates = 0
    portable: Counter[str] = Counter()
    for chain in plan.chains:
        for instruction in chain.instructions:
            arguments = instruction.instr_args
            kind = type(arguments).__name__
            if kind == "DelegateCall":
                delegates += 1
            elif kind == "KernelCall":
                operator = plan.operators[arguments.op_index]
                portable[f"{operator.name}.{operator.overload}".rstrip(".")] += 1
    return delegates, dict(sorted(portable.items()))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Sums depend on how work is split: with one thread, weights and ranges are the same everywhere."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Makes the weights and inputs that models draw while they are built the same every time."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        yield


@contextlib.contextmanager
def _blamed(
    doing: str,
    model: Any = None,
    graphs: tuple[Any, ...] = (),
    remedy: str | None = None,
    types_remedy: str | None = None,
) -> Iterator[None]:
    """Turns what a library raises into an error that names the operator, module and line."""
    try:
        yield
    except ExportError:
        raise
    except Exception as error:
        raise failure(doing, error, model, graphs, remedy, types_remedy) from error


def _hooked(eager: EagerModel, hook: str, model: Any) -> Any:
    apply = getattr(eager, hook, None)
    return model if apply is None else _as_module(apply(model), hook).eval()


def _fold_parametrisations(model: Any, say: Callable[[str], None]) -> None:
    """Compute weights once that are computed from others, as by weight norm: XNNPACK takes only constants."""
    import torch
    from torch.nn.utils import parametrize, remove_spectral_norm, remove_weight_norm
    from torch.nn.utils.spectral_norm import SpectralNorm
    from torch.nn.utils.weight_norm import WeightNorm

    folded = []
    for path, module in model.named_modules():
        computed = [*module.parametrizations] if parametrize.is_parametrized(module) else []
        for name in computed:
            parametrize.remove_parametrizations(module, name, leave_parametrized=True)
        # The older form of the two is a hook.
        for hook in list(module._forward_pre_hooks.values()):
            remove = {WeightNorm: remove_weight_norm, SpectralNorm: remove_spectral_norm}.get(type(hook))
            if remove is not None:
                with torch.no_grad():
                    remove(module, hook.name)
                computed.append(hook.name)
        folded += [f"{path}.{name}".lstrip(".") for name in computed]
    if folded:
        say(f"computed once, not in every inference, as they depend on weights alone: {', '.join(folded)}")


def _as_module(model: Any, hook: str | None = None) -> Any:
    import torch

    if isinstance(model, torch.nn.Module):
        return model
    giver = f"The hook `{hook}`" if hook else "get_eager_model"
    raise ExportError(
        f"{giver} returns a {type(model).__name__}, not a torch.nn.Module", "return the module to profile"
    )


def _delegated_operators(graph_module: Any) -> dict[str, int]:
    from executorch.exir.lowered_backend_module import get_lowered_submodules

    counts: Counter[str] = Counter()
    for _, lowered, _ in get_lowered_submodules(graph_module):
        for node in lowered.original_module.graph.nodes:
            name = operator_name(node)
            if name:
                counts[name] += 1
    return dict(sorted(counts.items()))


def _judge(reference: Reference, model: Any, inputs: ModelInputs, progress: Progress) -> None:
    """Report outputs that cannot be compared before anything is exported."""
    for step, outputs in enumerate(reference.outputs):
        if (what := not_finite(outputs)) is None:
            continue
        when = f" at step {step + 1}" if step else ""
        with _blamed(f"In plain PyTorch{when} {what}: the eager model", model, remedy=_FINITE_REMEDY):
            blame_first_not_finite(model, inputs)
        raise ExportError(f"In plain PyTorch{when} {what}", _FINITE_REMEDY)
    for note in too_small(reference.outputs[0]):
        progress.say(note)
    if reference.state:
        progress.say(
            f"the model has state ({', '.join(reference.state)}): every process starts from its initial "
            f"values, and {STEPS} inferences in a row are compared with the eager model's"
        )
