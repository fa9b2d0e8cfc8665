"""A real Android debug daemon on this machine, as the device that tests talk to.

Debian's adbd and adb, extracted from their packages and run by their own loader: nothing is installed. As on
a phone, the shell is mksh and the usual commands are toybox's. On a host of another CPU these are programs of
the host, while the device says that it is aarch64 and runs programs for it (foreign_cpu).

The daemon gives a root shell to whoever connects, and listens on every address. So it is put into a network
of its own, and reached through a relay that listens on loopback alone. The relay is also how a connection is
cut.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sme2_assets.errors import Sme2Error
from sme2_assets.runner.bundle import host_is_target
from sme2_assets.targets.android.adb import Adb
from sme2_assets.targets.android.device import Device
from sme2_assets.targets.android.target import AndroidTarget
from sme2_assets.toolchain.debian import fetch_packages
from sme2_assets.toolchain.qemu import Qemu, _fetch_program
from sme2_assets_tests.reach import skip_out_of_reach, skip_where_ci_would_fail
from sme2_assets_tests.targets import foreign_cpu
from sme2_assets_tests.targets.loopback import Relayed, free_port

PACKAGES = ("adb", "adbd", "mksh", "toybox")
SUITES = ("trixie", "forky", "sid")
_PORT = 5555
_NEWNET = 0x40000000

# Run in the daemon's process before it becomes the daemon: dies with the test, has its own network (whose
# loopback has to be switched on) and its own mounts: another /bin/sh, and file systems that are small.
_BECOME_DAEMON = """
import ctypes, fcntl, os, signal, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(1, signal.SIGKILL)
if libc.unshare(0x40000000 | 0x00020000) != 0:
    sys.exit("unshare: " + os.strerror(ctypes.get_errno()))
libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)
asking = socket.socket()
request = struct.pack("16sh14x", b"lo", 0)
flags = struct.unpack("16sh14x", fcntl.ioctl(asking, 0x8913, request))[1]
fcntl.ioctl(asking, 0x8914, struct.pack("16sh14x", b"lo", flags | 1))
folder = sys.argv[1]
for name, options in (("small", b"size=2m"), ("few_files", b"size=200m,nr_inodes=9")):
    path = os.path.join(folder, name)
    os.makedirs(path, exist_ok=True)
    if libc.mount(b"tmpfs", path.encode(), b"tmpfs", 0, options) != 0:
        sys.exit("mount: " + os.strerror(ctypes.get_errno()))
over = [(sys.argv[2], os.path.realpath("/bin/sh"))]
cpuinfo = os.path.join(folder, "cpuinfo")
if os.path.exists(cpuinfo):
    over.append((cpuinfo, "/proc/cpuinfo"))
for ours, theirs in over:
    if libc.mount(ours.encode(), theirs.encode(), None, 0x1000, None) != 0:
        sys.exit("mount: " + os.strerror(ctypes.get_errno()))
