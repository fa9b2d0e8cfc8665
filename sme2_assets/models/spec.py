"""What a model is, before anything is built: its name, where it comes from, its options.

Belongs here: the types that every source of models returns and everything else takes, and how options are
written in names. Does not: which models there are (registry, sources). Nothing here imports torch.

A model with options has a name for people, `edgetam_image_encoder@size=512`, and a key that is safe as a
folder name and as a Dagster partition, `edgetam_image_encoder.size_512`. Each can be turned into the other.
"""

from __future__ import annotations

import functools
import json
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from sme2_assets.errors import ExportError, did_you_mean
from sme2_assets.evidence.numerics import AS_IS
from sme2_assets.models.user_files import stored_inputs, stored_library
from sme2_assets.store import sha256_of_file

# The precisions that an eager model can be exported at.
PRECISIONS = ("fp32", "fp16", "int8", "int8_dynamic", "int4")
# The precisions that most models offer; the other two are for models of linear layers.
COMMON_PRECISIONS = ("fp32", "fp16", "int8")

# Weights, inputs and calibration data of the built-in models all come from this one number.
SEED = 2

# Names, and the keys made from them, are parts of folder names: file systems allow 255 bytes.
LONGEST_KEY = 150

# The method of a program that is run if none is chosen, and it has one of that name.
FORWARD = "forward"

# Options that every model has: inputs and kernels, by the hash of their content, sizes that can vary, and
# whether it is lowered to XNNPACK.
INPUTS, LIBRARY, SIZE_PREFIX = "inputs", "ops", "size_"
BACKEND, PORTABLE = "backend", "portable"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_OPTION_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# Extras of this project's pyproject.toml, by the package that is missing without them.
_EXTRAS = {"transformers": "hf", "timm": "timm", "torchvision": "torchvision"}

OptionValue: TypeAlias = int | float | bool | str
# The lowest and the highest size of a dimension that can vary.
Bounds: TypeAlias = tuple[int, float]


class EagerModel(Protocol):
    """What a factory builds: ExecuTorch's `EagerModelBase` and anything of the same shape.

    An object may also have `get_example_kwarg_inputs()`, `get_dynamic_shapes()`,
    `get_calibration_inputs(count)` (a list of input tuples that represent the model's data), the hooks
    `wrap(model)` and `substitute(model)`, `is_classifier`, `minimum_sqnr_db`, and `keep_float`: name patterns
    of modules that stay in fp32 at every other precision.
    """

    def get_eager_model(self) -> Any: ...

    def get_example_inputs(self) -> tuple[Any, ...]: ...


@dataclass(frozen=True)
class ModelOption:
    """A keyword argument of a model's factory, as far as it is known without importing it."""

    name: str
    kind: str | None = None
    """int, float, bool or str; None if unknown: the value is then read as what it looks like."""
    default: OptionValue | None = None
    choices: tuple[str, ...] = ()
    """All allowed values, if they are limited."""

    def __str__(self) -> str:
        if self.choices:
            return f"{self.name}={'|'.join(self.choices)}"
        return self.name if self.default is None else f"{self.name}={_text(self.default)}"

    def parse(self, text: str, owner: str) -> OptionValue:
        """The value that a text stands for; an error if it is of the wrong kind."""
        if self.choices and text not in self.choices:
            raise ExportError(
                f"{owner} has no {self.name} {text!r}{did_you_mean(text, list(self.choices))}",
                f"it has {', '.join(self.choices)}: {owner}@{self.name}={self.default or self.choices[0]}",
            )
        try:
            return _parse_value(text, self.kind)
        except ValueError:
            raise ExportError(
                f"{text!r} is not a valid {self.kind} for the option {self.name} of {owner}",
                f"write it like the default, {owner}@{self}"
                if self.default is not None
                else f"write {self.name}=<{self.kind}>",
            ) from None


@dataclass(frozen=True)
class ModelProblem:
    """Something that should be a model but is not usable: listed with the others, with the reason."""

    name: str
    source: str
    place: str
    problem: str
    remedy: str


