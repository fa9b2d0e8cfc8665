"""How the runner fails: exit codes, and messages on stderr. The codes mirror `native/src/failure.h`."""

from __future__ import annotations

import re
import signal

from sme2_assets.errors import RunnerError

_REPORT = "This is a defect: please report it with the log."
# ExecuTorch checks less of a program than it relies on.
_CRASH = (
    "If the .pte came from somewhere else it may be damaged or hostile: export the model again. If you "
    "exported it here, please report it with the log."
)

EXIT_MEANINGS: dict[int, tuple[str, str]] = {
    2: ("The runner was called with wrong flags", "See sme2_runner --help for its flags."),
    3: ("The model is missing, broken or lacks the method", "Export the model again."),
    4: ("The inputs do not fit the model", "Export the model again: its inputs are written with it."),
    5: ("The inference failed", "Look at the log lines of the runner."),
    6: ("The model gave NaN or infinity", "Check the model at this precision: fp16 overflows above 65504."),
    7: ("The runner could not write its files", "Check that the folder is writable and the disk has space."),
    8: (
        "The event tracer recorded nothing",
        "Install executorch 1.5.1 or newer: its runtime has one.",
    ),
    9: ("The sampler could not be started", "Leave the kernels pass out, or allow timers and signals there."),
    126: (
        "The runner could not be started",
        "Check that the binary is executable and built for this machine.",
    ),
    127: ("The runner or one of its libraries was not found", "Build the runner again."),
}

_SIGNAL_MEANINGS: dict[int, tuple[str, str]] = {
    signal.SIGILL: (
        "The runner met an instruction that this CPU (or emulator) does not have",
        "Update the emulator (QEMU 10.1 or newer has SME2), or run with SME2 off.",
    ),
    signal.SIGSEGV: ("The runner crashed on a bad memory access", _CRASH),
    signal.SIGBUS: ("The runner crashed on a bad memory access", _CRASH),
    signal.SIGABRT: (
        "The runner gave up on a failed check inside ExecuTorch",
        "Look at the log lines of the runner.",
    ),
    signal.SIGFPE: ("The runner crashed on an arithmetic error", _CRASH),
    signal.SIGXFSZ: ("The runner wrote a file beyond the limit of 4 GiB", "Ask for fewer iterations."),
    signal.SIGKILL: (
        "The runner was killed from outside, most likely because memory ran out",
        "Use a smaller model or a machine with more memory.",
    ),
    signal.SIGTERM: ("The runner was asked to stop", "Run it again."),
    signal.SIGINT: ("The runner was interrupted", "Run it again."),
}

# What the loader says about a runner that was built for a different system from the one it was sent to.
_LOADER_WORDS = re.compile(r"version `GLIBC[\w.]*' not found|error while loading shared libraries")
_OTHER_LIBRARIES = (
    "The runner needs libraries that this machine does not have, or newer ones",
    "Measure with `--runner wheel`, which brings its own, or build the runner on a machine like this one.",
)

_ERROR_PREFIX = "sme2_runner: error: "
# The first lines say what went wrong, the last ones what resulted from it.
_FIRST_LINES, _LAST_LINES = 5, 3
# ExecuTorch's log lines below error level: "I 00:00:00.000704 executorch:...", and those that only list the
# arguments of an operator.
_CHATTER = re.compile(r"(?:[DI] \d\d:\d\d:\d\d\.\d+ executorch:|.*\barg \d+ with type id \d+)")


def runner_failure(returncode: int, stderr: str) -> RunnerError:
    """The error to show, from the exit code (or signal) and all of stderr."""
    meaning, remedy = _OTHER_LIBRARIES if _LOADER_WORDS.search(stderr) else _meaning(returncode)
    lines = [line for line in stderr.splitlines() if line.strip()]
    said = [line.removeprefix(_ERROR_PREFIX) for line in lines if line.startswith(_ERROR_PREFIX)]
    what = f"{meaning} (exit code {returncode})" if returncode >= 0 else f"{meaning} (signal {-returncode})"
    if said:
        message, _, own_remedy = said[-1].partition("; ")
        what = f"{what}: {message}"
        remedy = own_remedy or remedy
    log = [line for line in lines if not line.startswith(_ERROR_PREFIX) and not _CHATTER.match(line)]
    if log:
        left_out = len(log) - _FIRST_LINES - _LAST_LINES
        if left_out > 0:
            log = [*log[:_FIRST_LINES], f"... ({left_out} more lines)", *log[-_LAST_LINES:]]
        what += "\n  Log of the runner:\n" + "\n".join(f"    {line}" for line in log)
    return RunnerError(what, remedy)


def _meaning(returncode: int) -> tuple[str, str]:
    if returncode in EXIT_MEANINGS:
        return EXIT_MEANINGS[returncode]
    # A negative code is how subprocess reports a signal; 128 + n is how a shell does (and so adb).
    number = -returncode if returncode < 0 else returncode - 128
    if number in _SIGNAL_MEANINGS:
        return _SIGNAL_MEANINGS[number]
    return "The runner failed in a way it does not explain", _REPORT
