"""Measures what Arm's SME2 matrix unit does for ExecuTorch models, as a Dagster data platform."""

__version__ = "0.1.0"
