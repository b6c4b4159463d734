"""Requests of frontends and gateways: figures, peeking, locks, sessions, the journal."""
