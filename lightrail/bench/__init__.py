"""``lightrail bench``: a load generator for any AMQP 1.0 broker, on python-qpid-proton's C engine."""
