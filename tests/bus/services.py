"""A service for commands that name one."""

from lightrail.bus import Bus
from tests.bus.shop import Bill

bus = Bus("amqp://localhost", name="billing")


@bus.handler
async def bill(command: Bill) -> None:
    """Writes an invoice."""
