"""Graph: a router and everything behind it, laid out in columns, as an SVG that the template draws."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from lightrail.model.policy import Role
from lightrail.namespace.records import Subscription

COLUMN: Final = 260
ROW: Final = 64
BOX_WIDTH: Final = 200
BOX_HEIGHT: Final = 40
MARGIN: Final = 10
NODES_MAX: Final = 200
"""Boxes in one picture; a line below it has the number of the others."""


class Box(NamedTuple):
    """One name or URL of the picture; x and y are the upper left corner in pixels."""

    name: str
    role: str
    x: int
    y: int


class Line(NamedTuple):
    """A subscription: a line from one box to another."""

    x1: int
    y1: int
    x2: int
    y2: int
    label: str


class Picture(NamedTuple):
    width: int
    height: int
    boxes: list[Box]
    lines: list[Line]
    left_out: int


def draw(
    router: str,
    subscriptions: Callable[[str], Sequence[Subscription]],
    role: Callable[[str], Role],
) -> Picture:
    """The picture of one router, on the left; its targets are to the right of it, and so on."""
    column: dict[str, int] = {router: 0}
    edges: list[Subscription] = []
    waiting = [router]
    left_out = 0
    while waiting:
        name = waiting.pop(0)
        for each in subscriptions(name):
            if each.target not in column and len(column) >= NODES_MAX:
                left_out += 1
                continue
            edges.append(each)
            if column.get(each.target, -1) < column[name] + 1:
                # A box is right of all routers that feed it; there are no cycles.
                column[each.target] = column[name] + 1
                if not each.push and role(each.target) is Role.ROUTER:
                    waiting.append(each.target)
    rows: dict[int, int] = {}
    boxes: dict[str, Box] = {}
    for name, x in column.items():
        y = rows.get(x, 0)
        rows[x] = y + 1
        kind = "push" if name.startswith(("http://", "https://")) else str(role(name))
        boxes[name] = Box(name, kind, MARGIN + x * COLUMN, MARGIN + y * ROW)
    unique = {(each.router, each.id): each for each in edges}
    lines = [
        Line(
            boxes[each.router].x + BOX_WIDTH,
            boxes[each.router].y + BOX_HEIGHT // 2,
            boxes[each.target].x,
            boxes[each.target].y + BOX_HEIGHT // 2,
            "filter" if each.filter or each.rules is not None else "",
        )
        for each in unique.values()
    ]
    width = 2 * MARGIN + max(column.values()) * COLUMN + BOX_WIDTH
    height = 2 * MARGIN + (max(rows.values()) - 1) * ROW + BOX_HEIGHT
    return Picture(width, height, list(boxes.values()), lines, left_out)
