"""Files that people write (experiments, the inventory of devices): plain data, and what is wrong with them.

Belongs here: bytes to data with the line of every key, problems with their places. Does not: what the data
mean.
"""
