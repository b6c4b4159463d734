"""Work beside messaging: spilling to disk, cleaning of the journal, the garbage collector."""
