"""Traces and run folders with known content: what tests and benchmarks both measure or read.

Belongs here: what writes such files, and the documented questions that both ask. Does not: assertions,
fixtures of pytest.
"""
