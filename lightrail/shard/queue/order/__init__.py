"""Which message is next: the order of a queue, its groups and sessions, and the deliveries to consumers."""
