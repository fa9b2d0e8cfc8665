"""Android devices over adb: which one is meant, and how a session uses it.

`adb` and `device` speak to a device; `facts` and `power` ask what it is and set its power mode; `choice` and
`pool` decide which one is meant; `workspace` and `target` measure there; `inventory` says what is connected.

On the device everything is below one folder, `/data/local/tmp/sme2` unless SME2_ANDROID_ROOT names another:

    store/<sha256>            every file that was ever sent, under the hash of its content
    programs/<sha256>/        links into the store, under the names that a program's files must have
    sessions/<name>/files/    what commands of one session write; gone when the session ends
    current                   the session that holds the device

A session is held by a process on the device whose standard input is ours. When we end, die or lose the
device, it removes the session's folder. So no file of an earlier session can be mistaken for one of this.
"""
