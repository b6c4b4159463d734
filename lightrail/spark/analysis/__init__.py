"""What the archive says about queues and shards: tables that Spark computes, and a report of them."""
