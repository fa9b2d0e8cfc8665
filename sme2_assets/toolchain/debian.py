"""Files from Debian packages, without root and without touching the machine.

Belongs here: everything that knows apt and dpkg. Does not: what is done with the files.

Packages come from the mirror this machine already uses, from any suite and for any architecture. apt gets
its own source list, lists folder, cache and state, so neither the machine's package database nor any of its
settings are touched, while its proxies, credentials and keyrings still apply. Signatures are still verified.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sme2_assets.archives import BadArchive, Member, tar_members, unpack
from sme2_assets.errors import PackagesUnavailable
from sme2_assets.store import one_at_a_time

Log = Callable[[str], None]

PROGRAMS = ("apt-get", "apt-cache", "dpkg-deb")
#: Where the distributions' own packages put all the keys of their archives, including those of newer suites.
_KEYRINGS = tuple(
    Path("/usr/share/keyrings") / name
    for name in ("debian-archive-keyring.gpg", "ubuntu-archive-keyring.gpg")
)
# What gpgv says, and sqv, which apt asks since Debian 13.
_UNKNOWN_KEY = re.compile("NO_PUBKEY|Missing key")
#: The components that hold the distributions' own free software.
_COMPONENTS = ("main", "universe")
RECORD = ".packages.json"

_QUESTION_SECONDS = 60
_UPDATE_SECONDS = 300
_DOWNLOAD_SECONDS = 1800
_PROGRESS_SECONDS = 5.0


@dataclass(frozen=True)
class Fetched:
    """One version of a package, and the suite it is from."""

    name: str
    version: str
    suite: str
    sha256: str
    size_bytes: int


def fetch_packages(
    names: Sequence[str],
    destination: Path,
    *,
    architecture: str | None = None,
    suites: Sequence[str] | None = None,
    with_dependencies: bool = False,
    only: Sequence[str] = (),
    refuse: Callable[[Fetched], str | None] = lambda package: None,
    log: Log,
) -> list[Fetched]:
    """Unpacks the named packages, all from one suite, into `destination`; returns what they are.

    `architecture` is Debian's name (`arm64`, `amd64`), by default the machine's own. `suites` are tried in
    order, by default those this machine uses; `refuse` may turn a package down by returning a reason.
    `with_dependencies` adds everything that the packages depend on, down to the C library. `only` names the
    programs to extract (`usr/bin/...`); all of them must exist, and nothing else is unpacked.

    Complete or absent: an existing folder from the same request is used again, with nothing fetched. Any
    number of processes may ask at once; one fetches, the others wait for it.
    """
    request: dict[str, object] = {
        "names": sorted(names),
        "architecture": architecture,
        "suites": list(suites or ()),
        "with_dependencies": with_dependencies,
        "only": sorted(only),
    }
    destination = destination.resolve()
    if (there := _recorded(destination, request)) is not None:
        return there
    _require_programs()
    destination.parent.mkdir(parents=True, exist_ok=True)
    lock = destination.parent / f".{destination.name}.lock"
    with one_at_a_time(
        lock, f"packages: waiting for another process that is fetching {destination.name}", log
    ):
        if (there := _recorded(destination, request)) is not None:
            return there
        unpacked = destination.parent / f".{destination.name}.unpacking"
        # We hold the lock, so it can only be what a killed process left.
        shutil.rmtree(unpacked, ignore_errors=True)
        try:
            packages = _fetch(
                names, unpacked, architecture, suites, with_dependencies, only=only, refuse=refuse, log=log
            )
            record = {"request": request, "packages": [asdict(package) for package in packages]}
            (unpacked / RECORD).write_text(json.dumps(record, indent=2) + "\n")
            shutil.rmtree(destination, ignore_errors=True)
            unpacked.rename(destination)
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)
    return packages


def libraries_the_host_lacks(folder: Path) -> Path:
    """A folder with links to the libraries that unpacked programs need and this host lacks.

    Not to everything that was unpacked: a C library may not work with the loader of a different build.
    """
    links = folder / "host-libraries"
    links.mkdir(exist_ok=True)
    triplet = f"{platform.machine()}-linux-gnu"
    for place in (f"usr/lib/{triplet}", f"lib/{triplet}"):
        for library in (folder / place).glob("*.so*"):
            if any((Path("/") / there / triplet / library.name).exists() for there in ("usr/lib", "lib")):
                continue
            temporary = links / f".{library.name}.{os.getpid()}"
            temporary.symlink_to(library.resolve())
            temporary.replace(links / library.name)
    return links


def _recorded(destination: Path, request: dict[str, object]) -> list[Fetched] | None:
    """The packages in a finished folder of the same request."""
    try:
        record = json.loads((destination / RECORD).read_text())
        return (
            [Fetched(**package) for package in record["packages"]] if record["request"] == request else None
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _require_programs() -> None:
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise PackagesUnavailable(
            f"no package can be fetched without {', '.join(missing)}", "use a Debian or Ubuntu machine"
        )


def _fetch(
    names: Sequence[str],
    destination: Path,
    architecture: str | None,
    suites: Sequence[str] | None,
    with_dependencies: bool,
    *,
    only: Sequence[str],
    refuse: Callable[[Fetched], str | None],
    log: Log,
) -> list[Fetched]:
    """Unpacks the packages of the first suite that has all of them in a version that is not refused."""
    refusals: list[str] = []
    # In the system's temporary folder, not next to the destination: as root, apt downloads as another user,
    # who could not enter a private parent folder.
    with tempfile.TemporaryDirectory(prefix="sme2-packages-") as folder:
        Path(folder).chmod(0o755)
        apt = _Apt(Path(folder), architecture)
        for repository in _repositories():
            for suite in suites or repository.suites:
                log(f"packages: looking for {', '.join(names)} in {suite}")
                try:
                    packages = apt.packages(repository, suite, names, with_dependencies)
                    if reasons := [reason for package in packages if (reason := refuse(package))]:
                        raise ValueError("; ".join(reasons))
                    megabytes = f"{sum(package.size_bytes for package in packages) / 1e6:.1f} MB"
                    log(f"packages: downloading {_listed(packages)} ({megabytes})")
                    archives = apt.download(packages, log)
                    log("packages: unpacking")
                    shutil.rmtree(destination, ignore_errors=True)
                    destination.mkdir()
                    _unpack(archives, destination, only)
                except ValueError as error:
                    refusals.append(f"{suite}: {error}")
                else:
                    return packages
    raise _nothing_to_fetch(names, refusals)


def _listed(packages: Sequence[Fetched]) -> str:
    if len(packages) > 4:
        return f"{packages[0].name} {packages[0].version} and {len(packages) - 1} more"
    return ", ".join(f"{package.name} {package.version}" for package in packages)


def _nothing_to_fetch(names: Sequence[str], refusals: Sequence[str]) -> PackagesUnavailable:
    if not refusals:
        return PackagesUnavailable(
            "apt has no package repository to take a package from", "add one to apt's sources"
        )
    what = f"{', '.join(names)} could not be fetched ({'; '.join(refusals)})"
    if any(map(_UNKNOWN_KEY.search, refusals)):
        what += "; this machine does not know the key that signs the newer suites"
        return PackagesUnavailable(what, "update the package debian-archive-keyring")
    return PackagesUnavailable(what)


@dataclass(frozen=True)
class _Repository:
    """A package repository this machine already uses, which parts it uses, and the keys that may sign it."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    keyrings: tuple[Path, ...]

    def source_line(self, suite: str) -> str:
        # Only the package index is needed; other indexes cost tens of megabytes.
        options = ["target=Packages"]
        if self.keyrings:
            options.append(f"signed-by={','.join(map(str, self.keyrings))}")
        return f"deb [{' '.join(options)}] {self.uri} {suite} {' '.join(self.components)}\n"


