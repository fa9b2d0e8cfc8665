"""The door for assistants: a Model Context Protocol server over a data folder.

Belongs here: tools and resources, each a few lines around `api.py` and the functions behind it. Does not: how
anything is worked out.
"""
