"""Couriers: what takes messages from one queue and brings them somewhere else, at least once."""
