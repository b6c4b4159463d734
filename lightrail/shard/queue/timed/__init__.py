"""What ends at a time: locks, expiry, the window of duplicates, waits after failures; what is set aside."""
