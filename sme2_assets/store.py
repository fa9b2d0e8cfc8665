"""Where files live under the data folder, and how they get there whole.

Belongs here: paths, atomic writes, hashes, the pointers that say which artifact or run is current.
Does not: what is in the files.

Two rules keep the folder trustworthy. A folder is filled under a temporary name and renamed, so a
crash leaves nothing that looks finished. "Current" is a small pointer file that is replaced after
the folder it names is complete, so a reader never meets a half-written artifact.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sme2_assets.errors import Sme2Error

# The checkout this package runs from, when it does (an editable install).
CHECKOUT = Path(__file__).resolve().parent.parent
# The initial configuration of a Dagster instance.
DAGSTER_YAML = Path(__file__).with_name("dagster.yaml")
# Where the webserver serves reports and documents (ui/pages.py).
UI_PAGES = "/sme2"
# For people who open the UI for the first time.
GUIDE_PAGE = "docs/ui.md"
# File systems limit names to 255 bytes, and a folder has a longer one while it is being filled.
_LONGEST_NAME = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def anchor_of(heading: str) -> str:
    """The anchor of a section, as code hosts make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def documents() -> list[Path]:
    """The pages of docs/."""
    return sorted((_beside_the_package() / "docs").glob("*.md"))


def workspace_file() -> Path:
    """Dagster's list of what to load."""
    return _beside_the_package() / "workspace.yaml"


def _beside_the_package() -> Path:
    """What is in the checkout outside of the package: there, or where the wheel puts it."""
    return CHECKOUT if _in_checkout() else Path(sys.prefix) / "share" / "sme2_assets"


def _in_checkout() -> bool:
    return (CHECKOUT / "sme2_assets_tests").is_dir()


def default_data_root() -> Path:
    """`$SME2_DATA`, else `data/` of the checkout this package runs from, else the user's own data folder."""
    if configured := os.environ.get("SME2_DATA"):
        return Path(configured).expanduser().resolve()
    if _in_checkout():
        return CHECKOUT / "data"
    # A checkout can do without this package.
    import platformdirs

    return platformdirs.user_data_path("sme2_assets", appauthor=False)


# Control characters, parts of characters, and separators of lines and paragraphs.
_NOT_IN_PATHS = ("Cc", "Cs", "Zl", "Zp")


@dataclass(frozen=True)
class Store:
    """The data folder."""

    root: Path

    def __post_init__(self) -> None:
        # DuckDB wants UTF-8, and lists of paths have one per line.
        if any(unicodedata.category(each) in _NOT_IN_PATHS for each in str(self.root)):
            raise Sme2Error(
                f"The path of the data folder, {str(self.root)!r}, has a line break, a control character or "
                "bytes that are not UTF-8.",
                "Choose another folder, with --data or SME2_DATA.",
            )

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def tools(self) -> Path:
        return self.root / "tools"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def warehouse(self) -> Path:
        return self.root / "warehouse"

    @property
    def leases(self) -> Path:
        return self.root / "leases"

    @property
    def dagster_home(self) -> Path:
        return self.root / "dagster_home"

    @property
    def blind(self) -> Path:
        """Blind trials: what was observed and, separately, the truth."""
        return self.root / "blind"

    @property
    def advice(self) -> Path:
        """What changes to each model gained when they were tried."""
        return self.root / "advice"

    @property
    def reports(self) -> Path:
        return self.root / "reports"

    def run_dir(self, run_id: str) -> Path:
        return self.runs / safe_name(run_id)

    def set_current(self, kind: str, key: str, value: str) -> None:
        """Makes `value` the current thing of `kind` for `key` (e.g. the export of a model)."""
        write_text_atomically(self._pointer(kind, key), value + "\n")

    def current(self, kind: str, key: str) -> str | None:
        pointer = self._pointer(kind, key)
        return pointer.read_text().strip() if pointer.is_file() else None

    def _pointer(self, kind: str, key: str) -> Path:
        return self.root / "current" / safe_name(kind) / safe_name(key)


