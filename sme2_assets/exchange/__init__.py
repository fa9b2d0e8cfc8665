"""What comes in from other tools, and what goes out to them.

What belongs here: traces that were made elsewhere as runs of the warehouse (`foreign`), and a run as files
for other tools: tables (`tables`), summaries in the public kit's form (`summaries`), a trace for the Perfetto
UI (`slices`, `perfetto`), all of them written as one folder (`export`).
What does not: measuring, and verdicts. Those that stand in a file are the warehouse's.
"""
