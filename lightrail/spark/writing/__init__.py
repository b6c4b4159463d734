"""The sink: rows become numbered batches of messages; replay sends archived messages again."""
