"""The client of shards: how frontends, gateways, and shards that move queues reach the shards."""
