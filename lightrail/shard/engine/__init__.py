"""One turn of a shard: frames are received, queues are dispatched, and a value says what to do next."""
