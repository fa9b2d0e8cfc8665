"""Experiment files: what a person wants measured, written down once and measured again at will.

Belongs here: the schema of the files, how they are read, checked, planned and run, and how the public
kit's configurations become such files. Does not: how anything is measured (that is `launch`, which runs the
same assets as everything else) and how results are printed (`cli`).
"""
