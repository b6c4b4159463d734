"""The data pipeline on Spark: the journal as a data source, a sink, and jobs.

Needs the extra `lightrail[spark]`.
"""
