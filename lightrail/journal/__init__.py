"""The journal as its bytes: what the shard that writes it and everybody who reads it share."""
