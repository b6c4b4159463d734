"""Values of AMQP as text, for columns that hold values of any type (docs/formats/columns.md)."""

import base64
import json
import math
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from lightrail.amqp.values import (
    Array,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Timestamp,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
TIME_MIN_MS: Final = -62_135_596_800_000
TIME_MAX_MS: Final = 253_402_300_799_999
"""9999-12-31. Times after this, or before 0001-01-01, are shown as their milliseconds."""

_DECIMALS: Final = {Decimal32: (8, 101, 7), Decimal64: (10, 398, 16), Decimal128: (14, 6176, 34)}
"""Bits of the exponent, its bias, digits of the coefficient (IEEE 754-2008, 3.5.2)."""


def time_text(milliseconds: int) -> str:
    """ISO 8601 in UTC with milliseconds; the plain number for years without four digits."""
    if not TIME_MIN_MS <= milliseconds <= TIME_MAX_MS:
        return str(int(milliseconds))
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    return f"{moment:%H:%M:%S}".join((f"{moment.date().isoformat()}T", f".{moment.microsecond // 1000:03d}Z"))


def float_text(value: float) -> str:
    """The shortest digits from which this double can be read back; NaN, Infinity, -Infinity."""
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def decimal_text(value: Decimal32 | Decimal64 | Decimal128) -> str:
    """The text of a decimal of IEEE 754 with a binary coefficient (types 1.6.13 to 1.6.15)."""
    width, bias, digits = _DECIMALS[type(value)]
    bits = 8 * len(value)
    number = int.from_bytes(value, "big")
    sign = number >> (bits - 1)
    combination = number >> (bits - 6) & 0x1F
    if combination == 0x1E:
        return "-Infinity" if sign else "Infinity"
    if combination == 0x1F:
        return "NaN"
    if combination >= 0x18:
        exponent = number >> (bits - 3 - width) & ((1 << width) - 1)
        coefficient = 4 << (bits - 3 - width) | number & ((1 << (bits - 3 - width)) - 1)
    else:
        exponent = number >> (bits - 1 - width) & ((1 << width) - 1)
        coefficient = number & ((1 << (bits - 1 - width)) - 1)
    if coefficient >= 10**digits:
        coefficient = 0
    return str(Decimal((sign, tuple(map(int, str(coefficient))), exponent - bias)))


def text_of(value: Any) -> str | None:
    """A decoded value as text; None for null."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Timestamp):
        return time_text(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return float_text(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, Decimal32 | Decimal64 | Decimal128):
        return decimal_text(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """A value as JSON; values without a JSON type become text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, list | Array):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {_key(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Described):
        return {"descriptor": _plain(value.descriptor), "value": _plain(value.value)}
    if isinstance(value, int) and not isinstance(value, Timestamp):
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    return text_of(value)


def _key(key: Any) -> str:
    text = text_of(key)
    return "null" if text is None else text
