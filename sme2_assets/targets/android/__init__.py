"""Android devices over adb: which one to use, and what is specific to Android.

`adb` is the program, `device` the transport over it, and which of the connected devices to use; `power` sets
power modes; `target` measures there. Files are in `/data/local/tmp/sme2` unless SME2_ANDROID_ROOT names
another folder. Everything else is the same for any remote device: `remote/`.
"""
