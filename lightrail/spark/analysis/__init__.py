"""Analysis of the archive: tables about queues and shards that Spark computes, and a report of them."""
