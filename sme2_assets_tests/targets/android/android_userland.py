"""A small Android userland for the loopback device: shell programs named as Android's, with a state.

The transport, the shell and its commands are real (adb, adbd, mksh, toybox); `settings`, `svc`, `getprop` and
`dumpsys` are simulated, after what phones print. What a real phone does with a setting is not tested by this.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sme2_assets_tests.targets.android.adb_loopback import LoopbackDevice

PROPERTIES = {
    "ro.product.manufacturer": "Acme",
    "ro.product.model": "Phone 9",
    "ro.soc.manufacturer": "Chips",
    "ro.soc.model": "C9000",
    "ro.build.fingerprint": "acme/p9/p9:16/AB1.123/7:user/release-keys",
    "ro.build.version.release": "16",
    "ro.serialno": "SECRET0123",
}
BATTERY = """Current Battery Service state:
  AC powered: false
  USB powered: true
  Wireless powered: false
  Dock powered: false
  Max charging current: 500000
  status: 2
  health: 2
  present: true
  level: 84
  scale: 100
  voltage: 4245
  temperature: 312
  technology: Li-ion
"""
THERMAL = """IsStatusOverride: false
ThermalEventListeners:
\tcallbacks: 4
Thermal Status: 0
Cached temperatures:
\tTemperature{mValue=91.0, mType=0, mName=CPU0, mStatus=3}
HAL Ready: true
Current temperatures from HAL:
\tTemperature{mValue=46.5, mType=0, mName=CPU0, mStatus=0}
\tTemperature{mValue=48.25, mType=0, mName=CPU7, mStatus=0}
\tTemperature{mValue=77.0, mType=1, mName=GPU, mStatus=0}
\tTemperature{mValue=31.2, mType=2, mName=BATTERY, mStatus=0}
Current cooling devices from HAL:
\tCoolingDevice{mValue=0, mType=2, mName=cpu0}
Temperature static thresholds from HAL:
\tTemperatureThreshold{mType=0, mName=CPU0, mHotThrottlingThresholds=[NaN, 95.0]}
"""

_SETTINGS = """\
#!/bin/sh
state={state}
case $1 in
  get) cat "$state/global/$3" 2>/dev/null || echo null ;;
  put) [ -f "$state/refused/$3" ] || printf '%s\\n' "$4" > "$state/global/$3" ;;
  delete) rm -f "$state/global/$3"; echo Deleted 1 rows ;;
esac
"""
# As on Android 12, which knows no dock; it writes the same setting.
_SVC = """\
#!/bin/sh
[ "$1 $2 $3" = "power stayon true" ] || exit 1
echo 7 > {state}/global/stay_on_while_plugged_in
echo woken >> {state}/svc.log
"""
_GETPROP = """\
#!/bin/sh
cat "{state}/properties/$1" 2>/dev/null || echo
"""
_DUMPSYS = """\
#!/bin/sh
[ "$1" = -t ] && shift 2
cat "{state}/dumps/$1" 2>/dev/null || echo "Can't find service: $1"
"""


class Userland:
    """The state of the simulated programs."""

    def __init__(self, loopback: LoopbackDevice) -> None:
        self.loopback = loopback
        self.state = loopback.folder / "android"
        self._programs: list[Path] = []

    def install(self) -> None:
        for folder in ("global", "refused", "properties", "dumps"):
            (self.state / folder).mkdir(parents=True, exist_ok=True)
            for old in (self.state / folder).iterdir():
                old.unlink()
        for name, text in (
            ("settings", _SETTINGS),
            ("svc", _SVC),
            ("getprop", _GETPROP),
            ("dumpsys", _DUMPSYS),
        ):
            program = self.loopback.folder / "bin" / name
            program.write_text(text.format(state=self.state))
            program.chmod(0o755)
            self._programs.append(program)
        for name, value in PROPERTIES.items():
            (self.state / "properties" / name).write_text(value + "\n")
        self.dump("battery", BATTERY)
        self.dump("thermalservice", THERMAL)

    def remove(self) -> None:
        for program in self._programs:
            program.unlink(missing_ok=True)

    def dump(self, service: str, text: str) -> None:
        (self.state / "dumps" / service).write_text(text)

    def put(self, **settings: str) -> None:
        for name, value in settings.items():
            (self.state / "global" / name).write_text(value + "\n")

    def refuse(self, name: str) -> None:
        (self.state / "refused" / name).touch()

    def settings(self) -> dict[str, str]:
        return {file.name: file.read_text().strip() for file in sorted((self.state / "global").iterdir())}


@pytest.fixture
def android_userland(loopback_device: LoopbackDevice) -> Iterator[Userland]:
    """The loopback device with the simulated programs."""
    userland = Userland(loopback_device)
    userland.install()
    yield userland
    userland.remove()
