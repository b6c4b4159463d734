"""What is in memory and what on disk: eviction, spilling, reading back."""
