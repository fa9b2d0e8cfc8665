"""What makes two runners from source a pair: their records differ in SME alone, and so do their kernels.

Belongs here: what CMake says about a build, the comparison of two, and which SME kernels are in a binary. Not
here: how a build is done.

Two arms are a pair if they differ only in the SME switches and what follows from them:
- the values of the two cache variables in `SWITCHES`, ON in one and OFF in the other;
- the definitions `XNN_ENABLE_ARM_SME=` and `XNN_ENABLE_ARM_SME2=`, which pass them on to XNNPACK's sources;
- source files of SME kernels (a word of the file's name is `sme`, `sme2`, `neonsme` or `neonsme2`) that only
  the arm with SME2 compiles.
Everything else that is recorded must be the same: sources and tools, compilers, every other cache variable,
and for every file every flag, in order.
"""

from __future__ import annotations

import json
import re
import shlex
import struct
from pathlib import Path
from typing import Any

from sme2_assets.analysis.kernel_names import COMPUTE, OTHER_LIBRARY, parse_kernel
from sme2_assets.errors import BuildError
from sme2_assets.runner import macho
from sme2_assets.runner.build import RunnerBinary, first_line, load_runner
from sme2_assets.store import Store
from sme2_assets.toolchain.elf import Elf

RECORD_NAME = "build.json"
# A runner for measuring, and one that only prints which kernels XNNPACK registers.
RUNNER_KIND = "source_runner"
TRACE_KIND = "trace_runner"
# Whether XNNPACK compiles in its SME and SME2 kernels. With only SME2 off it would fall back to SME's.
SWITCHES = ("XNNPACK_ENABLE_ARM_SME", "XNNPACK_ENABLE_ARM_SME2")

_SME_DEFINITION = re.compile(r"-DXNN_ENABLE_ARM_SME2?=\d ?")
_SME_WORD = re.compile(r"(?:neon)?sme2?(?:p\d)?")
# Results of CMake's own searches and tests are left out; their effects show in the flags of the files.
_CACHE_ENTRY = re.compile(r"^([^#/:\n][^:\n]*):(?!INTERNAL|STATIC)\w+=(.*)$", re.MULTILINE)

Record = dict[str, Any]


def configured(build: Path) -> Record:
    """Compilers, cache and flags of a configured build. Its folder is written `<build>`.

    `flags` has, for each list of flags, the source files that are compiled with it.
    """
    cache, listed = (
        (build / name).read_text(encoding="utf-8").replace(str(build), "<build>")
        for name in ("CMakeCache.txt", "compile_commands.json")
    )
    compilers: dict[str, str] = {}
    flags: dict[str, list[str]] = {}
    for entry in json.loads(listed):
        compiler, *words = shlex.split(entry["command"])
        output = words.index("-o")
        kept = [*words[:output], *words[output + 2 :]]
        command = shlex.join(word for word in kept if word not in ("-c", entry["file"]))
        flags.setdefault(command, []).append(entry["file"])
        compilers[compiler] = compilers.get(compiler) or first_line([compiler, "--version"])
    return {"compilers": compilers, "cache": dict(_CACHE_ENTRY.findall(cache)), "flags": flags}


def read_record(folder: Path) -> Record:
    """The record in the folder of an arm."""
    path = folder / RECORD_NAME
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return {part: record[part] for part in ("sources", "compilers", "cache", "flags")}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BuildError(
            f"{path} is not a complete build manifest ({error!r})",
            f"Delete {folder} and build the runner again from source.",
        ) from error


def differences(on: Record, off: Record) -> list[str]:
    """Every recorded fact in which two arms differ and that the SME switches do not explain."""
    facts_on, facts_off = _facts(on), _facts(off)
    faults = []
    for fact in sorted({*facts_on, *facts_off}):
        ours, others = facts_on.get(fact, "nothing"), facts_off.get(fact, "nothing")
        if fact in _SWITCHED:
            explained = (ours, others) == ("ON", "OFF")
        else:
            follows = fact.startswith("file ") and others == "nothing" and is_sme_source(fact)
            explained = ours == others or follows
        if not explained:
            faults.append(f"{fact}: {_shown(ours)} with SME2 on, {_shown(others)} with SME2 off")
    return faults


def is_sme_source(path: str) -> bool:
    """Whether a source file holds SME kernels, by its name."""
    return any(_SME_WORD.fullmatch(word) for word in re.split(r"[^a-z0-9]+", Path(path).stem.lower()))


_SWITCHED = tuple(f"cache {switch}" for switch in SWITCHES)


