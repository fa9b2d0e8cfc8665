"""`python -m sme2_assets.cli` is `sme2`."""

from sme2_assets.cli import main

main(prog_name="sme2")
