"""Where Spark looks for the data source `lightrail` by itself: lightrail/spark/source.py has it."""