def _repositories() -> list[_Repository]:
    """The machine's repositories in its own order, each once.

    Asked without release information: with it, apt omits repositories whose lists are not downloaded, as in a
    fresh container.
    """
    question = ["apt-get", "indextargets", "--no-release-info", "Created-By: Packages"]
    answer = _run(question, timeout_seconds=_QUESTION_SECONDS)
    told: dict[str, list[dict[str, str]]] = {}
    for fields in _stanzas(answer.stdout):
        # A security archive has only fixes for released suites, and the suite itself is searched anyway.
        if fields.get("Repo-URI") and not fields.get("Release", "").endswith("-security"):
            told.setdefault(fields["Repo-URI"], []).append(fields)
    return [
        _Repository(
            uri,
            suites=tuple(dict.fromkeys(fields.get("Release", "") for fields in targets)),
            components=tuple(
                name for name in _COMPONENTS if any(fields.get("Component") == name for fields in targets)
            )
            or _COMPONENTS[:1],
            keyrings=_keyrings(targets[0].get("Signed-By", "")),
        )
        for uri, targets in told.items()
    ]


def _keyrings(signed_by: str) -> tuple[Path, ...]:
    """Key files for a source line: those apt names (only newer versions do), and the distribution's keyring.

    A machine may name only the keyring of its own release, which does not hold newer suites' keys.
    Without any, apt falls back to the keys the machine trusts for everything.
    """
    told = [Path(name) for name in re.split(r"[,\s]+", signed_by) if name.startswith("/")]
    candidates = dict.fromkeys([*told, *_KEYRINGS])
    return tuple(path for path in candidates if path.is_file())


