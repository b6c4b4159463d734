"""Plan: the queue of each handler, and the topology at the broker."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lightrail.bus.errors import ConfigurationError
from lightrail.bus.fault import is_fault
from lightrail.bus.handlers import Registration
from lightrail.bus.messages import Conventions, Kind, MessageType
from lightrail.transport import QueueRules, Subscription, Topology


@dataclass(frozen=True, slots=True)
class Planned:
    """A handler of one message type, and its queue."""

    registration: Registration
    type: MessageType
    queue: str


class Plan:
    """The names of one bus.

    Args:
        bus: its name, the default id of subscriptions.
    """

    def __init__(self, bus: str, conventions: Conventions) -> None:
        self._bus = bus
        self._conventions = conventions
        self.schedule: Final = conventions.schedule(bus)
        """Queue of events that are published later."""

    def handlers(self, registrations: Sequence[Registration]) -> list[Planned]:
        """The queue of each handler and message type.

        Raises ConfigurationError for two handlers of one queue, and for two classes with one name.
        """
        by_queue: dict[str, Registration] = {}
        by_name: dict[str, MessageType] = {}
        planned: list[Planned] = []
        for registration in registrations:
            for type in registration.types:
                known = by_name.setdefault(type.wire_name, type)
                if known is not type and known.cls is not type.cls:
                    raise ConfigurationError(
                        f"expected one class for the name {type.wire_name}, found {known.cls} and {type.cls}"
                    )
                queue = self._queue(registration, type)
                other = by_queue.setdefault(queue, registration)
                if other is not registration:
                    hint = (
                        "a command has one handler"
                        if type.kind is Kind.COMMAND
                        else "give one of them a subscription of its own, and each gets all messages"
                    )
                    raise ConfigurationError(
                        f"expected one handler for {queue}, found {other.name} ({other.where}) and "
                        f"{registration.name} ({registration.where}): {hint}"
                    )
                planned.append(Planned(registration, type, queue))
        return planned

    def topology(self, planned: Sequence[Planned]) -> Topology:
        """The topology that the handlers need."""
        topology = Topology()
        topology.queues[self.schedule] = QueueRules()
        for each in planned:
            registration, type = each.registration, each.type
            topology.queues[each.queue] = QueueRules(
                groups=registration.ordered,
                max_delivery_count=registration.retry.max_delivery_count,
                lock_duration=registration.lock_duration,
            )
            if type.kind is Kind.EVENT:
                self._add_event(topology, type)
                id = registration.subscription or self._bus
                router = self._router(type)
                topology.subscriptions.append(Subscription(router, id, each.queue, registration.topic))
            elif (published := self._conventions.command_router(type)) is not None:
                # The id is that of the type: whichever service handles the command has the same queue.
                topology.routers.add(published)
                topology.subscriptions.append(Subscription(published, type.wire_name, each.queue))
        return topology

    def of_message(self, address: str, type: MessageType) -> Topology | None:
        """The router or queue of a message's address; None for an address that the application chose."""
        topology = Topology()
        if address == self._router(type):
            self._add_event(topology, type)
        elif address == self._conventions.command(type):
            topology.queues[address] = QueueRules()
        else:
            return None
        return topology

    def _queue(self, registration: Registration, type: MessageType) -> str:
        if type.kind is Kind.COMMAND:
            return self._conventions.command(type)
        return self._conventions.subscription(registration.subscription or self._bus, type)

    def _router(self, type: MessageType) -> str:
        return self._conventions.fault(type) if is_fault(type) else self._conventions.event(type)

    def _add_event(self, topology: Topology, type: MessageType) -> None:
        """The routers of an event and its bases, and how they feed each other."""
        address = self._router(type)
        if address in topology.routers:
            return
        topology.routers.add(address)
        for base in type.bases:
            if any(base in other.bases for other in type.bases):
                # The router of a base's base is fed by that of the nearer one.
                continue
            self._add_event(topology, base)
            target = self._conventions.event(base)
            topology.subscriptions.append(Subscription(address, f"is-a-{base.wire_name}", target))
