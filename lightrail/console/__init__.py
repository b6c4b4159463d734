"""Output of commands: results on standard output, progress on standard error, for people and for scripts."""