@dataclass(frozen=True)
class ModelSpec:
    """A model that can be exported, or a program that was exported elsewhere (`pte`)."""

    name: str
    """Without options; with the prefix of its source, if it has one: `executorch.resnet8`."""
    description: str
    source: str
    place: str
    """Where people find it: a file, a package."""
    factory: Callable[..., EagerModel] | None = None
    """Called with the options as keyword arguments. This is where torch is imported."""
    require_allowed: Callable[[], None] = lambda: None
    """Raises if the factory's code may not run. Does not import torch, so that it is known at once."""
    identify: Callable[[], dict[str, str]] = dict
    """Everything besides the options that decides what the factory builds: file hashes, package versions."""
    precisions: tuple[str, ...] = COMMON_PRECISIONS
    options: tuple[ModelOption, ...] | None = ()
    """None if the factory's arguments are not known before it is imported."""
    values: tuple[tuple[str, OptionValue], ...] = ()
    """The options that were chosen, by name."""
    dimensions: Mapping[str, Bounds] | None = None
    """Those that can vary; None if they are not known before the factory is imported."""
    parts: Callable[[], tuple[str, ...]] = tuple
    """The parts that are profiled if none is chosen with the option `part`."""
    pte: Path | None = None
    etrecord: Path | None = None
    data: Path | None = None
    """External weights of the program (.ptd)."""
    input_files: tuple[Path, ...] = ()
    """Inputs that were given, instead of the model's own."""
    libraries: tuple[Path, ...] = ()
    """Kernels that the program calls and the runner lacks."""
    large: bool = False
    """Takes minutes under emulation: left out there, and in nightly runs, unless asked for by name."""

    @property
    def key(self) -> str:
        """Name and options, safe as a folder name and as part of a partition key."""
        return ".".join([self.name, *(f"{name}_{_escape(_text(value))}" for name, value in self.values)])

    @property
    def title(self) -> str:
        """Name and options as people write them."""
        prefix, dot, rest = self.name.partition(".")
        name = f"{prefix}:{rest}" if dot else prefix
        chosen = ",".join(f"{option}={_text(value)}" for option, value in self.values)
        return f"{name}@{chosen}" if chosen else name

    def with_options(self, texts: Mapping[str, str]) -> ModelSpec:
        """The same model with these options; an error names one that it does not have."""
        values = {name: self._option(name).parse(text, self.title) for name, text in texts.items()}
        spec = replace(self, values=tuple(sorted({**dict(self.values), **values}.items())))
        if (inputs := values.get(INPUTS)) and not self._declares(INPUTS):
            spec = replace(spec, input_files=stored_inputs(str(inputs)))
        if (library := values.get(LIBRARY)) and not self._declares(LIBRARY):
            spec = replace(spec, libraries=(stored_library(str(library)),))
        if spec.portable:
            # The quantisers are for XNNPACK.
            spec = replace(spec, precisions=tuple(it for it in spec.precisions if it in ("fp32", "fp16")))
        if self.dimensions is not None:
            require_sizes(spec.sizes, self.dimensions)
        return spec.of_allowed_length()

    def of_allowed_length(self) -> ModelSpec:
        """Itself; an error if its key cannot be the name of a folder."""
        if len(self.key) > LONGEST_KEY:
            raise ExportError(
                f"The options of {self.name} are too long for the name of a folder: {len(self.key)} "
                f"characters, {LONGEST_KEY} are allowed",
                "use shorter values; a path can be relative, or a default in a model file of your own",
            )
        return self

    def build(self) -> EagerModel:
        """Import the factory and call it."""
        if self.factory is None:
            raise ExportError(
                f"{self.title} is a finished program, {self.place}: there is nothing to build",
                "profile it as it is, or register the model it was exported from",
            )
        try:
            return self.factory(**self._arguments())
        except ExportError:
            raise
        except Exception as error:
            raise self._failed(error) from error

    def identity(self) -> dict[str, str]:
        """Everything about the model that decides what is built."""
        chosen = {name: _text(value) for name, value in self.values}
        files = {
            f"file of option {name}": hashed
            for name, value in self.values
            if isinstance(value, str) and value and (hashed := _content_sha256(Path(value)))
        }
        return {
            "model": self.name,
            "source": self.source,
            "options": json.dumps(chosen, sort_keys=True),
            **self.identify(),
            **files,
        }

    @property
    def method(self) -> str:
        """The method of a program that is run."""
        chosen = {**{option.name: option.default for option in self.options or ()}, **dict(self.values)}
        return str(chosen.get("method") or FORWARD)

    @property
    def portable(self) -> bool:
        """Whether it is exported without XNNPACK, for ExecuTorch's own kernels."""
        return dict(self.values).get(BACKEND) == PORTABLE and not self._declares(BACKEND)

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes that were chosen for dimensions that can vary, by dimension name."""
        return {
            name.removeprefix(SIZE_PREFIX): int(value)
            for name, value in self.values
            if name.startswith(SIZE_PREFIX) and not self._declares(name)
        }

    def _arguments(self) -> dict[str, OptionValue]:
        return {name: value for name, value in self.values if self._declares(name) or not _is_common(name)}

    def _declares(self, name: str) -> bool:
        return any(option.name == name for option in self.options or ())

    def _option(self, name: str) -> ModelOption:
        of_exports = name == BACKEND or name.startswith(SIZE_PREFIX)
        if not self._declares(name) and _is_common(name) and not (self.pte and of_exports):
            choices = (PORTABLE,) if name == BACKEND else ()
            return ModelOption(name, "int" if name.startswith(SIZE_PREFIX) else "str", choices=choices)
        if self.pte and name.startswith(SIZE_PREFIX):
            raise ExportError(
                f"{self.title} is a finished program, of which no dimension has a name to choose a size by",
                "give it inputs of that size, no larger than it was exported for: --inputs FILE",
            )
        if self.options is None:
            return ModelOption(name)
        known = {option.name: option for option in self.options}
        if name in known:
            return known[name]
        if not known:
            raise ExportError(f"{self.title} has no options, and so no {name!r}", "leave the options out")
        raise ExportError(
            f"{self.title} has no option {name!r}{did_you_mean(name, list(known))}",
            f"its options are {', '.join(str(option) for option in known.values())}",
        )

    def _failed(self, error: Exception) -> ExportError:
        if isinstance(error, ModuleNotFoundError) and error.name:
            package = error.name.partition(".")[0]
            return ExportError(
                f"{self.title} ({self.place}) needs the package {package!r}, which is not installed",
                how_to_install(package),
            )
        lines = str(error).strip().splitlines()
        return ExportError(
            f"{self.title} ({self.place}) could not be built: {type(error).__name__}"
            f"{': ' + lines[0] if lines else ''}{_where(error)}",
            "correct the model's code or its options, then run `sme2 check-model` on it",
        )


@dataclass(frozen=True)
class Variant:
    """A model, with its options, at one precision."""

    model: str
    precision: str

    @property
    def key(self) -> str:
        return f"{self.model}-{self.precision}"

    @property
    def file_stem(self) -> str:
        """How the public kit names its program: `toy_cnn_xnnpack_fp16`, `toy_cnn_portable_fp16`."""
        model = self.model.replace(f".{BACKEND}_{PORTABLE}", "")
        return f"{model}_{'xnnpack' if model == self.model else PORTABLE}_{self.precision}"

    def __str__(self) -> str:
        return self.key


def require_sizes(sizes: Mapping[str, int], dimensions: Mapping[str, Bounds]) -> None:
    """An error if a dimension cannot have the size that was chosen."""
    for name, size in sizes.items():
        if name not in dimensions:
            raise ExportError(
                f"The model has no dimension {name!r} that can vary{did_you_mean(name, list(dimensions))}",
                f"its get_dynamic_shapes names "
                f"{', '.join(dimensions) or 'none (torch.export.Dim gives names)'}",
            )
        low, high = dimensions[name]
        if not low <= size <= high:
            raise ExportError(
                f"The size {name}={size} is out of the program's bounds, {low} to {high}",
                "choose another size, or widen the dimension in get_dynamic_shapes",
            )


def _is_common(name: str) -> bool:
    """Whether every model has the option: it concerns what the model is given or becomes, not the model."""
    return name in (INPUTS, LIBRARY, BACKEND) or name.startswith(SIZE_PREFIX)


def valid_name(text: str) -> str:
    """The nearest name that a model can have."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_-")[:80] or "model"
    return f"{name}_" if split_precision(name)[1] else name


