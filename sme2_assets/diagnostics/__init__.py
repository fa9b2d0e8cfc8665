"""Whether things are as they should be: this machine, a model, an experiment file, a run, the whole way once.

Belongs here: which steps are taken and in which order, each with its cause and remedy if it fails. All
of them go through `steps.Checkup`. Does not: the work behind a step, which other rooms do; printing (cli).
"""
