"""The module in which Spark looks for the data source `lightrail`, which is in lightrail/spark/source.py."""

from lightrail.spark.source import LightRailSource as DefaultSource

__all__ = ["DefaultSource"]
