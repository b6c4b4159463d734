"""Before a shard serves: its directory, its number, its store."""
