"""The readers of the data source: options, offsets, planning and tasks."""
