"""Dagster and nothing else: assets, checks, partitions, jobs, the nights, sensors, resources.

Wiring only: the work is in the rooms below. `definitions.py` puts it together.
"""
