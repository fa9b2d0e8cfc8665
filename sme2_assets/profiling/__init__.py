"""Measuring: which processes run, in which order, with which inputs, and the record of them.

Belongs here: plans, rounds, passes, the run manifest. Does not: how a command reaches a device
(targets), what the numbers mean (analysis), Dagster.
"""
