"""The evidence of a run: its folder, and the format of every file in it.

A run folder is written once and never changed; every table, report and comparison can be made from it
again. Each file carries the version of its format, and every version that was ever written stays readable.

Imports nothing above it: no Dagster, no torch, no DuckDB. What the rows of a table are is the matter of
`warehouse`, what they mean that of `analysis`.
"""
