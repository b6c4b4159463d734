"""Sockets between the processes of a cluster: `Wiring` makes them, by ZeroMQ or on the event loop."""
