"""What the measurements mean: pure functions on columns.

Belongs here: categories, statistics, comparisons, numerics. One place for each notion; SQL views,
report, UI and command line show what is computed here. Does not: files, devices, Dagster, torch.
"""
