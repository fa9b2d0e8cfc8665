"""Programs for aarch64 on a host of another CPU, started as if it were theirs.

The kernel hands them to the emulator while tests run, as it does where a distribution's package for that is
installed. Nothing stays behind: what told the kernel so takes it back as soon as the tests end, or die.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sme2_assets.runner.bundle import host_is_target
from sme2_assets.toolchain.qemu import Qemu, _question

#: The emulated CPU of a device: one without SME, like most phones.
CPU = "neoverse-n1"
FEATURES = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
)
_CPUINFO = """\
processor\t: {number}
BogoMIPS\t: 243.75
Features\t: {features}
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""
# Of an ELF file: 64 bits, little-endian, any system; a program or a shared library (2 or 3); for aarch64.
_MAGIC = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xb7\x00"
_MASK = b"\xff" * 7 + b"\x00" + b"\xff" * 8 + b"\xfe\xff\xff\xff"

# In mounts of its own. Its standard input ends when the tests do, however they end.
_KEEP = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def checked(code):
    if code != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
folder, name, rule = sys.argv[1:]
checked(libc.unshare(0x00020000))
checked(libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None))
checked(libc.mount(b"binfmt_misc", folder.encode(), b"binfmt_misc", 0, None))
with open(os.path.join(folder, "register"), "w") as register:
    register.write(rule)
print("ready", flush=True)
sys.stdin.read()
with open(os.path.join(folder, name), "w") as entry:
    entry.write("-1")
"""


def cpuinfo(cpus: int) -> str:
    """What /proc/cpuinfo of such a device says."""
    return "".join(_CPUINFO.format(number=number, features=FEATURES) for number in range(cpus))


def aarch64_programs_start() -> bool:
    """Whether this host starts a program for aarch64, by itself or because it was told how."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program"
        program.write_bytes(_question())
        program.chmod(0o755)
        try:
            subprocess.run([str(program)], check=False)
        except OSError:
            return False
    return True


@contextlib.contextmanager
def aarch64_programs(qemu: Qemu) -> Iterator[None]:
    """This host starts programs for aarch64; as root alone, where it does not by itself.

    Each process of tests tells the kernel for itself: what another one told it ends with that one.
    """
    if host_is_target():
        yield
        return
    with tempfile.TemporaryDirectory(prefix="sme2-") as folder:
        name = f"sme2-tests-{os.getpid()}"
        # The kernel takes no long path.
        interpreter = Path(folder) / "qemu"
        interpreter.symlink_to(qemu.path)
        mounted = Path(folder) / "kernel"
        mounted.mkdir()
        # F: opened now, so that it is found wherever a program is started.
        rule = f":{name}:M::{_escaped(_MAGIC)}:{_escaped(_MASK)}:{interpreter}:F"
        keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _KEEP, str(mounted), name, rule],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # An interrupt from the keyboard is for the tests, not for what tidies up after them.
            start_new_session=True,
        )
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        try:
            if keeper.stdout.readline() != "ready\n" and not aarch64_programs_start():
                raise OSError(
                    f"the kernel takes no emulator for aarch64: {keeper.stderr.read().strip()}. In a chroot, "
                    "mount its folder onto itself before entering it: / has to be a mount point."
                )
            yield
        finally:
            keeper.communicate()


def _escaped(content: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in content)
