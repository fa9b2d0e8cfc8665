"""What comes in from other tools, and what goes out to them.

What belongs here: traces made elsewhere as runs of the warehouse (`ingest`), and a run as files for other
tools: tables (`tables`), summaries in the public kit's form (`summaries`), a trace for the Perfetto UI
(`slices`, `perfetto`), all of them written as one folder (`export`).
What does not: measuring, and verdicts. Verdicts in exported files are the warehouse's.
"""
