"""The evidence of a run: its folder, and the format of every file in it.

A run folder is written once and never changed; every table, report and comparison can be made from it
again. Each file carries the version of its format, and every version ever written stays readable.

Imports nothing above it: no Dagster, no torch, no DuckDB. `warehouse` decides what the rows of a table are,
`analysis` what they mean.
"""
