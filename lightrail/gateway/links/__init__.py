"""Links to shards: producers, consumers, routers' lanes and requests, and the messages that they carry."""
