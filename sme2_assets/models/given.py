"""What people ask for: a model as they name it, inputs of their own, libraries of kernels.

The last two are copied into the data folder under the hash of their content, and the hash is an option of the
variant (`toy_cnn@inputs=1f0c2a9be4d7`), so a measurement can be repeated when the originals are gone.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from sme2_assets.errors import ExportError
from sme2_assets.store import default_data_root

_NUMBERED = re.compile(r"(?:input|arr)_(\d+)")
_NAME = re.compile(r"[A-Za-z_]\w*")


def variants_of(
    model: str,
    inputs: Path | None = None,
    op_library: Path | None = None,
    sizes: Mapping[str, Sequence[str]] | None = None,
    log: Callable[[str], None] = lambda message: None,
) -> list[str]:
    """The named variant, or all precisions of the named model, with the given inputs, kernels and sizes.

    A .pte given by path is first copied to the models folder. `sizes` are for dimensions that can vary.
    """
    # Imported here: these modules need this one.
    from sme2_assets.models.methods import method_names
    from sme2_assets.models.registry import model_spec, requested
    from sme2_assets.models.sources.pte import SUFFIX, take_in
    from sme2_assets.models.spec import INPUTS, LIBRARY, SIZE_PREFIX, Variant

    path, at, options = model.partition("@")
    if path.endswith((SUFFIX, f"{SUFFIX}-as_is")):
        name = take_in(Path(path.removesuffix("-as_is")).expanduser())
        log(f"{path} is the model {name} from now on")
        model = f"{name}{at}{options}"
    chosen = {f"{SIZE_PREFIX}{name}": list(values) for name, values in (sizes or {}).items()}
    if inputs is not None:
        chosen[INPUTS] = [take_inputs(inputs.expanduser())]
    if op_library is not None:
        chosen[LIBRARY] = [take_library(op_library.expanduser())]
    asked = [(variant, model_spec(variant.model)) for variant in requested(model)]
    for _, spec in asked:
        chosen_method = "method" in dict(spec.values)
        if spec.pte and not chosen_method and len(methods := method_names(spec.pte)) > 1:
            log(
                f"{spec.name} has the methods {', '.join(methods)}: {spec.method} is profiled, "
                f"another one as {spec.name}@method=NAME"
            )
    return [
        Variant(spec.with_options(dict(zip(chosen, values, strict=True))).key, variant.precision).key
        for variant, spec in asked
        for values in itertools.product(*chosen.values())
    ]


def take_inputs(path: Path) -> str:
    """Store inputs (a .npz file, or a folder of .npy files) and return their key."""
    try:
        if path.is_dir():
            arrays = {file.stem: np.load(file, allow_pickle=False) for file in sorted(path.glob("*.npy"))}
        else:
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ExportError(
            f"The inputs {path} cannot be read ({error})",
            "give a .npz file (np.savez), or a folder of .npy files (np.save) without Python objects",
        ) from error
    if not arrays or not all(_NAME.fullmatch(name) for name in arrays):
        raise ExportError(
            f"The inputs {path} have no arrays, or names that are not valid: {', '.join(arrays) or 'none'}",
            "name them input_0, input_1, ... in their order, or as the parameters of forward()",
        )
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    key = digest.hexdigest()[:12]
    folder = _folder() / f"inputs-{key}"
    if not folder.is_dir():
        staged = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        for name, array in arrays.items():
            np.save(staged / f"{name}.npy", np.ascontiguousarray(array))
        staged.rename(folder)
    return key


def take_library(path: Path) -> str:
    """Store a library of kernels and return its key."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ExportError(f"The library {path} cannot be read: {error.strerror}", "check its path") from None
    if content[:4] not in (b"\x7fELF", b"\xcf\xfa\xed\xfe"):
        raise ExportError(
            f"{path} is not a library that a runner can load", "give the .so or .dylib with the kernels"
        )
    key = hashlib.sha256(content).hexdigest()[:12]
    target = _folder() / f"ops-{key}{path.suffix}"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = target.with_name(f".{target.name}.part")
        staged.write_bytes(content)
        staged.replace(target)
    return key


def inputs_of(key: str) -> tuple[Path, ...]:
    """The files, in the order of their numbers if they have any."""

    def place(file: Path) -> tuple[int, str]:
        found = _NUMBERED.fullmatch(file.stem)
        return (int(found[1]) if found else 0, file.stem)

    return tuple(sorted(_known(f"inputs-{key}").glob("*.npy"), key=place))


def library_of(key: str) -> Path:
    return _known(f"ops-{key}*")


def is_numbered(files: tuple[Path, ...]) -> bool:
    """Whether the file names give an order, not the names of parameters."""
    return all(_NUMBERED.fullmatch(file.stem.rpartition(".")[2]) for file in files)


def _folder() -> Path:
    return default_data_root() / "models" / ".given"


def _known(pattern: str) -> Path:
    found = sorted(_folder().glob(pattern))
    if not found:
        raise ExportError(
            f"{pattern.rstrip('*')} is not in {_folder()}",
            "give the file again: `sme2 profile MODEL --inputs FILE` or `--op-library FILE`",
        )
    return found[0]
