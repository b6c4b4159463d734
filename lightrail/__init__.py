"""LightRail: an AMQP 1.0 broker cluster."""

__version__ = "0.1.0"
