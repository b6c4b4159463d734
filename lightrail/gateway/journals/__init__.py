"""Journals that a gateway reads: from shards, and from an archive on the same machine."""