def safe_name(name: str) -> str:
    """`name`, if it can be a file name and a partition key; an error otherwise."""
    if not _NAME.fullmatch(name[: _LONGEST_NAME + 1]):
        raise Sme2Error(
            f"{name!r} cannot be used as a name.",
            "Use letters, digits, '.', '_' and '-' only, beginning with a letter or a digit.",
        )
    if len(name) > _LONGEST_NAME:
        raise Sme2Error(
            f"A name of {len(name):,} characters cannot be used: {name[:40]}...",
            f"Use at most {_LONGEST_NAME} characters.",
        )
    return name


def ready_dagster_home(store: Store) -> Path:
    """The folder of the Dagster instance, `$DAGSTER_HOME` or the data folder's, with a configuration in it.

    Without one, an instance would silently have neither pool limits nor run monitoring.
    """
    home = Path(os.environ.get("DAGSTER_HOME") or store.dagster_home)
    if not home.is_absolute():
        raise Sme2Error(
            f"DAGSTER_HOME is {str(home)!r}, which means a different folder wherever a command is run.",
            "Set it to an absolute path, or unset it.",
        )
    if not (home / "dagster.yaml").exists():
        write_text_atomically(home / "dagster.yaml", DAGSTER_YAML.read_text())
    return home


@contextmanager
def environment(**variables: str | None) -> Iterator[None]:
    """Variables of the environment while the block runs, None for none; afterwards they are as before."""
    before = {name: os.environ.get(name) for name in variables}
    _set_environment(variables)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def new_directory(final: Path) -> Iterator[Path]:
    """A folder to fill; it appears as `final` if the block succeeds, and not at all otherwise."""
    with new_directories([final]) as [staging]:
        yield staging


@contextmanager
def new_directories(finals: Sequence[Path]) -> Iterator[list[Path]]:
    """Folders to fill, next to each other; they appear if the block succeeds, and not at all otherwise.

    They are on the disk before they get their names, so that not even a power cut leaves an empty one.
    """
    parent = finals[0].parent
    parent.mkdir(parents=True, exist_ok=True)
    stagings = [Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=parent)) for final in finals]
    try:
        yield stagings
        for staging in stagings:
            staging.chmod(0o755)
        for step in (lambda staging, _: fsync_all(staging), Path.rename):
            for staging, final in zip(stagings, finals, strict=True):
                try:
                    step(staging, final)
                except FileNotFoundError:
                    # Another process took it for the leftover of a dead one, and gave it its name.
                    if not final.is_dir():
                        raise
        fsync(parent)
    except BaseException:
        if not all(final.is_dir() for final in finals):
            for staging, final in zip(stagings, finals, strict=True):
                if final.is_dir() and not staging.exists():
                    final.rename(staging)
        raise
    finally:
        for staging in stagings:
            shutil.rmtree(staging, ignore_errors=True)


def fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_all(folder: Path) -> None:
    """Syncs everything below a folder, and the folder."""
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            fsync(Path(path, name))
        fsync(Path(path))


@contextmanager
def one_at_a_time(lock: Path, waiting: str, log: Callable[[str], None]) -> Iterator[None]:
    """One process in the block; others log `waiting` and wait. The system frees a dead process's lock."""
    guard = FileLock(lock)
    try:
        guard.acquire(timeout=0)
    except Timeout:
        log(waiting)
        guard.acquire()
    try:
        yield
    finally:
        guard.release()


def write_text_atomically(path: Path, text: str) -> None:
    """Replaces `path` as a whole; readers see the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as handle:
        staged = Path(handle.name)
        try:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
            staged.chmod(0o644)
            staged.replace(path)
        finally:
            staged.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Strict JSON: NaN and infinity are defects of the caller, not values."""
    write_text_atomically(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def sha256_of_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_of_text(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def is_unlocked(path: Path) -> bool:
    """Whether nobody holds the lock on a file or folder. It is kept: others may be about to lock it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(handle)
