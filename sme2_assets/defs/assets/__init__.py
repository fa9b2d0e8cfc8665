"""The assets: wiring only.

An asset function reads what it needs, calls one plain function, and attaches what people want to see
in the UI. No SQL beyond a line, no parsing and no subprocess here.
"""
