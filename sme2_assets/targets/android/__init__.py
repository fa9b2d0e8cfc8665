"""Android devices over adb: which one is meant, and what only they have.

`adb` is the program, `device` the transport over it; `power` sets power modes; `choice` and `pool` decide
which device is meant; `target` measures there; `inventory` says what is connected. Files are below
`/data/local/tmp/sme2` unless SME2_ANDROID_ROOT names another folder. All the rest is that of any remote
device: `remote/`.
"""
