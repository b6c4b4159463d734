"""Durability of a terminus: what of its state is stored durably (terminus-durability, messaging 3.5.5)."""

from enum import IntEnum


class Durability(IntEnum):
    """The values of the specification."""

    NONE = 0
    CONFIGURATION = 1
    """That the terminus exists, and for how long."""
    UNSETTLED_STATE = 2
    """Its unsettled deliveries as well."""
