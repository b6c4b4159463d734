"""The messages of tests/interop/dotnet/MassTransitMessages.cs as classes of Python."""

import datetime as dt
import enum
import uuid
from dataclasses import dataclass, field
from decimal import Decimal

from lightrail.bus import command, message


class Phase(enum.IntEnum):
    NEW = 0
    PLACED = 1
    IN_TRANSIT = 2


class PhaseText(enum.Enum):
    NEW = "new"
    PLACED = "placed"
    IN_TRANSIT = "in-transit"


@dataclass
class Line:
    item_code: str
    unit_price: Decimal = Decimal(0)
    wait: dt.timedelta = dt.timedelta(0)


@message("dotnet.everything")
@dataclass
class Everything:
    my_xml_doc: str | None
    is_3d: bool
    url: str | None
    ip_address: str | None
    price: Decimal
    count: int
    ratio: float
    big: int
    at: dt.datetime
    local: dt.datetime
    offset: dt.datetime
    day: dt.date
    time: dt.time
    span: dt.timedelta
    back: dt.timedelta
    phase: Phase
    phase_text: PhaseText | None
    id: uuid.UUID
    data: bytes | None
    keys: dict[str, int] | None
    numbers: dict[int, str] | None
    tags: list[str] | None
    lines: list[Line] | None
    main: Line | None
    optional: int | None
    nothing: str | None


@command("dotnet.ask")
@dataclass
class Ask:
    number: int


@message("dotnet.answer")
@dataclass
class Answer:
    text: str


@message("dotnet.xml-answer")
@dataclass
class XmlAnswer:
    my_xml_text: str


@message("dotnet.base")
@dataclass
class Base:
    number: int


@message("dotnet.derived")
@dataclass
class Derived(Base):
    more: str = field(default="")


NAMES = {
    Everything: "Shop.Contracts:Everything",
    Ask: "Shop.Contracts:Ask",
    Answer: "Shop.Contracts:Answer",
    XmlAnswer: "Shop.Contracts:IAnswer",
    Base: "Shop.Contracts:Base",
    Derived: "Shop.Contracts:Derived",
}
ID = uuid.UUID("10000000-0000-0000-0000-000000000001")
FULL = Everything(
    my_xml_doc="<a/>",
    is_3d=True,
    url="u",
    ip_address="::1",
    price=Decimal("9.50"),
    count=7,
    ratio=1.5,
    big=2**63 - 1,
    at=dt.datetime(2026, 1, 31, 12, 0, 0, 123456, dt.UTC),
    local=dt.datetime(2026, 1, 31, 12),
    offset=dt.datetime(2026, 1, 31, 12, tzinfo=dt.timezone(dt.timedelta(hours=2))),
    day=dt.date(2026, 1, 31),
    time=dt.time(12, 30, 0, 500_000),
    span=dt.timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=500),
    back=dt.timedelta(seconds=-1.5),
    phase=Phase.IN_TRANSIT,
    phase_text=PhaseText.IN_TRANSIT,
    id=ID,
    data=b"\x01\x02\xff",
    keys={"Some_Key": 1},
    numbers={7: "seven"},
    tags=["a", "b"],
    lines=[Line("t_1", Decimal("1.25"), dt.timedelta(minutes=90))],
    main=Line("m"),
    optional=3,
    nothing=None,
)
NOTHING = Everything(
    None,
    False,
    None,
    None,
    Decimal(0),
    0,
    0.0,
    0,
    dt.datetime.min,
    dt.datetime.min,
    dt.datetime(1, 1, 1, tzinfo=dt.UTC),
    dt.date.min,
    dt.time.min,
    dt.timedelta(0),
    dt.timedelta(0),
    Phase.NEW,
    PhaseText.NEW,
    uuid.UUID(int=0),
    *[None] * 8,
)
