"""The sink: rows become numbered batches of messages; replay sends old ones again."""
