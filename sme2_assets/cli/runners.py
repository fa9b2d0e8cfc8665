"""`sme2 build-runner`: the runner of the installed ExecuTorch, or a pair from a checkout of its sources.

Belongs here: options, and how plans and results are printed. Heavy imports happen inside the command.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sme2_assets.cli.support import json_option, print_json, say, status_line, tell
from sme2_assets.store import Store

if TYPE_CHECKING:
    from sme2_assets.runner.build import RunnerBinary
    from sme2_assets.runner.source_build import SourceRequest

# Those of `runner.source_build`, which is not imported to keep `--help` fast.
_PLATFORMS = ("android", "mac", "linux")
_OF_A_CHECKOUT = "needs --source: it is about a build from sources"


@click.command("build-runner")
@click.option(
    "--source",
    "checkout",
    type=click.Path(file_okay=False, path_type=Path),
    help="Build a pair from this ExecuTorch clone with its submodules. None of its tracked files is touched.",
)
@click.option(
    "--platform",
    type=click.Choice([*_PLATFORMS, "emulated"]),
    help="What to build for. Without --source the default is every platform that works here.",
)
@click.option(
    "--ndk",
    type=click.Path(file_okay=False, path_type=Path),
    help="The Android NDK. Default: $ANDROID_NDK, $ANDROID_NDK_HOME or $ANDROID_NDK_ROOT.",
)
@click.option(
    "--trace", is_flag=True, help="Make XNNPACK log its kernels, for `sme2 kernel-log`. Never for times."
)
@click.option(
    "--dry-run", is_flag=True, help="Print commands, presets and what would stop the build; build nothing."
)
@json_option
@click.pass_obj
def build_runner(
    store: Store,
    checkout: Path | None,
    platform: str | None,
    ndk: Path | None,
    trace: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Build the runner of the installed ExecuTorch or, with --source, a pair of runners from sources.

    The installed one serves both arms: for the arm without SME2, SME2 is masked from the process. `sme2
    profile` builds it if it is missing.

    From a checkout the runner is built twice, with SME2 and without. The two builds may differ only in
    XNNPACK's SME switches, and only the one with SME2 may contain SME kernels. Both are checked after the
    build; if either does not hold, the command fails and says what differs.
    """
    if checkout is None:
        for option, given in (("--ndk", ndk), ("--trace", trace), ("--dry-run", dry_run)):
            if given:
                raise click.UsageError(f"{option} {_OF_A_CHECKOUT}.")
        _build_installed(store, platform, as_json)
        return
    if platform is None or platform not in _PLATFORMS:
        raise click.UsageError(f"--source needs --platform: one of {', '.join(_PLATFORMS)}.")
    _build_from_checkout(store, checkout, platform, ndk, trace, dry_run, as_json)


def _build_installed(store: Store, platform: str | None, as_json: bool) -> None:
    """The runner of each platform: one binary for both arms, from the cache where nothing has changed."""
    from sme2_assets.errors import TargetUnavailable
    from sme2_assets.runner.bundle import runner_for
    from sme2_assets.targets import PLATFORMS, open_target

    targets = {
        name: open_target(name, store, "any" if name == "android" else None)
        for name in ([platform] if platform else PLATFORMS)
    }
    if platform:
        targets[platform].require("off")
    there = {name: target for name, target in targets.items() if target.availability("off").ok}
    if not there:
        raise TargetUnavailable("No platform works here.", "Run `sme2 doctor`, which says what is missing.")
    built = {}
    with status_line("building") as log:
        for name, target in there.items():
            built[name] = runner_for(target, store, log=log)
    if as_json:
        facts = ("sha256", "executorch_version", "compiler", "build_seconds", "cached")
        print_json(
            {
                name: {"path": str(it.path), **{fact: getattr(it, fact) for fact in facts}}
                for name, it in built.items()
            }
        )
        return
    for name, it in built.items():
        how = "from the cache" if it.cached else f"built in {it.build_seconds:.0f} s"
        text = f"{name}: {it.path} (ExecuTorch {it.executorch_version}, {how})"
        say(text)


def _build_from_checkout(
    store: Store, checkout: Path, platform: str, ndk: Path | None, trace: bool, dry_run: bool, as_json: bool
) -> None:
    from sme2_assets.runner.pairs import kernel_fault, record_faults
    from sme2_assets.runner.source_build import SourceRequest, build_pair

    request = SourceRequest.of(checkout, platform, ndk=ndk, trace=trace)
    if dry_run:
        _print_plan(store, request, as_json)
        return
    built = build_pair(store, request, log=tell)
    faults = record_faults(built["on"], built["off"])
    faults += [
        f"{binary.path}: {fault}"
        for sme2, binary in built.items()
        if (fault := kernel_fault(binary, sme2)) is not None
    ]
    _print_built(built, faults, as_json)
    if faults:
        sys.exit(1)


def _print_built(built: dict[str, RunnerBinary], faults: list[str], as_json: bool) -> None:
    if as_json:
        facts: dict[str, Any] = {
            sme2: {
                "path": str(binary.path),
                "sha256": binary.sha256,
                "pair": binary.pair,
                "cached": binary.cached,
            }
            for sme2, binary in built.items()
        }
        print_json({**facts, "faults": faults})
        return
    for sme2, binary in built.items():
        say(f"SME2 {sme2}: {binary.path}")
    for fault in faults:
        say(f"not usable as a pair: {fault}", "red")
    if not faults:
        say("A pair: the two differ in the SME switches alone.")


def _print_plan(store: Store, request: SourceRequest, as_json: bool) -> None:
    from sme2_assets.runner.source_build import PRESETS_NAME, build_steps, problems

    work = store.artifacts / "runners" / ".source-..."
    steps = {sme2: list(build_steps(request, sme2, work)) for sme2 in ("off", "on")}
    presets, found = request.native_dir / PRESETS_NAME, problems(request)
    if as_json:
        print_json(
            {
                "presets": json.loads(presets.read_text(encoding="utf-8")),
                "commands": {sme2: [command for _, command in each] for sme2, each in steps.items()},
                "problems": [{"what": problem.what, "remedy": problem.remedy} for problem in found],
            }
        )
        return
    click.echo(f"{presets}:\n{presets.read_text(encoding='utf-8')}")
    for sme2, each in steps.items():
        click.echo(f"SME2 {sme2}:")
        for title, command in each:
            click.echo(f"  # {title}\n  {shlex.join(command)}")
        click.echo()
    for problem in found:
        click.echo(f"Would stop the build: {problem}\n")
