"""Forwarding: messages of one queue on their way to another name or to a URL, at least once."""
