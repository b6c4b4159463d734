"""Journals as a gateway reads them: from shards, and from an archive on its own machine."""
