"""Messages of the tests of the bus."""

import datetime as dt
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NotRequired, TypedDict

from lightrail.bus import command, message


@message("shop.event")
@dataclass
class Event:
    order: int


@message("shop.order-placed", key="order")
@dataclass
class OrderPlaced(Event):
    lines: list[str] = field(default_factory=list)
    total: Decimal = Decimal(0)
    at: dt.datetime | None = None


@message("shop.order-placed", version=2, supersedes=OrderPlaced, key="order")
@dataclass
class OrderPlaced2:
    order: int
    customer: str
    lines: list[str] = field(default_factory=list)


@message("shop.invoice")
@dataclass
class Invoice:
    order: int


@command("shop.bill", key="order")
@dataclass
class Bill:
    order: int


@command("shop.get-quote")
@dataclass
class GetQuote:
    item: str


@message("shop.quote")
@dataclass
class Quote:
    item: str
    price: Decimal


@message("shop.no-such-item")
@dataclass
class NoSuchItem:
    item: str


@message("shop.noted")
class Noted(TypedDict):
    order: int
    text: NotRequired[str]
