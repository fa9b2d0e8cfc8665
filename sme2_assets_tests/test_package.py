"""The package as it is installed: a wheel in an environment of its own, used outside any checkout."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.request
import venv
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sme2_assets.store import CHECKOUT
from sme2_assets.toolchain.qemu import Qemu
from sme2_assets_tests.servers import free_port

PATIENCE_S = 900
GUARDS = "{ instance { runQueuingSupported info } }"
LOCATIONS = """
{ workspaceOrError { ... on Workspace { locationEntries {
  name loadStatus locationOrLoadError { __typename ... on PythonError { message } }
} } } }
"""
FACTS = """
import json, sys
from sme2_assets import definitions
from sme2_assets.launch import open_instance
from sme2_assets.store import Store, default_data_root, documents
with open_instance(Store(default_data_root())) as instance:
    limits = instance.get_concurrency_config().run_queue_config.tag_concurrency_limits
    print(json.dumps({
        "file": definitions.__file__,
        "loaded": [name for name in ("torch", "executorch") if name in sys.modules],
        "documents": [page.name for page in documents()],
        "limits": {limit["key"]: limit["limit"] for limit in limits},
        "retries, monitoring, telemetry": [
            instance.run_retries_enabled, instance.run_monitoring_enabled, instance.telemetry_enabled
        ],
    }))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, as building leaves files beside the sources."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "README.md", "LICENSE", "workspace.yaml"):
        shutil.copy(CHECKOUT / name, copy)
    for name in ("sme2_assets", "sme2_assets_tests", "benchmarks", "tools", "docs"):
        shutil.copytree(CHECKOUT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path_factory.mktemp("wheel")
    command = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, copy]
    subprocess.run([sys.executable, "-m", "pip", *command], check=True)
    (built,) = folder.glob("*.whl")
    return built


@dataclass(frozen=True)
class Desk:
    """An environment with the wheel in it, and a person's home and working folder, all empty at first."""

    folder: Path

    @property
    def data(self) -> Path:
        """Where that person's data go on Linux when nobody says anything."""
        return self.folder / "home" / ".local" / "share" / "sme2_assets"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def command(self, *words: str) -> dict[str, Any]:
        """The arguments of `subprocess` for a program of the environment."""
        left_out = ("SME2_DATA", "DAGSTER_HOME", "XDG_DATA_HOME", "PYTHONPATH", "VIRTUAL_ENV")
        environment = {name: value for name, value in os.environ.items() if name not in left_out}
        # The build tools are programs of the environment that is borrowed from.
        path = os.pathsep.join([sysconfig.get_path("scripts"), environment["PATH"]])
        environment |= {"HOME": str(self.folder / "home"), "PATH": path, "COLUMNS": "250"}
        program = str(self.folder / "venv" / "bin" / words[0])
        return {"args": [program, *words[1:]], "cwd": self.work, "env": environment, "text": True}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(**self.command(*words), capture_output=True)


