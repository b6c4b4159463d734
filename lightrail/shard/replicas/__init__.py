"""Laws of a shard whose journal several members have, each on its own disk: pure, no sockets, no threads."""
