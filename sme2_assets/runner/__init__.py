"""The native runner: its C++ sources (`native/`), its build (`build.py`) and its result file (`result.py`).

Belongs here: everything that turns the installed ExecuTorch wheel into the `sme2_runner` binary, and
everything that knows the binary's flags, exit codes and JSON. Does not: where the binary runs (`targets/`),
how often and in which order (`profiling/`). Nothing in this package imports torch, executorch or Dagster.
"""