def check_name(name: str) -> None:
    """Check a name that a user gives to a model; the error says what is wrong with it."""
    if not _NAME.fullmatch(name):
        raise ExportError(
            f"{name!r} cannot be the name of a model",
            "use letters, digits, '_' and '-' only, beginning with a letter or a digit; rename the file, or "
            "give the name in its MODEL declaration",
        )
    if split_precision(name)[1]:
        raise ExportError(
            f"{name!r} cannot be the name of a model: it ends like the name of a variant", "rename it"
        )
    if len(name) > LONGEST_KEY:
        raise ExportError(f"The name of a model is {len(name)} characters long", "use a shorter one")


def split_precision(text: str) -> tuple[str, str]:
    """The model that a person wrote, and its precision, in whatever case; empty if none is named."""
    model, _, last = text.rpartition("-")
    precision = last.lower()
    return (model, precision) if precision in (*PRECISIONS, AS_IS) else (text, "")


def split_text(text: str) -> tuple[str, dict[str, str]]:
    """Name and options from what a person wrote: `hf:bert@layers=2,hidden=64`."""
    name, at, chosen = text.partition("@")
    options: dict[str, str] = {}
    for part in chosen.split(",") if at else []:
        option, equals, value = part.partition("=")
        if not equals or not _OPTION_NAME.fullmatch(option) or not value.isprintable():
            raise ExportError(
                f"{part!r} in {text!r} is not an option",
                "write options as name@option=value,option=value; `sme2 models` lists them",
            )
        if option in options:
            raise ExportError(f"The option {option} is given twice in {text!r}", "give it once")
        options[option] = value
    return name.replace(":", ".", 1), options


