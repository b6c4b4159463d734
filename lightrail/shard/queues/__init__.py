"""The queues of a shard: their names, owners, numbers, deadlines and memory."""