def _facts(record: Record) -> dict[str, str]:
    """Every fact by which two arms are compared, under a readable name."""
    files: dict[str, list[str]] = {}
    for flags, compiled in record["flags"].items():
        for path in compiled:
            files.setdefault(f"file {path}", []).append(_SME_DEFINITION.sub("", flags))
    return {
        **{
            f"{group} {name}": str(value)
            for group, members in record["sources"].items()
            for name, value in members.items()
        },
        **dict.fromkeys(_SWITCHED, "nothing"),
        **{f"compiler {path}": version for path, version in record["compilers"].items()},
        **{f"cache {variable}": value for variable, value in record["cache"].items()},
        **{path: " | ".join(sorted(flags)) for path, flags in files.items()},
    }


def _shown(value: str) -> str:
    return repr(value if len(value) <= 160 else value[:157] + "...")


# The kernels


def sme_kernels(path: Path) -> dict[str, list[str]]:
    """The kernels in a 64-bit ELF or Mach-O file that compute with SME2, and those with SME alone, by name.

    Functions that pack weights for SME kernels do not count: XNNPACK keeps some where it is built without the
    kernels, as dead code. A file that is broken, of another kind or stripped of names is a BuildError.
    """
    try:
        kernels = {name: parse_kernel(name) for name in _functions(path.read_bytes())}
    except (OSError, ValueError, struct.error, IndexError) as error:
        raise BuildError(f"{path} is not a program that can be read ({error})", "Build it again.") from error
    if all(kernel.library == OTHER_LIBRARY for kernel in kernels.values()):
        raise BuildError(
            f"{path} names no function of XNNPACK or KleidiAI, so its kernels are not known",
            "Build it without options that strip symbols, such as -s in LDFLAGS.",
        )
    return {
        isa: sorted(name for name, kernel in kernels.items() if (kernel.isa, kernel.role) == (isa, COMPUTE))
        for isa in ("sme2", "sme")
    }


def _functions(data: bytes) -> set[str]:
    """The functions that the file defines, as far as it names them."""
    if data[:4] != macho.MAGIC:
        return Elf(data).functions()
    tables = [at for command, at in macho.load_commands(data) if command == macho.SYMBOLS]
    return {name for at in tables for _, name in macho.defined_symbols(data, at)}


def kernel_fault(binary: RunnerBinary, sme2: str) -> str | None:
    """Why a runner does not fit its SME2 state, judged by its kernels; None when it does."""
    found = sme_kernels(binary.path)
    counts = f"{len(found['sme2'])} SME2 and {len(found['sme'])} SME kernels"
    if sme2 == "off":
        return f"it has SME kernels ({counts})" if any(found.values()) else None
    if found["sme2"]:
        return None
    return (
        f"it has no SME2 kernel ({counts}). The compiler may be too old for SME2 (try GCC 14, Clang 18 or "
        "the newest NDK), or the checkout's XNNPACK has no such kernels"
    )


# Stored pairs


def current_source_runner(
    store: Store, platform: str, sme2: str, *, trace: bool = False
) -> RunnerBinary | None:
    """The binary of one arm that was built last; None if there is none."""
    name = store.current(TRACE_KIND if trace else RUNNER_KIND, f"{platform}-sme2_{sme2}")
    return load_runner(store.artifacts / "runners" / name) if name else None


def record_faults(on: RunnerBinary, off: RunnerBinary) -> list[str]:
    """Why two stored runners are not a pair, judged by their records."""
    return differences(read_record(on.path.parent), read_record(off.path.parent))


def source_pair(store: Store, platform: str) -> dict[str, RunnerBinary]:
    """Both arms of a platform. A missing one, or a difference beyond the SME switches, is a BuildError."""
    build = f"Build both: sme2 build-runner --source DIR --platform {platform}"
    on, off = (current_source_runner(store, platform, sme2) for sme2 in ("on", "off"))
    if on is None or off is None:
        missing = " and ".join(sme2 for sme2, binary in (("on", on), ("off", off)) if binary is None)
        raise BuildError(f"There is no runner built from source for {platform} with SME2 {missing}", build)
    if faults := record_faults(on, off):
        listed = "\n".join(f"  {fault}" for fault in faults[:20])
        more = f"\n  and {len(faults) - 20} more" if len(faults) > 20 else ""
        raise BuildError(
            f"The two runners for {platform} are not a pair: they differ in more than the SME switches."
            f"\n{listed}{more}",
            build + ", without changing the checkout or the tools in between.",
        )
    return {"on": on, "off": off}
