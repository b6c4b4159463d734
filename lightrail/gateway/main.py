"""The gateway's process: HTTP for people, health checks and Prometheus."""

import sys

from lightrail.gateway.app import Gateway
from lightrail.gateway.members import Members
from lightrail.model.settings import Endpoint
from lightrail.telemetry import exposition, process


async def serve(process: process.Process) -> None:
    """Serve until told to stop."""
    members = Members()
    process.on_message = members.update

    def not_ready() -> str | None:
        if process.supervised and not members.known:
            return "not yet told by the supervisor who else there is"
        return process.not_ready()

    gateway = Gateway(process.id, members, not_ready)
    host, port = process.settings.http
    runner, bound = await exposition.listen(gateway.application(), host, port, reuse_port=True)
    try:
        here = str(Endpoint(host, bound))
        process.report_ready(http=here, metrics=str(Endpoint(host, bound).reachable))
        await process.until_stop()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    sys.exit(process.main("gateway", serve))
