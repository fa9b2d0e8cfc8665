"""Real parts for every test: runner, exported models, emulator; made once and kept between runs."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from sme2_assets.errors import Sme2Error
from sme2_assets.models.artifact import ExportedModel
from sme2_assets.runner.build import RunnerBinary, build_runner
from sme2_assets.targets.qemu import Qemu, ensure_qemu

pytest_plugins = [
    "pytester",
    "sme2_assets_tests.browser",
    "sme2_assets_tests.lanes",
    "sme2_assets_tests.targets.adb_loopback",
    "sme2_assets_tests.targets.android_userland",
]

# Files of a minute and more, and those that make what others wait for. When several workers share the tests,
# these must not be the last.
LONGEST_FIRST = [
    "e2e/test_documented_commands.py",
    "e2e/test_ui.py",
    "e2e/test_chain.py",
    "test_onboarding.py",
    "test_nightly.py",
    "models/test_export.py",
    "runner/test_source_build.py",
    "report/test_html.py",
    "e2e/test_android.py",
    "runner/test_runs.py",
    "exchange/test_documented_commands.py",
    "experiments/test_run.py",
    "warehouse/test_continued.py",
    "runner/test_bundle.py",
    "e2e/test_cli.py",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {Path(__file__).parent / name: at for at, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


@pytest.fixture(scope="session")
def artifacts_dir(request: pytest.FixtureRequest) -> Path:
    """Where built and exported things stay between test runs; all of it is named by content."""
    if given := os.environ.get("SME2_TEST_ARTIFACTS"):
        return Path(given)
    cache = request.config.cache
    assert cache is not None
    return cache.mkdir("sme2-artifacts")


@pytest.fixture(scope="session")
def runner_binary(artifacts_dir: Path) -> RunnerBinary:
    return build_runner(artifacts_dir, log=print)


@pytest.fixture(scope="session")
def exported(artifacts_dir: Path) -> Callable[[str], ExportedModel]:
    """Exports a variant, or takes it from the cache."""
    from sme2_assets.models.export import export_variant

    return lambda variant: export_variant(variant, artifacts_dir, log=print)


@pytest.fixture(scope="session")
def emulator(any_emulator: Qemu) -> Qemu:
    """A QEMU with SME2 on a host whose own runner it can run."""
    if platform.machine() != "aarch64":
        pytest.skip("runs this host's own runner, which is not for aarch64")
    return any_emulator


@pytest.fixture(scope="session")
def any_emulator(artifacts_dir: Path) -> Qemu:
    """A QEMU with SME2. Where it cannot be had the test is skipped, but never in CI on aarch64 Linux."""
    try:
        return ensure_qemu(artifacts_dir / "tools", log=print)
    except Sme2Error as error:
        if os.environ.get("CI") == "true" and (platform.system(), platform.machine()) == ("Linux", "aarch64"):
            raise
        pytest.skip(f"no emulator: {error.what}")
