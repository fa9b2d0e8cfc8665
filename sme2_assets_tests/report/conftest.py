from sme2_assets_tests.warehouse.conftest import paired, warehouse

__all__ = ["paired", "warehouse"]
