"""Decodes a journal's bytes to Arrow record batches; nothing here imports Spark."""
