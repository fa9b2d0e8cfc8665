"""Dagster and nothing else: assets, checks, partitions, jobs, the nights, sensors, resources.

Wiring only: what is done is in the rooms below. `definitions.py` puts it together.
"""
