"""The door for assistants: a server of the Model Context Protocol over a data folder.

Belongs here: tools and resources, each a few lines around `api.py` and the functions behind it. Does not: how
anything is found out.
"""