class _Apt:
    """apt with all its state in one folder, and otherwise the machine's settings."""

    def __init__(self, folder: Path, architecture: str | None) -> None:
        self._folder = folder
        self._config = folder / "apt.conf"
        self._sources = folder / "sources.list"
        for name in ("lists/partial", "cache/archives/partial", "state", "packages"):
            (folder / name).mkdir(parents=True)
        (folder / "status").touch()
        self._config.write_text(self._settings(architecture))

    def _settings(self, architecture: str | None) -> str:
        settings = {
            "Dir::Etc::sourcelist": self._sources,
            "Dir::Etc::sourceparts": "/dev/null",
            # With one suite there is nothing to prefer, and a pin could hide the only candidate.
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "Dir::State": self._folder / "state",
            "Dir::State::lists": self._folder / "lists",
            "Dir::State::status": self._folder / "status",
            "Dir::Cache": self._folder / "cache",
            # Explicit, so that a machine that has switched verification off does not switch it off here.
            "Acquire::AllowInsecureRepositories": "false",
            "Acquire::AllowWeakRepositories": "false",
            "Acquire::AllowDowngradeToInsecureRepositories": "false",
            "APT::Get::AllowUnauthenticated": "false",
            "Acquire::Retries": "2",
            "APT::Update::Error-Mode": "any",
            "APT::Install-Recommends": "false",
            "APT::Install-Suggests": "false",
        }
        # The machine's hooks are for its own package lists (and may need root).
        lines = ["#clear APT::Update::Post-Invoke;", "#clear APT::Update::Post-Invoke-Success;"]
        if architecture is not None:
            settings["APT::Architecture"] = architecture
            lines += ["#clear APT::Architectures;", f'APT::Architectures {{ "{architecture}"; }};']
        lines += [f'{key} "{value}";' for key, value in settings.items()]
        return "\n".join(lines) + "\n"

    def packages(
        self, repository: _Repository, suite: str, names: Sequence[str], with_dependencies: bool
    ) -> list[Fetched]:
        """The newest versions of the packages in a suite; ValueError says why they are not available."""
        self._sources.write_text(repository.source_line(suite))
        update = self._apt("apt-get", "update", timeout_seconds=_UPDATE_SECONDS)
        if update.returncode != 0:
            raise ValueError(_reason(update.stdout + update.stderr))
        wanted = self._closure(names) if with_dependencies else list(names)
        # A missing package is an error for apt-cache; for us it is just missing from the answer.
        shown = self._apt("apt-cache", "show", "--no-all-versions", *wanted)
        offered = {fields.get("Package", ""): fields for fields in _stanzas(shown.stdout)}
        if missing := [name for name in wanted if name not in offered]:
            raise ValueError(f"has no {', '.join(missing)}")
        return [_package_of(offered[name], suite) for name in wanted]

    def _closure(self, names: Sequence[str]) -> list[str]:
        """The packages and all they depend on: what would be installed on an empty system."""
        plan = self._apt("apt-get", "install", "--simulate", *names)
        if plan.returncode != 0:
            raise ValueError(_reason(plan.stdout + plan.stderr))
        planned = re.findall(r"^Inst ([^\s:]+)", plan.stdout, flags=re.MULTILINE)
        return sorted(planned, key=lambda name: (name not in names, name))

    def download(self, packages: Sequence[Fetched], log: Log) -> list[Path]:
        """The packages' files, verified by apt against the signed index."""
        folder = self._folder / "packages"
        for former in folder.iterdir():
            former.unlink()
        command = self._command("apt-get", "download", *(f"{p.name}={p.version}" for p in packages))
        # A file, not a pipe: nobody reads while the loop below watches the folder grow.
        with (self._folder / "download.log").open("w+") as output:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=_plain_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                _watch(process, folder, sum(package.size_bytes for package in packages), log)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
            output.seek(0)
            told = output.read()
        files = sorted(folder.glob("*.deb"))
        if process.returncode != 0 or len(files) != len(packages):
            raise ValueError(_reason(told))
        return files

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [program, "-c", str(self._config), "-q", *arguments]

    def _apt(
        self, program: str, *arguments: str, timeout_seconds: float = _QUESTION_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        try:
            return _run(self._command(program, *arguments), timeout_seconds=timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise ValueError(f"did not answer within {timeout_seconds:.0f} s") from error


def _package_of(fields: dict[str, str], suite: str) -> Fetched:
    return Fetched(
        name=fields["Package"],
        version=fields.get("Version", ""),
        suite=suite,
        sha256=fields.get("SHA256", ""),
        size_bytes=int(fields.get("Size", "0")),
    )


def _stanzas(text: str) -> list[dict[str, str]]:
    """The paragraphs of a control file, without the continued lines of long fields."""
    return [
        dict(re.findall(r"^(\S+): (.*)$", stanza, flags=re.MULTILINE))
        for stanza in text.split("\n\n")
        if stanza.strip()
    ]


def _unpack(archives: Sequence[Path], destination: Path, only: Sequence[str]) -> None:
    if only:
        missing = set(only)
        for archive in archives:
            _unpack_some(archive, destination, missing)
        if missing:
            raise ValueError(f"the package has no {', '.join(sorted(missing))}")
        for name in only:
            (destination / name).chmod(0o755)
        return
    for archive in archives:
        done = _run(["dpkg-deb", "-x", str(archive), str(destination)], timeout_seconds=_UPDATE_SECONDS)
        if done.returncode != 0:
            raise ValueError(f"the package is damaged ({done.stderr.strip()})")


def _unpack_some(archive: Path, destination: Path, wanted: set[str]) -> None:
    """Extracts the wanted files from a package, not the hundreds of megabytes next to them.

    Files that are found are removed from `wanted`.
    """
    command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            unpack(_files_of(tar_members(process.stdout), wanted), destination)
        except BadArchive as error:
            raise ValueError(f"the package is damaged ({error})") from error
        finally:
            # The rest of the archive is not wanted, and waiting on a full pipe would never end.
            process.kill()


def _files_of(members: Iterable[Member], wanted: set[str]) -> Iterator[Member]:
    for member in members:
        name = member.name.removeprefix("./")
        if name in wanted and member.content is not None:
            yield member
            wanted.discard(name)
        if not wanted:
            return


def _watch(process: subprocess.Popen[bytes], folder: Path, size_bytes: int, log: Log) -> None:
    """Waits for a download and logs its progress every few seconds."""
    deadline = time.monotonic() + _DOWNLOAD_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_PROGRESS_SECONDS)
            return
        there_bytes = sum(file.stat().st_size for file in folder.glob("*.deb*"))
        log(f"packages: {there_bytes / 1e6:.0f} of {size_bytes / 1e6:.0f} MB")
    raise ValueError(f"the download did not end within {_DOWNLOAD_SECONDS} s")


def _run(command: list[str], *, timeout_seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=_plain_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_seconds,
        check=False,
    )


def _plain_environment() -> dict[str, str]:
    # This module parses the messages, so they must be in the language it knows.
    return {**os.environ, "LC_ALL": "C"}


def _reason(output: str) -> str:
    """apt's first complaint; the lines after it repeat it in other words."""
    complaints = [line.strip() for line in output.splitlines() if re.match(r"[EW]: ", line)]
    keyless = [line for line in complaints if _UNKNOWN_KEY.search(line)]
    return (keyless or complaints or ["apt failed without saying why"])[0][3:]
