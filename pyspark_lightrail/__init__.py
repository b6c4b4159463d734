"""Where Spark looks for the data source `lightrail` by itself: lightrail/spark/source.py has it."""

from lightrail.spark.source import LightRailSource as DefaultSource

__all__ = ["DefaultSource"]
