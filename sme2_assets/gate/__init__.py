"""The gate: does a change of a model lose anything on the SME unit?

Belongs here: the baseline file, what a measured run puts into it, and what tells two of them apart. Does not:
measuring (launch) and printing (cli).
"""
