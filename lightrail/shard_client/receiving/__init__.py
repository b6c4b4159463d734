"""What receivers have at shards: windows of deliveries, and consumers."""
