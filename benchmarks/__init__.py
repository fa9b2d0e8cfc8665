"""Benchmarks, each beside its peer in the same run. They print tables and assert only that both agree."""
