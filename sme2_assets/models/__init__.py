"""Models: which ones exist, how each is built, and how a variant becomes a .pte.

`registry` and `artifact` know names, files and hashes and do not import torch: the Dagster definitions and
the command line read them all the time. The model modules and `export` are the only code in the product
that imports torch and ExecuTorch's Python packages, and only when something is actually exported.
"""
