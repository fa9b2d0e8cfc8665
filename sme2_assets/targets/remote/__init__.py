"""A device behind any transport: adb and ssh are the two.

`connection` is the transport: run, hold, push, pull, and the errors when it fails; `scripts/` has the shell
programs that run on the device. `facts` asks a device what it is, `workspace`
sends files and runs commands, `target` builds sessions from these. What is specific to one kind of device is
in its own package: `android/`, `ssh/`.

On a device everything is in one folder:

    lock                      whoever holds it measures; it says which session that is
    store/<sha256>            every file that was ever sent, under the hash of its content
    programs/<sha256>/        links into the store, under the names that a program's files must have
    sessions/<name>/files/    what commands of the session write; gone when it ends

The lock is held by a shell on the device whose standard input is ours. When we end, die or lose the device,
it removes the session's folder and ends, and the kernel frees the lock. So no file of an earlier session can
be mistaken for a current one.
"""
