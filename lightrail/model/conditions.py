"""Error conditions of AMQP 1.0 (transport 2.8.15 to 2.8.18, messaging 3.5, transactions 4.5) by name."""

from typing import Final

INTERNAL_ERROR: Final = "amqp:internal-error"
NOT_FOUND: Final = "amqp:not-found"
UNAUTHORIZED_ACCESS: Final = "amqp:unauthorized-access"
DECODE_ERROR: Final = "amqp:decode-error"
RESOURCE_LIMIT_EXCEEDED: Final = "amqp:resource-limit-exceeded"
NOT_ALLOWED: Final = "amqp:not-allowed"
INVALID_FIELD: Final = "amqp:invalid-field"
NOT_IMPLEMENTED: Final = "amqp:not-implemented"
RESOURCE_LOCKED: Final = "amqp:resource-locked"
PRECONDITION_FAILED: Final = "amqp:precondition-failed"
RESOURCE_DELETED: Final = "amqp:resource-deleted"
ILLEGAL_STATE: Final = "amqp:illegal-state"
FRAME_SIZE_TOO_SMALL: Final = "amqp:frame-size-too-small"

CONNECTION_FORCED: Final = "amqp:connection:forced"
FRAMING_ERROR: Final = "amqp:connection:framing-error"

WINDOW_VIOLATION: Final = "amqp:session:window-violation"
ERRANT_LINK: Final = "amqp:session:errant-link"
HANDLE_IN_USE: Final = "amqp:session:handle-in-use"
UNATTACHED_HANDLE: Final = "amqp:session:unattached-handle"

DETACH_FORCED: Final = "amqp:link:detach-forced"
TRANSFER_LIMIT_EXCEEDED: Final = "amqp:link:transfer-limit-exceeded"
MESSAGE_SIZE_EXCEEDED: Final = "amqp:link:message-size-exceeded"
LINK_REDIRECT: Final = "amqp:link:redirect"
STOLEN: Final = "amqp:link:stolen"

TRANSACTION_UNKNOWN_ID: Final = "amqp:transaction:unknown-id"
TRANSACTION_ROLLBACK: Final = "amqp:transaction:rollback"
TRANSACTION_TIMEOUT: Final = "amqp:transaction:timeout"

MOVED: Final = "lightrail:moved"
"""Between the broker's own processes only: the queue has another owner or epoch; look it up again."""

LATE: Final = "lightrail:late"
"""Between the broker's own processes only: the request was not executed, as nobody waits for it any more."""

TIMEOUT: Final = "com.microsoft:timeout"
"""Of Azure Service Bus: the broker did not do it in time; its clients try again soon."""
SESSION_CANNOT_BE_LOCKED: Final = "com.microsoft:session-cannot-be-locked"
MESSAGE_LOCK_LOST: Final = "com.microsoft:message-lock-lost"
SESSION_LOCK_LOST: Final = "com.microsoft:session-lock-lost"
ENTITY_DISABLED: Final = "com.microsoft:entity-disabled"
"""Of Azure Service Bus: for locks, sessions and disabled names, which have no conditions in AMQP."""
