"""Values of a queue: commands and effects, runs of messages, the policy, budgets and counters."""
