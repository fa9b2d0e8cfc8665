"""The pictures of reports: what is drawn of which rows, and how a drawing becomes a file or part of a page.

Belongs here: specifications of Vega and Vega-Lite as plain data. Each function takes rows of the warehouse
and gives the pictures that can be made of them with titles and captions; none where rows are missing or their
times mean nothing. Times are drawn of hardware alone: not of an emulator, not of another instruction set.
"""
