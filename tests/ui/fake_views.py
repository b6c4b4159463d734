"""Views of a broker that is not there: enough of everything for every page."""

from typing import Any, Final

from lightrail.namespace.rights import Caller

SECTIONS: Final[dict[str, Any]] = {
    "header": {"durable": True},
    "message_annotations": {"x-opt-dead-letter-reason": "rejected"},
    "properties": {"subject": "order.created", "message-id": "m-1"},
    "application_properties": {"colour": "red", "count": 3},
    "body": {"kind": "data", "text": "<script>alert(1)</script>"},
}
"""Sections of a message."""


def member(id: str, host: str, **more: Any) -> dict[str, Any]:
    """A member of a shard with replicas, in sync and running."""
    figures = {"acknowledged_age_seconds": 0.0, "behind_records": 0, "ahead_bytes": 0}
    return {"member": id, "host": host, "owns": False, "in_sync": True, "running": True} | figures | more


class FakeViews:
    """Stands in for gateway/views.py, which says what each method promises."""

    def __init__(self) -> None:
        self.purged: list[str] = []
        self.redriven: list[str] = []
        self.closed: list[str] = []
        self.removed: list[tuple[str, str]] = []
        """Members that were removed, with their shard."""
        self.asked = 0
        self.peeked: dict[str, Any] = {}
        """Members of each message in the place of those below; empty for those."""

    async def status(self, caller: Caller) -> dict[str, Any]:
        self.asked += 1
        return {
            "version": "0.1.0",
            "ready": False,
            "reasons": ["shard-1: recovering"],
            "processes": [
                {"role": "shard", "id": 0, "ready": True, "restarts": 0},
                {"role": "shard", "id": 1, "ready": False, "restarts": 2},
                {"role": "frontend", "id": 0, "ready": True, "restarts": 0},
            ],
            "shards": [
                {
                    "id": 0,
                    "serving": True,
                    "placed": 3,
                    "state": "active",
                    "moving_in": 0,
                    "moving_out": 0,
                    "queues": 3,
                    "messages": 12_345,
                    "bytes": 1_234_567,
                    "memory_bytes": 1,
                    "disk_bytes": 2,
                    "replicas": {
                        "epoch": 7,
                        "replicas": 3,
                        "min_in_sync": 2,
                        "in_sync": 2,
                        "members": [
                            member("a" * 32, "host-a", owns=True),
                            member("b" * 32, "<b>host-b</b>", behind_records=12, ahead_bytes=3_400),
                            member("c" * 32, "host-c", in_sync=False, running=False, behind_records=None),
                        ],
                        "waiting": [
                            {"member": "d" * 32, "host": "host-d", "reason": "expected fewer than 3"}
                        ],
                    },
                },
                {
                    "id": 1,
                    "serving": False,
                    "placed": 1_200,
                    "state": "active",
                    "moving_in": 0,
                    "moving_out": 0,
                    "queues": 1_200,
                    "messages": None,
                    "bytes": None,
                    "memory_bytes": None,
                    "disk_bytes": None,
                    "replicas": None,
                },
            ],
            "totals": {
                "queues": 3,
                "routers": 2,
                "names": 5,
                "messages": 12_345 + self.asked,
                "bytes": 1_234_567,
                "connections": 4,
                "received": 1_000 * self.asked,
                "delivered": 900 * self.asked,
            },
        }

    async def queues(self, caller: Caller, prefix: str, after: str, limit: int) -> dict[str, Any]:
        row = {"ready": 1, "delayed": 0, "in_flight": 2, "bytes": 300, "consumers": 1, "shard": 0}
        found = [{"name": name, **row} for name in ("jobs/audit", "jobs/q/x", "<b>odd</b>")]
        return {"queues": [each for each in found if str(each["name"]).startswith(prefix)], "next": None}

    async def queue(self, caller: Caller, name: str) -> dict[str, Any]:
        self.asked += 1
        return {
            "name": name,
            "ready": 7 + self.asked,
            "delayed": 1,
            "in_flight": 2,
            "bytes": 2_345,
            "consumers": 1,
            "enqueued": 10 * self.asked,
            "delivered": 9 * self.asked,
            "consumers_list": [
                {
                    "label": "worker-1/orders",
                    "frontend": "frontend-0",
                    "credit": 100,
                    "held": 2,
                    "since_ms": 1_790_000_000_000,
                    "browse": False,
                }
            ],
        }

    async def messages(self, caller: Caller, name: str, first: int, count: int) -> list[dict[str, Any]]:
        return [
            {
                "sequence": first + index,
                "state": "ready",
                "delivery_count": index,
                "enqueued_at": "2026-11-21T12:00:00Z",
                "expires_at": None,
                "size": 120,
                "priority": 4,
                **(self.peeked or SECTIONS),
            }
            for index in range(min(count, 3))
        ]

    async def purge(self, caller: Caller, name: str) -> int:
        self.purged.append(name)
        return 10

    async def redrive(self, caller: Caller, name: str) -> dict[str, Any]:
        self.redriven.append(name)
        return {"id": "t1"}

    async def connections(self, caller: Caller) -> list[dict[str, Any]]:
        return [
            {
                "id": "0-1",
                "user": "alice",
                "peer": "127.0.0.1:4242",
                "container": "worker-1",
                "sessions": 1,
                "links": 2,
                "tls": True,
                "transport": "websocket",
                "forwarded": True,
                "since_ms": 1_790_000_000_000,
            }
        ]

    async def connection(self, caller: Caller, id: str) -> dict[str, Any]:
        link = {"name": "in", "role": "receiver", "address": "jobs/audit", "credit": 10, "unsettled": 2}
        return {
            "id": id,
            "user": "alice",
            "peer": "127.0.0.1:4242",
            "container": "worker-1",
            "session_list": [{"channel": 0, "links": [link | {"state": "attached"}]}],
        }

    async def close_connection(self, caller: Caller, id: str) -> None:
        self.closed.append(id)

    async def remove_member(self, caller: Caller, shard: str, member: str) -> None:
        self.removed.append((shard, member))
