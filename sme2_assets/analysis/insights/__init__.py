"""Insights: what the rows of a run say about where to go next, ranked by the time that could be won.

Conclusions from rows of the warehouse's views belong here, each with its evidence and with what it
rules out. Reasons and ceilings are not judged here: they are read from `missed_sme2` and `headroom`.

A win is an upper bound: the time that would be saved if the thing took none. Wins of several insights
overlap and do not add up. Emulated times mean nothing: an emulated run has insights about kernels but
not about time. A reference, native on another instruction set, has insights about time but none about
SME2. A projection is not a measurement: it has no win and is ranked after everything else.
"""