@pytest.fixture(scope="module")
def desk(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    desk = Desk(tmp_path_factory.mktemp("desk"))
    for name in ("home", "work"):
        (desk.folder / name).mkdir()
    venv.create(desk.folder / "venv", with_pip=False, symlinks=True)
    python = desk.folder / "venv" / "bin" / "python"
    # What the package depends on is not installed again. A path in a .pth file takes no .pth files from
    # there, so the checkout that this environment leads to stays out.
    (packages,) = (desk.folder / "venv" / "lib").glob("python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = ["--python", python, "install", "--quiet", "--no-deps", "--no-index", "--ignore-installed"]
    subprocess.run([sys.executable, "-m", "pip", *install, wheel], check=True)
    return desk


def test_a_wheel_has_all_that_is_needed_and_no_tests(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith((".dist-info", ".data"))} == {"sme2_assets"}
    # What `sme2 dev` opens, and `sme2 mcp` offers to read.
    shared = {name.partition(".data/data/")[2] for name in names if ".data/" in name}
    pages = (CHECKOUT / "docs").glob("*.md")
    assert shared == {
        "share/sme2_assets/workspace.yaml",
        *(f"share/sme2_assets/docs/{page.name}" for page in pages),
    }
    in_git = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "sme2_assets"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert {name for name in names if name.startswith("sme2_assets/")} == set(in_git)
    for kind in (
        "py.typed",
        "dagster.yaml",
        ".sql",
        ".sh",
        ".cpp",
        "CMakeLists.txt",
        ".html",
    ):
        assert any(name.endswith(kind) for name in names), kind


def test_the_installed_package_answers_with_its_documents_and_guards_and_loads_no_torch(desk: Desk):
    done = desk.run("python", "-c", FACTS)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts.pop("file").startswith(str(desk.folder / "venv"))
    assert facts == {
        "loaded": [],
        "documents": sorted(page.name for page in (CHECKOUT / "docs").glob("*.md")),
        "limits": {"sme2/device": 1, "sme2/pair": 1, "dagster/backfill": 1},
        "retries, monitoring, telemetry": [True, True, False],
    }


@pytest.mark.skipif(sys.platform != "linux", reason="the place of a person's data differs between systems")
def test_doctor_finds_everything_and_says_where_data_go(desk: Desk):
    done = desk.run("sme2", "doctor", "--json")
    findings = {step["name"]: step for step in json.loads(done.stdout)["steps"]}
    assert done.returncode == 0, done.stdout
    assert findings["data folder"]["detail"].startswith(str(desk.data))
    assert findings["CMake and ExecuTorch's C++ SDK"]["status"] == "passed"
    assert not any(desk.work.iterdir()), "something was made in the folder where the command was typed"


@pytest.fixture
def ui(desk: Desk, tmp_path: Path) -> Iterator[str]:
    """The address of a UI that was opened by `sme2 dev`."""
    port = free_port()
    log = tmp_path / "dev.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            **desk.command("sme2", "dev", "--port", str(port)),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        assert _answer(lambda: ask(address, "{ version }"), process), log.read_text()
        assert address in log.read_text().splitlines()[0]
        yield address
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=240)
    finally:
        os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None


def ask(address: str, question: str) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{address}/graphql",
        json.dumps({"query": question}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["data"]


def _answer(question: Callable[[], Any], process: subprocess.Popen[str]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            return question()
        except OSError:
            time.sleep(0.5)
    return None


@pytest.mark.thorough
def test_dev_opens_the_ui_with_the_guards_and_says_when_its_port_is_taken(desk: Desk, ui: str):
    (location,) = ask(ui, LOCATIONS)["workspaceOrError"]["locationEntries"]
    assert (location["name"], location["loadStatus"]) == ("sme2_assets", "LOADED")
    assert location["locationOrLoadError"]["__typename"] == "RepositoryLocation", location
    instance = ask(ui, GUARDS)["instance"]
    assert instance["runQueuingSupported"]
    for guard in ("key: sme2/device", "run_retries:\n  enabled: true", "max_runtime_seconds: 86400"):
        assert guard in instance["info"]
    port = ui.rsplit(":", 1)[1]
    again = desk.run("sme2", "dev", "--port", port)
    assert again.returncode == 1
    assert f"The UI cannot listen on 127.0.0.1, port {port}: " in again.stderr
    assert "What to do" in again.stderr
    assert "Traceback" not in again.stderr
    assert not any(desk.work.iterdir())


def test_the_demo_runs_outside_a_checkout(desk: Desk, artifacts_dir: Path, emulator: Qemu):
    desk.data.mkdir(parents=True, exist_ok=True)
    for name, place in (("artifacts", artifacts_dir), ("tools", artifacts_dir / "tools")):
        (desk.data / name).symlink_to(place)
    done = desk.run("sme2", "demo", "toy_cnn-int8")
    assert done.returncode == 0, done.stderr
    assert f"file://{desk.data}" in "".join(done.stdout.split())
    assert (desk.data / "warehouse.duckdb").exists()
    assert not any(desk.work.iterdir())
