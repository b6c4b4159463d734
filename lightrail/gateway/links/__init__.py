"""Links to shards: producers, consumers, lanes of routers and requests, and the messages that they carry."""
