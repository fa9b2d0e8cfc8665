"""Devices of tests that are this machine: a relay on loopback between a client and a daemon.

The relay is how a connection is cut.
"""

from __future__ import annotations

import contextlib
import platform
import secrets
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path


def free_port() -> int:
    """Of those that no outgoing connection is given: it stays free while nobody listens, as at a restart."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Relayed(ABC):
    """A daemon behind a relay, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        self._daemon: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self._address = ("127.0.0.1", self.port)
        self._listener = socket.create_server(self._address)
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        # Connections of which the device alone believes that they are there.
        self._unnoticed: list[socket.socket] = []
        threading.Thread(target=self._relay, args=(self._listener,), daemon=True).start()

    @abstractmethod
    def _to_daemon(self) -> socket.socket:
        """A connection to the daemon."""

    def _run_daemon(self, name: str, words: Sequence[str]) -> None:
        """Starts the daemon and waits until it takes connections."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            self._daemon = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        deadline_s = time.monotonic() + 120
        while True:
            try:
                self._to_daemon().close()
                break
            except OSError as error:
                if self._daemon.poll() is not None or time.monotonic() > deadline_s:
                    raise OSError(f"{name} does not run ({error}): {log.read_text()[-500:]}") from error
                time.sleep(0.02)
        self._listen_again()

    def _fake_uname(self, here: str) -> None:
        """A `uname` that says what a test wrote, and else `here` where this machine says another CPU."""
        fake, told = self.folder / "bin" / "uname", self.folder / "machine"
        asked = f'/bin/uname "$@" | sed "s/{platform.machine()}/{here}/"'
        fake.unlink(missing_ok=True)
        fake.write_text(f'#!/bin/sh\n[ -f {told} ] && [ "$1" = -m ] && exec cat {told}\n{asked}\n')
        fake.chmod(0o755)

    def say_machine(self, name: str | None) -> None:
        """What `uname -m` answers on this device."""
        told = self.folder / "machine"
        told.unlink(missing_ok=True)
        if name is not None:
            told.write_text(name + "\n")

    def note(self) -> Path:
        """A file that is not there yet, where this host and the device's user can write."""
        folder = self.folder / "notes"
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
        return folder / secrets.token_hex(4)

    def _listen_again(self) -> None:
        if self._listener.fileno() < 0:
            self._listener = socket.create_server(self._address)
            threading.Thread(target=self._relay, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Every connection breaks; device and server stay."""
        pairs, self._pairs = self._pairs, []
        for end in (end for pair in pairs for end in pair):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def vanish(self) -> None:
        """Our end of every connection breaks and the device does not notice, as when Wi-Fi is gone."""
        pairs, self._pairs = self._pairs, []
        self._unnoticed += [far for _, far in pairs]
        for near, _ in pairs:
            with contextlib.suppress(OSError):
                near.shutdown(socket.SHUT_RDWR)

    def _unlisten(self) -> None:
        # Closed alone, a socket that a thread waits on goes on taking connections.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _relay(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = self._to_daemon()
            except OSError:
                near.close()
                continue
            self._pairs.append((near, far))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for end in (source, sink):
            if end not in self._unnoticed:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
