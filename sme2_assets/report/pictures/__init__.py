"""The pictures of reports: what is drawn from which rows, and how a drawing becomes a file or part of a page.

Belongs here: specifications for Vega and Vega-Lite as plain data. Each function takes rows of the warehouse
and returns the pictures that can be made from them, with titles and captions; none if rows are missing or
their times mean nothing. Times are drawn for hardware only, not for an emulator or another instruction set.
"""
