"""Links on which clients receive from a queue: their states, deliveries in the store, and how they resume."""
