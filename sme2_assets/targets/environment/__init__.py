"""The state of the measuring machine: who else uses its CPUs, how fast and how hot they are.

Belongs here: reading it without privileges, flagging what may spoil a measurement, waiting for quiet. Does
not: deciding whether a measurement counts (analysis, checks), asking a device (android), whose answers are
read by the same functions from copies of its files.

Linux is read from `/proc` and `/sys`. Elsewhere (macOS) `ps`, `pmset` and `notifyutil` are used; that is best
effort and has not been tested on a Mac. Whatever cannot be read is None, never a guess.
"""
