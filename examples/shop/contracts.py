"""What the services say to each other."""

import os
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from lightrail.bus import command, message

URL = os.environ.get("SHOP_URL", "amqp://localhost")
DATA = Path(os.environ.get("SHOP_DATA", "shop-data"))
DATA.mkdir(parents=True, exist_ok=True)


@command("shop.place-order")
@dataclass
class PlaceOrder:
    order: int
    total: Decimal


@message("shop.order-placed", key="order")
@dataclass
class OrderPlaced:
    order: int
    total: Decimal


@command("shop.bill-order")
@dataclass
class BillOrder:
    order: int
    total: Decimal


@message("shop.order-billed", key="order")
@dataclass
class OrderBilled:
    order: int


@command("shop.ship-order")
@dataclass
class ShipOrder:
    order: int


@message("shop.order-shipped", key="order")
@dataclass
class OrderShipped:
    order: int


@message("shop.order-completed", key="order")
@dataclass
class OrderCompleted:
    order: int
    reminders: int


@command("shop.remind-billing")
@dataclass
class RemindBilling:
    order: int


@command("shop.get-invoice")
@dataclass
class GetInvoice:
    order: int


@message("shop.invoice")
@dataclass
class Invoice:
    order: int
    total: Decimal


@message("shop.no-invoice")
@dataclass
class NoInvoice:
    order: int
