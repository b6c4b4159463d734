"""The format of the journal, shared by the shard that writes it and all programs that read it."""
