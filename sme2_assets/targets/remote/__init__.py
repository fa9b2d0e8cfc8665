"""A device behind any transport: adb and ssh are the two.

`connection` is the transport: run, hold, push, pull, and the errors when it fails; `script` has the shell
programs that run on the device, and how a command is quoted. `facts` asks a device what it is, `workspace`
sends files and runs commands, `target` builds sessions from these. What is specific to one kind of device is
in its own package: `android/`, `ssh/`.

On a device everything is in one folder:

    store/<sha256>            every file that was ever sent, under the hash of its content
    programs/<sha256>/        links into the store, under the names that a program's files must have
    sessions/<machine>/       of one machine, because several may share a folder:
        <name>/files/         what commands of one session write; gone when the session ends
        <number>              whose turn it is: a link to the session that holds the machine, or held it last

A session is held by a process on the device whose standard input is ours. When we end, die or lose the
device, it removes the session's folder. So no file of an earlier session can be mistaken for a current one.
"""
