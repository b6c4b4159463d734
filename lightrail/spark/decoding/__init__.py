"""A journal's bytes as Arrow record batches: no Spark in here."""