os.chdir(folder)
variables = {"PATH": folder + "/bin:/usr/bin:/bin", "ADBD_PORT": "5555", "QEMU_CPU": sys.argv[3]}
os.execve(sys.argv[4], sys.argv[4:], variables)
"""


class LoopbackDevice(Relayed):
    """One daemon in its folder, and the relay to it."""

    def __init__(self, bridge: AdbBridge, folder: Path) -> None:
        super().__init__(folder)
        self.bridge = bridge
        self.root = str(folder / "sme2")
        toybox = bridge.packages / "usr/bin/toybox"
        for name in subprocess.run([toybox], capture_output=True, text=True, check=True).stdout.split():
            (folder / "bin" / name).symlink_to(toybox)
        self._fake_uname("aarch64")
        if not host_is_target():
            (folder / "cpuinfo").write_text(foreign_cpu.cpuinfo(os.cpu_count() or 1))
        self.serial = f"127.0.0.1:{self.port}"

    @property
    def device(self) -> Device:
        return Device(self.bridge.adb, self.serial)

    @property
    def made_by(self) -> str:
        """Python that gives the connection in another process."""
        module = "__import__('sme2_assets.targets.android.{0}', fromlist=['*'])"
        return f"{module.format('device')}.Device({module.format('adb')}.require_adb(), {self.serial!r})"

    def target(self) -> AndroidTarget:
        return AndroidTarget(self.folder, self.serial)

    def say_identity(self, text: str | None) -> None:
        """What tells this device from others: Android's properties."""
        getprop = self.folder / "bin" / "getprop"
        getprop.unlink(missing_ok=True)
        if text is not None:
            getprop.write_text(f"#!/bin/sh\necho {text}\n")
            getprop.chmod(0o755)

    def start(self) -> None:
        """Starts the daemon, when it does not run, and waits until it takes connections.

        From the main thread: the daemon dies with the thread that started it.
        """
        if self._daemon is not None and self._daemon.poll() is None:
            return
        self._run_daemon(
            "adbd",
            [
                *(sys.executable, "-I", "-S", "-c", _BECOME_DAEMON, str(self.folder)),
                *(str(self.bridge.packages / "usr/bin/mksh-static"), foreign_cpu.CPU),
                *self.bridge.program("adbd"),
            ],
        )

    def connect(self) -> None:
        self.bridge.adb.run(["connect", self.serial])
        self.bridge.adb.run(["-s", self.serial, "wait-for-device"])

    def disconnect(self) -> None:
        self.bridge.adb.run(["disconnect", self.serial])

    def kill(self) -> None:
        """The device dies, with everything that runs on it left to itself. Its address is refused then."""
        self._unlisten()
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.wait()

    def close(self) -> None:
        self.disconnect()
        self.kill()
        self.cut()

    def _to_daemon(self) -> socket.socket:
        """A connection made inside the daemon's network: a thread may enter it, a socket stays there."""
        made: list[socket.socket | OSError] = []

        def enter() -> None:
            assert self._daemon is not None
            try:
                with Path(f"/proc/{self._daemon.pid}/ns/net").open() as network:
                    if ctypes.CDLL(None).setns(network.fileno(), _NEWNET) != 0:
                        raise OSError("the daemon's network cannot be entered")
                made.append(socket.create_connection(("127.0.0.1", _PORT)))
            except OSError as error:
                made.append(error)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        if isinstance(made[0], OSError):
            raise made[0]
        return made[0]


class AdbBridge:
    """The client and a server of its own, so that nothing meets a server that is already there."""

    def __init__(self, packages: Path, folder: Path) -> None:
        self.packages = packages
        self.folder = folder
        self._devices: list[LoopbackDevice] = []
        wrapper = folder / "adb"
        words = " ".join(f"'{word}'" for word in self.program("adb"))
        wrapper.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        wrapper.chmod(0o755)
        self.adb = Adb(wrapper)
        self.environment = {"SME2_ADB": str(wrapper), "ADB_SERVER_SOCKET": f"tcp:127.0.0.1:{free_port()}"}
        self._server: subprocess.Popen[bytes] | None = None

    def program(self, name: str) -> list[str]:
        """How one of the packages' programs is started: by their own loader, with their own libraries."""
        loader = next(self.packages.glob("usr/lib/ld-linux-*.so.*"), None) or next(
            self.packages.glob("usr/lib/*-linux-gnu/ld-linux-*.so.*")
        )
        libraries = next(self.packages.glob("usr/lib/*-linux-gnu"))
        program = self.packages / "usr/lib/android-sdk/platform-tools" / name
        return [str(loader), "--library-path", f"{libraries}:{libraries / 'android'}", str(program)]

    def start(self) -> None:
        port = self.environment["ADB_SERVER_SOCKET"].rpartition(":")[2]
        with (self.folder / "server.log").open("ab") as output:
            # HOME: where adb makes its key.
            self._server = subprocess.Popen(
                [str(self.adb.path), "-P", port, "server", "nodaemon"],
                env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL),
            )
        deadline_s = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(port)), timeout=1):
                return
            if time.monotonic() > deadline_s:
                raise OSError(f"adb's server does not run: {(self.folder / 'server.log').read_text()[-500:]}")
            time.sleep(0.02)

    def new_device(self) -> LoopbackDevice:
        device = LoopbackDevice(self, self.folder / f"device_{len(self._devices)}")
        self._devices.append(device)
        device.start()
        return device

    def close(self) -> None:
        for device in self._devices:
            device.close()
        if self._server is not None:
            self._server.kill()
            self._server.wait()


