"""How the Dagster UI is served: Dagster's own programs, behind a check of who asks."""
