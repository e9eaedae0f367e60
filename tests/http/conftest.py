"""The HTTP server of a test's database."""

from tests.iceberg.conftest import data_path, duck, lake

__all__ = ["data_path", "duck", "lake"]
