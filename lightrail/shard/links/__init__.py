"""Links of clients at their shard: attached, suspended, awaited, resumed; and what senders send."""
