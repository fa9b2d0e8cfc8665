"""Real parts for every test: runner, exported models, emulator; made once and kept between runs."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import platform
import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

from sme2_assets.errors import BuildError, Sme2Error
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.runner.build import RunnerBinary, build_runner
from sme2_assets.runner.bundle import build_bundle
from sme2_assets.store import Store
from sme2_assets.targets import host
from sme2_assets.targets.local import EmulatedTarget
from sme2_assets.targets.shapes import DEFAULT
from sme2_assets.toolchain.qemu import Qemu
from sme2_assets_tests import archive
from sme2_assets_tests.made import MadeOnce
from sme2_assets_tests.reach import skip_out_of_reach

# Tests write the models that they run; those about trust take this away.
os.environ["SME2_TRUST_MODELS"] = "1"

pytest_plugins = [
    "pytester",
    "sme2_assets_tests.browser",
    "sme2_assets_tests.exchange.measured_pair",
    "sme2_assets_tests.servers",
    "sme2_assets_tests.targets.android.adb_loopback",
    "sme2_assets_tests.targets.android.android_userland",
    "sme2_assets_tests.targets.ssh.sshd_loopback",
    "sme2_assets_tests.targets.remote.devices",
    "sme2_assets_tests.tiers",
]

# A busy machine fails no test. In CI Hypothesis also takes the same examples each time.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """What a test sets in a context variable ends with it.

    A schedule or sensor that Dagster evaluates leaves its instance in one, and does not keep it alive: the
    next test that loads definitions would look for it there.
    """
    test = pyfuncitem.obj

    @functools.wraps(test)
    def in_its_own_context(*args: object, **named: object) -> object:
        return contextvars.copy_context().run(test, *args, **named)

    pyfuncitem.obj = in_its_own_context
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test


@pytest.fixture(scope="session", autouse=True)
def own_configuration(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What a test trusts is not what the person who runs the tests trusts."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))


@contextlib.contextmanager
def _environment_put_back() -> Iterator[None]:
    before = dict(os.environ)
    yield
    # pytest's own variable says which test runs.
    for name in {*os.environ, *before} - {"PYTEST_CURRENT_TEST"}:
        if name not in before:
            del os.environ[name]
        elif os.environ.get(name) != before[name]:
            os.environ[name] = before[name]


@pytest.fixture(scope="module", autouse=True)
def environment_of_a_file() -> Iterator[None]:
    """What the fixtures of a file put into the environment ends with the file."""
    with _environment_put_back():
        yield


@pytest.fixture(autouse=True)
def environment_of_a_test(environment_of_a_file: None) -> Iterator[None]:
    """What a test puts into the environment ends with it.

    A command that runs in this process leaves there the names of its data folder and Dagster instance, and
    every later one would take them.
    """
    os.environ.pop("DAGSTER_HOME", None)
    with _environment_put_back():
        yield


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    """A folder that the first worker to ask for it fills; the others wait, and all of them only read it."""
    own = tmp_path_factory.getbasetemp()
    # A worker's folder is in that of the whole run.
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def made(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = shared / f"made-{name}", shared / f"made-{name}.done"
        with FileLock(f"{folder}.lock"):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def artifacts_dir(request: pytest.FixtureRequest) -> Path:
    """Where built and exported things stay between test runs, with the archived exports among them."""
    given = os.environ.get("SME2_TEST_ARTIFACTS")
    folder = Path(given) if given else request.config.cache.mkdir("sme2-artifacts")
    archive.seed(folder)
    return folder


@pytest.fixture(scope="session")
def own_artifacts(artifacts_dir: Path, made_once: MadeOnce) -> Path:
    """Artifacts whose exports are this run's: one of an earlier run hides how the code has changed since."""

    def make(folder: Path) -> None:
        for shared in ("runners", "tools"):
            (artifacts_dir / shared).mkdir(exist_ok=True)
            (folder / shared).symlink_to(artifacts_dir / shared)

    return made_once("artifacts", make)


@pytest.fixture(scope="session")
def runner_binary(artifacts_dir: Path) -> RunnerBinary:
    return build_runner(artifacts_dir, log=print)


@pytest.fixture(scope="session")
def exported(artifacts_dir: Path) -> Callable[[str], ExportedModel]:
    """Takes a variant from the archive or the cache, or exports it."""
    from sme2_assets.models.export import export_variant

    def model(variant: str) -> ExportedModel:
        if variant in archive.VARIANTS:
            return archive.archived_model(variant, artifacts_dir)
        return export_variant(variant, artifacts_dir, log=print)

    return model


@pytest.fixture(scope="session")
def archived(made_once: MadeOnce) -> Store:
    """A data folder with the archived sessions in a warehouse, the pair compared. Only for reading."""
    return Store(made_once("archived", lambda folder: archive.archived_store(folder, published=True)))


@pytest.fixture(scope="session")
def emulator(artifacts_dir: Path) -> Qemu:
    """A QEMU with SME2, and beside it what builds its runner: all that the emulated platform takes."""
    if platform.system() != "Linux":
        pytest.skip("QEMU runs Linux programs on Linux alone")
    try:
        return EmulatedTarget(artifacts_dir / "tools").provision(print)[0]
    except Sme2Error as error:
        skip_out_of_reach(error)


@pytest.fixture(scope="session")
def bundle(artifacts_dir: Path) -> RunnerBinary:
    """The runner for aarch64 Linux with all it needs, cross-built on any other host."""
    try:
        return build_bundle(artifacts_dir, tools=artifacts_dir / "tools", log=print)
    except BuildError as error:
        skip_out_of_reach(error)


@pytest.fixture(scope="session")
def emulated_runner(request: pytest.FixtureRequest, artifacts_dir: Path, emulator: Qemu) -> RunnerBinary:
    """The runner that is emulated here: the host's own on aarch64, a bundle elsewhere."""
    bundled = EmulatedTarget(artifacts_dir / "tools").bundled
    runner: RunnerBinary = request.getfixturevalue("bundle" if bundled else "runner_binary")
    return runner


@pytest.fixture(scope="session")
def emulated_command(emulated_runner: RunnerBinary, emulator: Qemu) -> list[str]:
    """How the emulated runner is started, on a CPU with SME2."""
    program = emulated_runner.program
    return [str(emulator.path), "-cpu", DEFAULT.option, *program.command_in(str(program.folder))]


@pytest.fixture
def x86_64_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine says that it is another; what was remembered of it in the meantime is forgotten."""
    remembered = (host._lasting_facts, host.host_has_sme2)
    for fact in remembered:
        fact.cache_clear()
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    yield
    for fact in remembered:
        fact.cache_clear()
