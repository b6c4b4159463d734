"""Protocol headers: which are accepted, and the answer to others (transport 2.2, security 5.3.1)."""

from lightrail.amqp import frames
from lightrail.amqp.connection_endpoint import ConnectionEndpoint
from lightrail.amqp.events import HeaderRejected
from lightrail.amqp.phases import CLOSED, OPENING, SASL
from lightrail.amqp.security import SaslClient, SaslServer
from lightrail.model import conditions, protocols


def read_header(connection: ConnectionEndpoint, data: bytes, position: int, end: int) -> int:
    """Read a whole header; returns the position after it, `end` for a rejected one."""
    header = data[position : position + frames.HEADER_BYTES]
    settings = connection.settings
    if len(header) < frames.HEADER_BYTES:
        if header and not header.startswith(b"AMQP"[: len(header)]):
            _reject_header(connection, header)
            return end
        return position
    if not settings.is_server:
        negotiates = settings.uses_sasl and not connection.sasl_done
        wanted = frames.SASL_HEADER if negotiates else frames.AMQP_HEADER
        if header != wanted:
            connection.terminate(conditions.FRAMING_ERROR, f"expected {wanted!r}, found {header!r}")
            return end
        if negotiates:
            connection.sasl = SaslClient(connection)
        connection.phase = SASL if negotiates else OPENING
        return position + frames.HEADER_BYTES
    plain_allowed = settings.allow_plain_header or not settings.sasl_mechanisms
    if header == frames.AMQP_HEADER and (connection.sasl_done or plain_allowed):
        connection.output.append(frames.AMQP_HEADER)
        connection.phase = OPENING
        return position + frames.HEADER_BYTES
    if header == frames.SASL_HEADER and settings.sasl_mechanisms and not connection.sasl_done:
        connection.sasl = SaslServer(connection)
        connection.phase = SASL
        return position + frames.HEADER_BYTES
    _reject_header(connection, bytes(data[position : min(end, position + protocols.BYTES)]))
    return end


def _reject_header(connection: ConnectionEndpoint, found: bytes) -> None:
    """Write a header that would have been accepted, and close (2.2)."""
    settings = connection.settings
    wanted = frames.AMQP_HEADER
    if settings.sasl_mechanisms and not settings.allow_plain_header and not connection.sasl_done:
        wanted = frames.SASL_HEADER
    if settings.is_server:
        connection.output.append(wanted)
    connection.events.append(HeaderRejected(wanted, bytes(found)))
    connection.phase = CLOSED
