"""Connections to shards: greeting, heartbeats, links and requests."""
