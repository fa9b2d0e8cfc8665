"""Files that people write (experiments, the inventory of devices): plain data, and what is wrong with them.

Belongs here: turning bytes into data with the line of every key, problems and where they are. Does not: what
the data mean.
"""