@contextlib.contextmanager
def _bridge(artifacts_dir: Path, qemu: Qemu) -> Iterator[AdbBridge]:
    packages = artifacts_dir / "tools" / "adb"
    fetch_packages(PACKAGES, packages, suites=SUITES, with_dependencies=True, log=print)
    # A socket's path is short, and pytest's own folders are kept after the test.
    folder = Path(tempfile.mkdtemp(prefix="sme2-adb-"))
    bridge = AdbBridge(packages, folder)
    try:
        with foreign_cpu.aarch64_programs(qemu):
            bridge.start()
            bridge.new_device()
            yield bridge
    finally:
        bridge.close()
        shutil.rmtree(folder, ignore_errors=True)


def _namespaces_allowed() -> bool:
    """Whether root may do here what the daemon needs; in a container often not."""
    ask = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x40000000 | 0x00020000) != 0)"
    return subprocess.run([sys.executable, "-I", "-S", "-c", ask], check=False).returncode == 0


@pytest.fixture(scope="session")
def adb_bridge(artifacts_dir: Path, emulator: Qemu) -> Iterator[AdbBridge]:
    """adb with a server of its own, and a first device."""
    if platform.system() != "Linux" or os.geteuid() != 0:
        pytest.skip("a loopback device is this machine: Linux, with adbd running as root")
    if not _namespaces_allowed():
        skip_where_ci_would_fail("no network and mounts of its own for adbd: root's rights are limited here")
    with contextlib.ExitStack() as running:
        try:
            bridge = running.enter_context(_bridge(artifacts_dir, emulator))
        except Sme2Error as error:
            skip_out_of_reach(error)
        yield bridge


@dataclass(frozen=True)
class DevicePrograms:
    """Programs that bring all they need, for the CPU of the device."""

    qemu: Path
    shell: Path


@pytest.fixture(scope="session")
def device_programs(artifacts_dir: Path, adb_bridge: AdbBridge, emulator: Qemu) -> DevicePrograms:
    shell = "usr/bin/mksh-static"
    if host_is_target():
        return DevicePrograms(emulator.path, adb_bridge.packages / shell)
    folder = artifacts_dir / "tools" / "device"
    qemu, _ = _fetch_program(folder / "qemu", architecture="arm64", log=print)
    # The whole package: in some of its versions the shell is a link to another of its files.
    fetch_packages(["mksh"], folder / "mksh", architecture="arm64", suites=SUITES, log=print)
    return DevicePrograms(qemu, folder / "mksh" / shell)


@pytest.fixture
def loopback_device(adb_bridge: AdbBridge, monkeypatch: pytest.MonkeyPatch) -> LoopbackDevice:
    """The only connected device, running and whole."""
    for name, value in adb_bridge.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("ANDROID_SERIAL", raising=False)
    monkeypatch.delenv("SME2_ANDROID_EMULATE", raising=False)
    first, *others = adb_bridge._devices
    for other in others:
        other.disconnect()
    monkeypatch.setenv("SME2_ANDROID_ROOT", first.root)
    first.say_machine(None)
    first.start()
    first.connect()
    return first


@pytest.fixture
def second_device(adb_bridge: AdbBridge, loopback_device: LoopbackDevice) -> LoopbackDevice:
    """Another device beside the first."""
    device = adb_bridge._devices[1] if len(adb_bridge._devices) > 1 else adb_bridge.new_device()
    device.say_machine(None)
    device.start()
    device.connect()
    return device


@pytest.fixture
def emulating_device(
    loopback_device: LoopbackDevice, device_programs: DevicePrograms, monkeypatch: pytest.MonkeyPatch
) -> LoopbackDevice:
    """The device, asked to emulate SME2."""
    monkeypatch.setenv("SME2_ANDROID_EMULATE", "1")
    monkeypatch.setenv("SME2_QEMU", str(device_programs.qemu))
    return loopback_device
