"""The lake: a Delta table of the rows of the journals, and a ledger that says which records it covers.

    TABLE/_delta_log/                                   commits of the rows
    TABLE/queue_slug=Q/date=D/hour=H/part-….parquet     the rows
    TABLE/_lightrail/coverage/                          the ledger, another Delta table
    TABLE/_lightrail/checkpoint/                        Spark's progress: begun and ended batches

Drawn in docs/formats/lake.md.
"""
