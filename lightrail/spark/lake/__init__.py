"""The lake: a Delta table of the rows of the journals, and a ledger that says which records it covers.

    TABLE/_delta_log/                                   commits of the rows
    TABLE/queue_slug=Q/date=D/hour=H/part-….parquet     the rows
    TABLE/_lightrail/coverage/                          the ledger, a Delta table of its own
    TABLE/_lightrail/checkpoint/                        where Spark notes what it has begun and done

Drawn in docs/formats/lake.md.
"""
