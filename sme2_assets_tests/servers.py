"""Real servers on loopback, each in a folder of its own: PostgreSQL and Redis of Debian, S3 by moto.

Nothing is installed: Debian's packages are extracted. As root, PostgreSQL runs as a user without rights,
because it refuses to run as root. Whatever is started dies with the test.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from sme2_assets.errors import Sme2Error
from sme2_assets.toolchain.debian import fetch_packages, libraries_the_host_lacks
from sme2_assets_tests.reach import skip_out_of_reach

BUCKET = "lab"
# Of PostgreSQL where the tests are run by root: it wants a user that the system knows.
NOBODY = "nobody"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def wait_for(answer: Callable[[], object], patience_s: float, what: str) -> None:
    deadline_s = time.monotonic() + patience_s
    while not answer():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"nothing happened in {patience_s} s: {what}")
        time.sleep(0.1)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def for_every_user(packages: Path, folder: Path) -> Path:
    """The packages where a user without rights can start them: a checkout in /root is closed to others.

    `folder` is open to them, and gets a copy if that is needed.
    """
    if all(above.stat().st_mode & 0o001 for above in (packages, *packages.resolve().parents)):
        return packages
    return shutil.copytree(packages, folder / packages.name, symlinks=True)


@contextlib.contextmanager
def server(
    words: Sequence[str | Path], port: int, log: Path, environment: Mapping[str, str], user: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that listens at a port of loopback. It and all its children end with the block."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(word) for word in words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            start_new_session=True,
        )
    try:
        wait_for(lambda: process.poll() is not None or listens(port), 300, f"{words[0]} does not listen")
        assert process.poll() is None, log.read_text()[-2000:]
        yield process
    finally:
        # Of PostgreSQL the signal for a fast end; the others know it, too.
        stop(process, signal.SIGINT)


def stop(process: subprocess.Popen[bytes], sign: signal.Signals) -> None:
    for each in (sign, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, each)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=15)
            break


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[dict[str, str]]:
    """An S3 server with an empty bucket; gives what a client needs in its environment."""
    port = free_port()
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    client = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }
    with server(words, port, folder / "s3.log", {**os.environ, **client}):
        make = f"import fsspec; fsspec.filesystem('s3').mkdir({BUCKET!r})"
        subprocess.run([sys.executable, "-c", make], env={**os.environ, **client}, check=True)
        yield client


@contextlib.contextmanager
def postgres(packages: Path, folder: Path) -> Iterator[str]:
    """A PostgreSQL with an empty database; gives its address."""
    user = pwd.getpwnam(NOBODY).pw_uid if os.geteuid() == 0 else None
    port = free_port()
    # Not below pytest's own folder, from which each start of pytest takes the rights of others.
    home = Path(tempfile.mkdtemp(prefix="sme2-postgres-"))
    if user is not None:
        os.chown(home, user, user)
        for above in home.parents:
            # Its user has to get there: rights are added where they lack, and none are taken away.
            if above.stat().st_mode & 0o055 != 0o055:
                above.chmod(above.stat().st_mode | 0o055)
        packages = for_every_user(packages, home)
    [programs] = packages.glob("usr/lib/postgresql/*/bin")
    environment = {
        "PATH": "/usr/bin:/bin",
        "LC_ALL": "C.UTF-8",
        "LD_LIBRARY_PATH": str(libraries_the_host_lacks(packages)),
    }
    words = [programs / "postgres", "-D", home / "data", "-p", str(port), "-h", "127.0.0.1", "-k", "", "-F"]
    try:
        made = subprocess.run(
            [programs / "initdb", "--auth=trust", "--username=lab", "--no-sync", "-D", home / "data"],
            env=environment,
            user=user,
            group=user,
            cwd="/",
            capture_output=True,
            text=True,
        )
        assert made.returncode == 0, made.stderr
        with server(words, port, folder / "postgres.log", environment, user):
            yield f"postgresql://lab@127.0.0.1:{port}/postgres"
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def redis(packages: Path, folder: Path) -> Iterator[str]:
    port = free_port()
    libraries = str(libraries_the_host_lacks(packages))
    words = [packages / "usr/bin/redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    with server(words, port, folder / "redis.log", {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": libraries}):
        yield f"redis://127.0.0.1:{port}/0"


@pytest.fixture(scope="session")
def server_packages(artifacts_dir: Path) -> dict[str, Path]:
    """Debian's packages of the servers, extracted where anybody may read them."""
    try:
        folders = {name: artifacts_dir / "tools" / name for name in ("postgresql", "redis-server")}
        for name, folder in folders.items():
            fetch_packages([name], folder, with_dependencies=True, log=print)
        return folders
    except Sme2Error as error:
        skip_out_of_reach(error)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3")) as client:
        yield client
