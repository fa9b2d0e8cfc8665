"""The record of what a build from source was made from, and whether two builds are a pair.

Belongs here: the build manifest, how it is read from CMake's own records, the comparison of two. Not here:
how a build is done.

Two builds are a pair when they differ only in the SME switches and what follows from them:
- the values of the two cache variables in `SWITCHES`, ON in one and OFF in the other;
- the definitions `XNN_ENABLE_ARM_SME=` and `XNN_ENABLE_ARM_SME2=`, which pass them on to XNNPACK's sources;
- source files of SME kernels (a word of the file's name is `sme`, `sme2`, `neonsme` or `neonsme2`) that only
  the build with SME2 compiles.
Everything else that is recorded must be the same: sources, compilers, NDK, every other cache variable, and
for every file every flag, in order.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sme2_assets.errors import BuildError
from sme2_assets.runner.presets import SWITCHES

RECORD_NAME = "build.json"
SCHEMA = 1

_SME_DEFINITION = re.compile(r"-DXNN_ENABLE_ARM_SME2?=\d")
_SME_WORD = re.compile(r"(?:neon)?sme2?(?:p\d)?")
# Results of CMake's own searches and tests; their effects show in the flags of the files.
_UNRECORDED_TYPES = ("INTERNAL", "STATIC")
_QUERIES = ("cache-v2", "toolchains-v1")


@dataclass(frozen=True)
class Tree:
    """One configured and built CMake project."""

    compilers: dict[str, str] = field(default_factory=dict)
    """Id, version and target of the compiler of each language."""
    cache: dict[str, str] = field(default_factory=dict)
    files: dict[str, list[str]] = field(default_factory=dict)
    """For each source file, the hashes of the flags it was compiled with, one per compilation."""
    flag_sets: dict[str, list[str]] = field(default_factory=dict)
    """The flags behind each hash, in order."""
    flags: list[str] = field(default_factory=list)
    """Every flag that any file was compiled with, sorted."""


@dataclass(frozen=True)
class BuildRecord:
    """The manifest of one build. Its folders are written by name: `<build>`, `<checkout>`, `<ndk>`."""

    platform: str
    sme2: str
    trace: bool
    preset: str
    checkout: dict[str, Any]
    """Commit, version, whether dirty, hash of the changes, submodules, KleidiAI."""
    ndk: str | None
    cmake: str
    runner_sources_sha256: str
    environment: dict[str, str]
    """Variables and installed packages that a build depends on."""
    trees: dict[str, Tree]
    binary_sha256: str | None = None
    kernels: dict[str, Any] | None = None
    started_at: str | None = None
    finished_at: str | None = None
    schema: int = SCHEMA

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True, allow_nan=False) + "\n"

    @classmethod
    def read(cls, folder: Path) -> BuildRecord:
        path = folder / RECORD_NAME
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            trees = {name: Tree(**tree) for name, tree in facts.pop("trees").items()}
            record = cls(**facts, trees=trees)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BuildError(
                f"{path} is not a complete build manifest ({error})", "Build the runner again from source."
            ) from error
        if record.schema != SCHEMA:
            raise BuildError(f"{path} has schema {record.schema}, not {SCHEMA}", "Build the runner again.")
        return record


@dataclass(frozen=True)
class Difference:
    """One recorded fact in which two builds differ."""

    where: str
    on: str | None
    off: str | None
    expected: bool
    """Whether it is an SME switch or follows from one."""

    def __str__(self) -> str:
        return f"{self.where}: {_shown(self.on)} with SME2 on, {_shown(self.off)} with SME2 off"


def _shown(value: str | None) -> str:
    if value is None:
        return "nothing"
    return repr(value if len(value) <= 160 else value[:157] + "...")


def differences(on: BuildRecord, off: BuildRecord) -> list[Difference]:
    """All recorded facts in which the two builds differ, expected or not."""
    facts_on, facts_off = _facts(on), _facts(off)
    found = []
    for where in sorted({*facts_on, *facts_off}):
        ours, others = facts_on.get(where), facts_off.get(where)
        if ours != others:
            found.append(_difference(where, ours, others))
    return found


def pair_difference(on: BuildRecord, off: BuildRecord) -> list[Difference]:
    """Why two builds are not a pair: every difference that the SME switches do not explain."""
    faults = [difference for difference in differences(on, off) if not difference.expected]
    for switch in SWITCHES:
        ours, others = (record.trees["executorch"].cache.get(switch) for record in (on, off))
        if (ours, others) != ("ON", "OFF") and ours == others:
            faults.append(Difference(f"executorch cache {switch}", ours, others, expected=False))
    if (on.sme2, off.sme2) != ("on", "off") and on.sme2 == off.sme2:
        faults.append(Difference("SME2", on.sme2, off.sme2, expected=False))
    return faults


def pair_hash(record: BuildRecord) -> str:
    """The hash of all recorded facts except the SME switches and their effects: the same within a pair."""
    facts = {where: value for where, value in _facts(record).items() if not _may_follow(where)}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def is_sme_source(path: str) -> bool:
    """Whether a source file holds SME kernels, by its name."""
    return any(_SME_WORD.fullmatch(word) for word in re.split(r"[^a-z0-9]+", Path(path).stem.lower()))


_SWITCHED = frozenset(
    {"SME2", "executorch SME definitions", *(f"executorch cache {name}" for name in SWITCHES)}
)
_COMPILED = "executorch file "


def _may_follow(where: str) -> bool:
    return where in _SWITCHED or (where.startswith(_COMPILED) and is_sme_source(where))


def _difference(where: str, on: str | None, off: str | None) -> Difference:
    expected = where in _SWITCHED or (_may_follow(where) and off is None)
    if where.startswith("executorch cache "):
        expected = expected and (on, off) == ("ON", "OFF")
    if where == "SME2":
        expected = (on, off) == ("on", "off")
    return Difference(where, on, off, expected)


def _facts(record: BuildRecord) -> dict[str, str]:
    """Every fact by which two builds are compared, under a readable name."""
    facts = {
        "platform": record.platform,
        "SME2": record.sme2,
        "trace": str(record.trace),
        "CMake": record.cmake,
        "NDK": str(record.ndk),
        "runner sources": record.runner_sources_sha256,
        **{
            f"checkout {name}": _text(value)
            for name, value in record.checkout.items()
            if name != "submodules"
        },
        **{f"submodule {name}": value for name, value in record.checkout["submodules"].items()},
        **{f"environment {name}": value for name, value in record.environment.items()},
    }
    for name, tree in record.trees.items():
        facts |= {f"{name} compiler of {language}": value for language, value in tree.compilers.items()}
        facts |= {f"{name} cache {variable}": value for variable, value in tree.cache.items()}
        facts |= {f"{name} file {path}": _flags_text(tree, sets) for path, sets in tree.files.items()}
        if definitions := [flag for flag in tree.flags if _SME_DEFINITION.fullmatch(flag)]:
            facts[f"{name} SME definitions"] = " ".join(definitions)
    return facts


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _flags_text(tree: Tree, sets: list[str]) -> str:
    kept = [[flag for flag in tree.flag_sets[key] if not _SME_DEFINITION.fullmatch(flag)] for key in sets]
    return " | ".join(sorted(shlex.join(flags) for flags in kept))


# From CMake's records


def ask_cmake(build: Path) -> None:
    """Asks CMake to record cache and compilers when it configures in `build`."""
    queries = build / ".cmake" / "api" / "v1" / "query"
    queries.mkdir(parents=True, exist_ok=True)
    for name in _QUERIES:
        (queries / name).touch()


def read_tree(build: Path, places: Mapping[str, Path]) -> Tree:
    """What CMake recorded about a configured project. `places` are the folders to write by name."""
    try:
        cache = _reply(build, "cache")["entries"]
        toolchains = _reply(build, "toolchains")["toolchains"]
        commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise BuildError(
            f"CMake left no record of what it did in {build} ({error!r})", "Install a newer CMake."
        ) from error
    files: dict[str, list[str]] = {}
    flag_sets: dict[str, list[str]] = {}
    for entry in commands:
        path, flags = _compilation(entry, places)
        key = hashlib.sha256("\0".join(flags).encode()).hexdigest()[:16]
        flag_sets[key] = flags
        files.setdefault(path, []).append(key)
    return Tree(
        compilers={one["language"]: _compiler(one["compiler"]) for one in toolchains if "compiler" in one},
        cache={
            entry["name"]: named(entry["value"], places)
            for entry in cache
            if entry["type"] not in _UNRECORDED_TYPES
        },
        files={path: sorted(keys) for path, keys in sorted(files.items())},
        flag_sets=flag_sets,
        flags=sorted({flag for flags in flag_sets.values() for flag in flags}),
    )


def _reply(build: Path, kind: str) -> dict[str, Any]:
    # CMake's file API promises that the newest index is the last by name.
    index_file = sorted((build / ".cmake" / "api" / "v1" / "reply").glob("index-*.json"))[-1]
    index = json.loads(index_file.read_text(encoding="utf-8"))
    entry = next(one for one in index["objects"] if one["kind"] == kind)
    return json.loads((index_file.parent / entry["jsonFile"]).read_text(encoding="utf-8"))


def _compiler(compiler: Mapping[str, Any]) -> str:
    words = (compiler.get("id", "?"), compiler.get("version", ""), compiler.get("target", ""))
    return " ".join(word for word in words if word)


def _compilation(entry: Mapping[str, Any], places: Mapping[str, Path]) -> tuple[str, list[str]]:
    """The source file of one compile command, and its flags: without compiler, file and output."""
    words = list(entry["arguments"]) if "arguments" in entry else shlex.split(entry["command"])
    source = Path(entry["directory"]) / entry["file"]
    flags, skip = [], True  # the first word is the compiler
    for word in words:
        if skip or word in ("-c", "-o"):
            skip = word == "-o"
            continue
        if word in (entry["file"], str(source)):
            continue
        flags.append(named(word, places))
    return named(str(source), places), flags


def named(text: str, places: Mapping[str, Path]) -> str:
    """`text` with each folder of `places` written as `<its name>`, the longest path first."""
    written = {str(form): name for name, path in places.items() for form in (path, path.resolve())}
    for path in sorted(written, key=len, reverse=True):
        text = text.replace(path, f"<{written[path]}>")
    return text
