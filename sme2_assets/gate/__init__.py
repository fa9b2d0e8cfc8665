"""The gate: does a change to a model lose anything on the SME unit?

Belongs here: the baseline file, what a measured run puts into it, and how two of them are compared. Does not:
measuring (launch) and printing (cli).
"""
