"""The gate: what is lost is found, what is not is not."""
