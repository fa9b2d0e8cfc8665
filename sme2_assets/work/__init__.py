"""What a run executed, counted instruction by instruction.

Belongs here: counting under the emulator, classes of instructions, and which operator they belong to. Does
not: what follows from it (analysis).
"""
