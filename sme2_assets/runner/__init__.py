"""The native runner: its C++ sources (`native/`), its build (`build.py`) and its result file (`result.py`).

Belongs here: whatever turns the installed ExecuTorch wheel into the `sme2_runner` binary, and whatever knows
the binary's flags, exit codes and JSON. Does not belong here: where the binary runs (`targets/`), how often
and in which order (`profiling/`). Nothing in this room imports torch, executorch or Dagster.
"""
