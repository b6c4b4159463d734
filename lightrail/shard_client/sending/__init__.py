"""What senders have at shards: windows of unanswered batches, and lanes."""
