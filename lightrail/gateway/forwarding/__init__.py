"""Forwarding: sends messages of one queue to another name or to a URL, at least once."""
