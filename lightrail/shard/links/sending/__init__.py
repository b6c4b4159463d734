"""Links on which clients send to a queue: attaches, numbers of batches, and termini that outlive the link."""
