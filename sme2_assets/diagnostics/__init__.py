"""Whether things are as they should be: this machine, a model, an experiment file, a run, the whole chain.

Belongs here: which steps are taken and in what order, each with its cause and remedy if it fails. All
of them go through `steps.Checkup`. Does not: the work behind a step, which is in other rooms; printing (cli).
"""
