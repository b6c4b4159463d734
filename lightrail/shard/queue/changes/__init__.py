"""What commands change: the contents of a queue, outcomes, ways out, restarts, moves."""
