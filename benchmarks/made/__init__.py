"""Traces and run folders with known content: what benchmarks and tests both measure or read.

Belongs here: what writes such files. Does not: assertions, fixtures of pytest. Tests import from here, and
nothing under `benchmarks/` imports from the tests.
"""
