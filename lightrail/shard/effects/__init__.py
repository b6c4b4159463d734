"""What queues decide, carried out: frames to peers, records of the journal, answers after commits."""
