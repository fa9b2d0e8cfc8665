from sme2_assets_tests.archive.make import make

make()
