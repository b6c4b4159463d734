"""Habits of Azure Service Bus's clients: where they differ from AMQP's, and how they administer entities.

Two doors plug into processes: `frontend.py` and `gateway.py`, each with one table of hooks. The rest of these
processes does not know this package (ADR 59).
"""
