"""Conventions: the names of routers and queues for messages, subscriptions and schedules."""

from dataclasses import dataclass

from lightrail.bus.messages import MessageType


@dataclass(eq=False, repr=False)
class Conventions:
    """Names at the broker. Replace methods in a class of your own to use other ones.

    Args:
        prefix: before all names, as "shop/"; buses that share messages have the same.
    """

    prefix: str = ""

    def event(self, type: MessageType) -> str:
        """Router that an event is published to."""
        return f"{self.prefix}events/{type.wire_name}"

    def command(self, type: MessageType) -> str:
        """Queue that a command or request is sent to."""
        return f"{self.prefix}commands/{type.wire_name}"

    def subscription(self, id: str, type: MessageType) -> str:
        """Queue of a subscription to an event; handlers with the same id share its messages."""
        return f"{self.prefix}subscriptions/{id}/{type.wire_name}"

    def fault(self, type: MessageType) -> str:
        """Router of the faults of a message type."""
        return f"{self.prefix}faults/{type.wire_name}"

    def schedule(self, bus: str) -> str:
        """Queue of the events of a bus that are published later."""
        return f"{self.prefix}schedules/{bus}"
