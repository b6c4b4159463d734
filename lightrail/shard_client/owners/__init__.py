"""Owners: the links of each queue, at the shard that owns the queue now."""
