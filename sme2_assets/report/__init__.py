"""What people look at: tables, pictures, the report.

Belongs here: turning rows of the warehouse into text and pictures. Does not: computing them.
"""
