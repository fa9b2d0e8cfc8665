"""Rewrites of a model's exported graph, for what no module decides alone: operators that XNNPACK refuses, and
transposes. Each returns the edited graph, and the code to write instead; without any, nothing is to be done.

Which operators XNNPACK refuses is asked of XNNPACK's own partitioner, with the program at hand.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from sme2_assets.models.lowering import partitioned
from sme2_assets.models.provenance import Origin, operator_name, origin_of

# Places that are named for one line of code.
_MOST_PLACES = 4


class Form(NamedTuple):
    """Another way to compute what an operator computes, from its arguments; and the code to write."""

    make: Callable[..., Any]
    code: str


class _NoForm(Exception):
    """With these arguments there is no other form."""


def delegate_refused(program: Any) -> tuple[Any, list[str]]:
    """The program's graph with the operators that XNNPACK refuses in a form that it takes, or moved to where
    they split nothing."""
    refused = refused_nodes(program)
    module = _module_of(program)
    done: dict[str, list[Origin]] = defaultdict(list)
    for node in [it for it in module.graph.nodes if it.name in refused and _is_float(it)]:
        name, origin = operator_name(node), origin_of(node)
        form = FORMS.get(name or "")
        if form is not None and _replace(module, node, form):
            done[form.code].append(origin)
        elif form is None and (moved := _move(node, refused)):
            done[f"move {name} {moved}"].append(origin)
    written = _lines(done)
    if done and _type_scalars(module):
        written.append(_CONSTANTS)
    return module, written


def fuse_transposes(program: Any) -> tuple[Any, list[str]]:
    """The program's graph with transposes carried on through what they do not concern, until they meet
    another one or must be made after all."""
    import torch

    module = _module_of(program)
    before = [node for node in module.graph.nodes if _order(node) is not None]
    done: dict[str, list[Origin]] = defaultdict(list)
    carried = _Carried(module)
    for node in list(module.graph.nodes):
        if node.op == "output":
            node.args = torch.fx.node.map_arg(node.args, carried.transposed)
        elif node.op == "call_function" and (code := carried.through(node)):
            done[code].append(origin_of(node))
    module.graph.eliminate_dead_code()
    if len([node for node in module.graph.nodes if _order(node) is not None]) >= len(before):
        return module, []
    left = set(module.graph.nodes)
    for node in before:
        if node not in left:
            done["# Transposes that go or become one"].append(origin_of(node))
    return module, _lines(done)


def _is_float(node: Any) -> bool:
    """XNNPACK computes no integers: arithmetic with them stays as it is."""
    value = node.meta.get("val")
    first = value[0] if isinstance(value, tuple | list) else value
    return first is not None and first.is_floating_point()


def _module_of(program: Any) -> Any:
    """Without the checks that torch.export adds at casts: they use values that a rewrite moves."""
    import torch

    module = program.module()
    checks = torch.ops.aten._assert_tensor_metadata.default
    for node in module.graph.find_nodes(op="call_function", target=checks):
        module.graph.erase_node(node)
    return module


def refused_nodes(program: Any) -> set[str]:
    """The names of the nodes of an exported program that XNNPACK leaves out, wholly or in part."""
    # What the nodes themselves were made from does not matter, and may have the same names.
    for node in program.graph.nodes:
        node.meta.pop("from_node", None)
    names = {node.name for node in program.graph.nodes}
    edge, _ = partitioned(program)
    outside = [node for node in edge.exported_program().graph.nodes if operator_name(node)]
    return {name for node in outside for name in _sources(node.meta.get("from_node") or ()) if name in names}


def _sources(made_from: Any) -> Iterator[str]:
    for source in made_from:
        yield source.name
        yield from _sources(source.from_node)


def _lines(done: dict[str, list[Origin]]) -> list[str]:
    lines = []
    for code, origins in done.items():
        places = list(dict.fromkeys(it.source or it.module or "the model" for it in origins))
        more = f", and {len(places) - _MOST_PLACES} more" if len(places) > _MOST_PLACES else ""
        separator = "; " if "#" in code else "   # "
        lines.append(f"{code}{separator}{', '.join(places[:_MOST_PLACES])}{more}")
    return lines


def _like(node: Any, origin: Any, value: Any = None) -> Any:
    """A node that was made instead of another one: from the same module and line."""
    for name in ("nn_module_stack", "stack_trace"):
        if name in origin.meta:
            node.meta[name] = origin.meta[name]
    node.meta["val"] = _value(node) if value is None else value
    return node


def _value(node: Any) -> Any:
    from torch.fx.node import map_arg

    args, kwargs = map_arg((node.args, node.kwargs), lambda it: it.meta["val"])
    return node.target(*args, **kwargs)


# Forms.


def _replace(module: Any, node: Any, form: Form) -> bool:
    """Puts the form in place of the node; a result of several tensors is used through `getitem` only."""
    from torch.fx import Node
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._pytree import tree_flatten, tree_unflatten

    leaves, structure = tree_flatten((node.args, node.kwargs))
    nodes = [leaf for leaf in leaves if isinstance(leaf, Node)]

    def run(*inputs: Any) -> Any:
        values = iter(inputs)
        filled = [next(values) if isinstance(leaf, Node) else leaf for leaf in leaves]
        args, kwargs = tree_unflatten(filled, structure)
        return form.make(*args, **kwargs)

    try:
        traced = make_fx(run, pre_dispatch=True)(*(it.meta["val"] for it in nodes))
    except _NoForm:
        return False
    copies = dict(zip(traced.graph.find_nodes(op="placeholder"), nodes, strict=True))
    with module.graph.inserting_before(node):
        for each in traced.graph.nodes:
            if each.op == "call_function":
                copies[each] = module.graph.node_copy(each, copies.__getitem__)
                _like(copies[each], node, each.meta.get("val"))
    [result] = next(iter(traced.graph.find_nodes(op="output"))).args
    if isinstance(result, Node):
        node.replace_all_uses_with(copies[result])
    else:
        for user in list(node.users):
            assert user.target is operator.getitem
            user.replace_all_uses_with(copies[result[user.args[1]]])
            module.graph.erase_node(user)
    module.graph.erase_node(node)
    return True


def _type_scalars(module: Any) -> bool:
    """Makes scalars of arithmetic constants of the tensor's type: XNNPACK converts no types.

    Without that, each scalar of another type is a conversion outside of the delegate, at every inference.
    """
    import torch

    aten, found = torch.ops.aten, False
    for node in list(module.graph.nodes):
        if node.target not in (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor):
            continue
        dtype, scalar = node.meta["val"].dtype, node.args[1]
        # ExecuTorch itself makes constants of fp32 from fractions.
        fits = isinstance(scalar, float) and dtype == torch.float32
        if isinstance(scalar, int | float) and dtype.is_floating_point and not fits:
            node.update_arg(1, _constant(module, node, torch.tensor(scalar, dtype=dtype)))
            found = True
    return found


def _constant(module: Any, before: Any, value: Any) -> Any:
    import torch

    number = sum(name.startswith("_rewritten_") for name, _ in module.named_buffers())
    name = f"_rewritten_{number}"
    # XNNPACK takes a constant's bytes as they lie in memory.
    value = value.clone(memory_format=torch.contiguous_format)
    module.register_buffer(name, value)
    with module.graph.inserting_before(before):
        node = module.graph.get_attr(name)
    node.meta["val"] = before.meta["val"].fake_mode.from_tensor(value, static_shapes=True)
    return node


def _arithmetic(x: Any, other: Any, *, alpha: float = 1, sign: float = 1) -> Any:
    """A sum or difference without a factor."""
    if alpha == 1 and not isinstance(other, int | float):
        raise _NoForm
    return x + other * (sign * alpha)


def _scaled(target: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """With a scalar, whose type is corrected afterwards."""

    def make(x: Any, other: Any) -> Any:
        if not isinstance(other, int | float):
            raise _NoForm
        return target(x, float(other))

    return make


def _mean(x: Any, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """XNNPACK averages images: four dimensions, the last two of them."""
    if dtype is not None or not dim:
        raise _NoForm
    dims = sorted(it % x.dim() for it in dim)
    others = [it for it in range(x.dim()) if it not in dims]
    left = [1 if it in dims else x.shape[it] for it in range(x.dim()) if keepdim or it not in dims]
    if dims != [2, 3] or x.dim() != 4:
        rows = math.prod(x.shape[it] for it in others)
        x = x if dims[0] == len(others) else x.permute(*others, *dims)
        x = x.reshape(1, rows, -1, 1)
    return x.mean((2, 3), keepdim=True).reshape(left)


def _sum(x: Any, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _mean(x, dim, keepdim, dtype=dtype) * float(math.prod(x.shape[it] for it in dim))


def _softmax(x: Any, dim: int, dtype: Any = None) -> Any:
    if dtype not in (None, x.dtype):
        raise _NoForm
    return x.transpose(dim, -1).softmax(-1).transpose(dim, -1)


def _power(x: Any, exponent: float) -> Any:
    if exponent == 0.5:
        return x.sqrt()
    if exponent == -0.5:
        return x.rsqrt()
    if exponent not in (2, 3, 4):
        raise _NoForm
    return math.prod([x] * (int(exponent) - 1), start=x)


def _gelu(x: Any, approximate: str = "none") -> Any:
    return x * 0.5 * ((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)).tanh().add(1.0)


def _elu(x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    return x.relu() * scale + ((x.clamp(max=0.0) * input_scale).exp() + -1.0) * (alpha * scale)


def _selu(x: Any) -> Any:
    return _elu(x, 1.6732632423543772, 1.0507009873554805)


def _celu(x: Any, alpha: float = 1.0) -> Any:
    return _elu(x, alpha, 1.0, 1 / alpha)


def _softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    x = x * float(beta)
    return (x.relu() + (x.abs().neg().exp() + 1.0).log()) * (1 / beta)


def _mish(x: Any) -> Any:
    return x * _softplus(x).tanh()


def _log_sigmoid(x: Any) -> Any:
    return _softplus(x.neg()).neg()


def _hardsigmoid(x: Any) -> Any:
    return (x + 3.0).clamp(0.0, 6.0) * (1 / 6)


def _slices(x: Any, sizes: Any, dim: int = 0) -> list[Any]:
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    before = (slice(None),) * (dim % x.dim())
    return [x[(*before, slice(end - size, end))] for size, end in zip(sizes, ends, strict=True)]


def _glu(x: Any, dim: int = -1) -> Any:
    first, second = _split(x, x.shape[dim] // 2, dim)
    return first * second.sigmoid()


def _split(x: Any, size: int, dim: int = 0) -> list[Any]:
    length = x.shape[dim]
    return _slices(x, [min(size, length - start) for start in range(0, length, size)], dim)


def _chunk(x: Any, chunks: int, dim: int = 0) -> list[Any]:
    return _split(x, -(-x.shape[dim] // chunks), dim)


def _unbind(x: Any, dim: int = 0) -> list[Any]:
    return [_select(x, dim, index) for index in range(x.shape[dim])]


def _select(x: Any, dim: int, index: int) -> Any:
    dim, index = dim % x.dim(), index % x.shape[dim]
    one = x[(*(slice(None),) * dim, slice(index, index + 1))]
    return one.reshape([*x.shape[:dim], *x.shape[dim + 1 :]])


def _unsqueeze(x: Any, dim: int) -> Any:
    dim %= x.dim() + 1
    return x.reshape([*x.shape[:dim], 1, *x.shape[dim:]])


def _squeeze(x: Any, dim: Any) -> Any:
    dims = [it % x.dim() for it in ([dim] if isinstance(dim, int) else dim)]
    return x.reshape([size for it, size in enumerate(x.shape) if it not in dims or size != 1])


def _roll(x: Any, shifts: Any, dims: Any = ()) -> Any:
    import torch

    if len(dims) != len(shifts):
        raise _NoForm
    for shift, dim in zip(shifts, dims, strict=True):
        if shift := shift % x.shape[dim]:
            first, last = _slices(x, [x.shape[dim] - shift, shift], dim)
            x = torch.cat([last, first], dim)
    return x


def _matmul(x: Any, other: Any) -> Any:
    import torch

    if x.dim() < 3 or x.shape[:-2] != other.shape[:-2]:
        raise _NoForm
    product = torch.bmm(x.reshape(-1, *x.shape[-2:]), other.reshape(-1, *other.shape[-2:]))
    return product.reshape(*x.shape[:-1], other.shape[-1])


def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *rest: Any, **more: Any
) -> Any:
    causal = rest[0] if rest else more.get("is_causal", False)
    if causal or more.get("enable_gqa") or (attn_mask is not None and not attn_mask.is_floating_point()):
        raise _NoForm
    scale = more.get("scale") or query.shape[-1] ** -0.5
    scores = _matmul(query * scale, key.transpose(-2, -1))
    scores = scores if attn_mask is None else scores + attn_mask
    return _matmul(scores.softmax(-1), value)


def _layer_norm(
    x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = True
) -> Any:
    dims = list(range(x.dim() - len(shape), x.dim()))
    x = x - _mean(x, dims, keepdim=True)
    x = x * (_mean(x * x, dims, keepdim=True) + eps).rsqrt()
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _rms_norm(x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    import torch

    dims = list(range(x.dim() - len(shape), x.dim()))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    x = x * (_mean(x * x, dims, keepdim=True) + eps).rsqrt()
    return x if weight is None else x * weight


def _group_norm(
    x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = True
) -> Any:
    shape = [1, -1, *[1] * (x.dim() - 2)]
    y = x.reshape(1, x.shape[0] * groups, -1, 1)
    y = _layer_norm(y, y.shape[2:], eps=eps).reshape(x.shape)
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


def _average(
    x: Any,
    size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    import torch.nn.functional as F

    if ceil_mode or not count_include_pad or divisor_override is not None:
        raise _NoForm
    high, wide = padding if len(padding) == 2 else (*padding, *padding)
    return F.avg_pool2d(F.pad(x, (wide, wide, high, high)), size, stride or size)


_CONSTANTS = (
    "# All scalars as buffers, of the tensors' type: self.register_buffer('three', torch.tensor(3.0)), then "
    "x + self.three"
)
_CONSTANT = "x = x * self.constant   # not a scalar; without `alpha`"
_SLICES = "a, b = x[:, :n], x[:, n:]"
_RESHAPE = "x = x.reshape(...)"
_ELU = "x = relu(x) + alpha * (exp(clamp(x, max=0.0)) - 1)"
_NORM = "y = x - mean(x); x = y * rsqrt(mean(y * y) + eps) * weight + bias   # mean as for images, (2, 3)"
# By the name of the operator in the exported graph.
FORMS = {
    "aten.add.Tensor": Form(_arithmetic, _CONSTANT),
    "aten.sub.Tensor": Form(lambda x, other, **more: _arithmetic(x, other, sign=-1, **more), _CONSTANT),
    "aten.mul.Tensor": Form(_scaled(operator.mul), _CONSTANT),
    "aten.div.Tensor": Form(_scaled(operator.truediv), _CONSTANT),
    "aten.rsub.Scalar": Form(lambda x, other, alpha=1: x * float(-alpha) + float(other), _CONSTANT),
    "aten.mean.dim": Form(_mean, "x = x.mean((2, 3), keepdim=True).flatten(1)   # others reshaped to this"),
    "aten.sum.dim_IntList": Form(_sum, "x = x.mean((2, 3), keepdim=True).flatten(1) * count"),
    "aten.softmax.int": Form(_softmax, "x = x.transpose(dim, -1).softmax(-1).transpose(dim, -1)"),
    "aten.pow.Tensor_Scalar": Form(_power, "x = x * x * x   # torch.sqrt(x) for x ** 0.5"),
    "aten.gelu.default": Form(
        _gelu, "x = 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))"
    ),
    "aten.elu.default": Form(_elu, _ELU),
    "aten.selu.default": Form(_selu, _ELU),
    "aten.celu.default": Form(_celu, _ELU),
    "aten.softplus.default": Form(_softplus, "x = relu(x) + log(1 + exp(-abs(x)))"),
    "aten.mish.default": Form(_mish, "x = x * tanh(relu(x) + log(1 + exp(-abs(x))))"),
    "aten.log_sigmoid.default": Form(_log_sigmoid, "x = -(relu(-x) + log(1 + exp(-abs(x))))"),
    "aten.glu.default": Form(_glu, "x = x[:, :n] * torch.sigmoid(x[:, n:])"),
    "aten.hardsigmoid.default": Form(_hardsigmoid, "x = (x + 3).clamp(0.0, 6.0) * (1 / 6)"),
    "aten.chunk.default": Form(_chunk, _SLICES),
    "aten.split.Tensor": Form(_split, _SLICES),
    "aten.split_with_sizes.default": Form(_slices, _SLICES),
    "aten.unbind.int": Form(_unbind, "a, b = x[:1].reshape(...), x[1:].reshape(...)"),
    "aten.select.int": Form(_select, "x = x[:, i:i + 1].reshape(...)   # instead of x[:, i]"),
    "aten.unsqueeze.default": Form(_unsqueeze, _RESHAPE),
    "aten.squeeze.dim": Form(_squeeze, _RESHAPE),
    "aten.squeeze.dims": Form(_squeeze, _RESHAPE),
    "aten.roll.default": Form(_roll, "x = torch.cat([x[:, -n:], x[:, :-n]], 1)"),
    "aten.matmul.default": Form(_matmul, "x = torch.bmm(a.flatten(0, -3), b.flatten(0, -3)).reshape(...)"),
    "aten.scaled_dot_product_attention.default": Form(
        _attention,
        "x = torch.bmm(torch.bmm(q * scale, k.transpose(1, 2)).softmax(-1), v)",
    ),
    "aten.layer_norm.default": Form(_layer_norm, _NORM),
    "aten.group_norm.default": Form(_group_norm, _NORM),
    "aten.rms_norm.default": Form(_rms_norm, "x = x * rsqrt(mean(x * x) + eps) * weight"),
    "aten.avg_pool2d.default": Form(_average, "x = F.avg_pool2d(F.pad(x, (p, p, p, p)), size, stride)"),
}


# Moves.

_LAYOUT = frozenset(
    f"aten.{name}"
    for name in (
        *("permute.default", "transpose.int", "view.default", "reshape.default", "flatten.using_ints"),
        *("unsqueeze.default", "squeeze.dim", "squeeze.dims", "slice.Tensor", "contiguous.default"),
    )
)
_SAME_PLACE = frozenset(
    {
        *("aten.to.dtype", "aten._to_copy.default", "aten.contiguous.default", "aten.clone.default"),
        *("aten.dropout.default", "quantized_decomposed.quantize_per_tensor.default"),
        "quantized_decomposed.dequantize_per_tensor.default",
    }
)


def _is_elementwise(node: Any) -> bool:
    import torch

    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags or operator_name(node) in _SAME_PLACE


def _is_layout(node: Any) -> bool:
    return operator_name(node) in _LAYOUT


def _move(node: Any, refused: set[str]) -> str | None:
    """Moves an elementwise operator of one tensor past reshapes and transposes, if the end of the program,
    its beginning or another refused operator is behind them; says how."""
    if not _is_elementwise(node) or len(node.all_input_nodes) != 1:
        return None
    after = []
    last = node
    while len(last.users) == 1 and _is_layout(user := next(iter(last.users))):
        after.append(last := user)
    ends = all(user.op == "output" or user.name in refused for user in last.users)
    [source] = node.all_input_nodes
    if after and ends:
        last.replace_all_uses_with(node, delete_user_cb=lambda it: it is not node)
        after[0].replace_input_with(node, source)
        node.replace_input_with(source, last)
        last.append(node)
        for each in (*after, node):
            each.meta["val"] = _value(each)
        return "behind the reshapes and transposes that follow it"
    before = []
    first = source
    while _is_layout(first) and len(first.users) == 1:
        before.append(first)
        first = first.all_input_nodes[0]
    if before and (first.op == "placeholder" or first.name in refused):
        node.replace_all_uses_with(source)
        node.replace_input_with(source, first)
        before[-1].replace_input_with(first, node)
        before[-1].prepend(node)
        for each in (node, *reversed(before)):
            each.meta["val"] = _value(each)
        return "before the reshapes and transposes that it follows"
    return None


# Transposes.


def _order(node: Any) -> list[int] | None:
    """The order of dimensions that a transpose makes."""
    name = operator_name(node)
    if name not in ("aten.permute.default", "aten.transpose.int"):
        return None
    order = list(range(node.meta["val"].dim()))
    if name == "aten.permute.default":
        return [order[it] for it in node.args[1]]
    one, other = node.args[1:]
    order[one], order[other] = order[other], order[one]
    return order


class _Carried:
    """For each value: the node that it is a transpose of, and the order of its dimensions."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._of: dict[Any, tuple[Any, list[int]]] = {}
        self._transposed: dict[Any, Any] = {}

    def transposed(self, node: Any) -> Any:
        """The value with its transpose made, just before the node that is being looked at."""
        if node not in self._of:
            return node
        base, order = self._of[node]
        if order == sorted(order):
            return base
        if node not in self._transposed:
            self._transposed[node] = self._new(node, "permute", base, order)
        return self._transposed[node]

    def through(self, node: Any) -> str | None:
        """Takes the next node; the code to write if it becomes another operator."""
        from torch.fx.node import map_arg

        self._at = node
        inputs = node.all_input_nodes
        orders = {tuple(self._of[it][1]) for it in inputs if it in self._of}
        order = _order(node)
        if order is not None:
            base, carried = self._of.get(inputs[0], (inputs[0], list(range(len(order)))))
            self._of[node] = (base, [carried[it] for it in order])
        elif len(orders) == 1 and _is_elementwise(node) and self._can_follow(node, *orders):
            [carried] = map(list, orders)
            values = {it: self._in_order_of(it, carried) for it in inputs}
            with self._module.graph.inserting_before(node):
                args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
                new = self._module.graph.call_function(node.target, args, kwargs)
            self._of[node] = (_like(new, node), carried)
            if any(it not in self._of and values[it] is not it for it in inputs):
                return "constant.permute(...).contiguous()   # transposed along with the rest"
        elif orders == {(0, 2, 3, 1)} and self._is_pointwise(node):
            weight = self._value_of(node.args[1])[:, :, None, None]
            bias = node.args[2] if len(node.args) > 2 else None
            image = self._of[inputs[0]][0]
            constant = _constant(self._module, node, weight)
            self._of[node] = (self._new(node, "conv2d", image, constant, bias), [0, 2, 3, 1])
            return (
                "conv.weight = linear.weight[:, :, None, None]   # with kernel_size=1, instead of the linear"
            )
        else:
            node.args, node.kwargs = map_arg((node.args, node.kwargs), self.transposed)
        return None

    def _new(self, origin: Any, name: str, *args: Any) -> Any:
        import torch

        with self._module.graph.inserting_before(self._at):
            target = getattr(torch.ops.aten, name).default
            return _like(self._module.graph.call_function(target, args), origin)

    def _can_follow(self, node: Any, order: tuple[int, ...]) -> bool:
        """Whether everything else that it takes has the same order, none, or one that can be changed here."""
        result = node.meta["val"]
        others = [it for it in node.all_input_nodes if it not in self._of]
        return result.dim() == len(order) and all(
            it.meta["val"].dim() == 0 or self._value_of(it) is not None for it in others
        )

    def _in_order_of(self, node: Any, order: list[int]) -> Any:
        if node in self._of:
            return self._of[node][0]
        if node.meta["val"].dim() == 0:
            return node
        value = self._value_of(node)
        value = value.reshape((1,) * (len(order) - value.dim()) + tuple(value.shape))
        return _constant(self._module, self._at, value.permute([order.index(it) for it in range(len(order))]))

    def _is_pointwise(self, node: Any) -> bool:
        """A linear layer over the channels. At fp16 XNNPACK has no SME2 kernel for the convolution."""
        import torch

        is_half = torch.is_tensor(node.meta.get("val")) and node.meta["val"].dtype == torch.float16
        return (
            operator_name(node) == "aten.linear.default"
            and not is_half
            and self._value_of(node.args[1]) is not None
        )

    def _value_of(self, node: Any) -> Any:
        """The value of a constant."""
        if node.op != "get_attr":
            return None
        return operator.attrgetter(node.target)(self._module).detach()