def plain_key(text: str) -> str:
    """The key for what a person wrote, known or not: `hf:bert@layers=2-fp32` is `hf.bert.layers_2-fp32`."""
    model, precision = split_precision(text)
    name, options = split_text(model)
    key = ".".join([name, *(f"{option}_{_escape(value)}" for option, value in sorted(options.items()))])
    return f"{key}-{precision}" if precision else key


def split_key(key: str, prefixes: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Name and options from a key: `hf.bert.hidden_64.layers_2`. A name has no dot except after a prefix."""
    first, *rest = key.split(".")
    if first in prefixes and rest:
        first, rest = f"{first}.{rest[0]}", rest[1:]
    options = {}
    for part in rest:
        option, underscore, value = part.rpartition("_")
        if not underscore or not _OPTION_NAME.fullmatch(option):
            raise ExportError(
                f"{part!r} in {key!r} is not an option",
                "write options as name@option=value, in keys as name.option_value",
            )
        options[option] = _unescape(value)
    return first, options


def how_to_install(package: str) -> str:
    """What to do about a missing package, as the remedy of an error."""
    if package in _EXTRAS:
        extra = _EXTRAS[package]
        return f"install the extra `{extra}`: pip install -e '.[{extra}]' in the checkout"
    return f"install it: pip install {package}"


def cached_sha256(path: Path) -> str:
    """The hash of a file's content; read again only when its size or modification time changes."""
    facts = path.stat()
    return _sha256(path, facts.st_mtime_ns, facts.st_size)


def _content_sha256(path: Path) -> str:
    """The hash of a file, or the names and hashes of the files in a folder; empty if there is neither."""
    if path.is_file():
        return cached_sha256(path)
    files = sorted(inner for inner in path.glob("*") if inner.is_file())
    return ", ".join(f"{inner.name}: {cached_sha256(inner)}" for inner in files)


@functools.lru_cache(maxsize=4096)
def _sha256(path: Path, _mtime_ns: int, _size: int) -> str:
    return sha256_of_file(path)


def _text(value: OptionValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse_value(text: str, kind: str | None) -> OptionValue:
    if kind == "bool" or (kind is None and text.lower() in ("true", "false")):
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    if kind == "int":
        return int(text)
    if kind == "float":
        return float(text)
    if kind is None:
        for read in (int, float):
            try:
                return read(text)
            except ValueError:
                continue
    return text


def _escape(value: str) -> str:
    """Letters and digits as they are; everything else as its UTF-8 bytes, `-2e` for a dot."""
    return re.sub(
        r"[^A-Za-z0-9]", lambda match: "".join(f"-{byte:02x}" for byte in match.group().encode()), value
    )


def _unescape(value: str) -> str:
    parts = re.split(r"-([0-9a-f]{2})", value)
    content = b"".join(
        bytes.fromhex(part) if index % 2 else part.encode() for index, part in enumerate(parts)
    )
    return content.decode(errors="replace")


def _where(error: Exception) -> str:
    """The last line of the traceback: where in the model's own code it happened."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename) != Path(__file__)]
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
