"""Bounds that several files use, by name; sizes in bytes, times in milliseconds, the rest counts.

A bound of one file stands at the top of that file, declared `Final[int]`. Tests replace bounds by name. The
end of this file checks the relations between bounds.
"""

from typing import Final

# --- AMQP engine: bounds of untrusted peers ------------------------------------------------------------
MAX_MESSAGE_BYTES: Final = 128 * 1024 * 1024
"""Largest message that a link accepts (attach.max-message-size)."""
UNFINISHED_MESSAGES_MAX: Final = 2
"""Unfinished messages of the largest size that a connection may have, over all of its links."""
NESTING_DEPTH_MAX: Final = 32
"""Compound values inside compound values; JSON parsers stop at 20 to 1000."""
FRAMES_OF_A_TURN: Final = 3_000
"""Frames that one connection reads in one turn (30 ms), not counting transfers that resemble the previous
one. A frame that causes more work counts for several."""
SETTLED_RANGES_AT_ONCE: Final = 4_000
"""Ranges of deliveries, and deliveries in them, that a disposition settles in one step; the rest follows in
the next. Four ranges count for a frame, and so do 32 deliveries beyond the first hundred."""
SETTLED_AT_ONCE: Final = 32_000
SYMBOL_CACHE_MAX: Final = 1_024
"""Interned symbols per process."""
IDLE_TIME_OUT_MS: Final = 60_000
"""Silence after which we close a connection; announced as half of it (spec 2.4.5)."""
OPENING_TIME_MS: Final = 10_000
"""Time from accept to open: SASL, header and open frame; then a half-open connection is closed."""
PROXY_HEADER_BYTES: Final = 4 * 1024
"""Bytes of the header of the PROXY protocol: its addresses, and fields of a balancer that are not read. The
protocol requires 536 (2.2), and HAProxy writes no more than these and the names of a TLS certificate."""
WEBSOCKET_HEAD_BYTES: Final = 16 * 1024
"""Bytes of the HTTP request that opens a WebSocket; h11 parses no more than this."""
CLOSING_TIME_MS: Final = 5_000
"""Time from our close to the peer's; then the socket is closed."""

# --- frontend ------------------------------------------------------------------------------------------
LINK_CREDIT_MAX: Final = 4_000
"""Messages a sending link may have unanswered; 4,000 for 2,000 saves a tenth of a durable one's CPU."""
COPIED_BYTES: Final = 64 * 1024
"""A slice of deliveries below this is copied out of its frame: a view costs more than the copy."""
LARGE_PIECE_BYTES: Final = 16 * 1024
"""From this size on a piece of a message is not copied; below, a copy costs less than one more piece."""
PACE_DEPTH_MIN: Final = 512
"""Ready messages in a queue from which its rates are compared."""
PACE_FREED_MIN: Final = 512
"""Least number of messages for which credit is freed at a time."""
UNSETTLED_TAGS_MAX: Final = 10_000
"""Delivery-tags that a shard keeps of a link that may be resumed; the client's credit ends before."""
SUSPENDED_DELIVERIES_MAX: Final = 10_000
"""Unsettled deliveries of a link that a client may resume as receiver; its credit ends before."""
SUSPENDED_CONSUMERS_MAX: Final = 20_000
"""Suspended links of a shard on which clients receive; beyond the share of a user (memory.py), that of
its links that was suspended first is released."""
SUSPENDED_DELIVERIES_SUM_MAX: Final = 1_000_000
"""Unsettled deliveries of all of these links, shared in the same way."""
FRONTEND_UNANSWERED_BYTES: Final = 256 * 1024 * 1024
"""Unanswered bytes of a frontend from which links fall back to LINK_CREDIT_MIN and sockets with more messages
are not read."""
HEADERS_CACHED: Final = 256
"""Decoded header sections that a process remembers; one sender's messages mostly have the same."""
EXPIRY_SPAN_MS: Final = 10
"""Messages that expire within this time of each other are one batch, which expires with the last of them. So
a message may be delivered this long after its expiry, like a message that the network delays, and never
expires early."""
BUS_LOCK_SHOWN_MS: Final = 24 * 3_600_000
"""Lock time that clients of Azure Service Bus are shown for a lock that only the end of its link ends: they
expect a time, and renew before it."""
SESSION_STATE_BYTES_MAX: Final = 256 * 1024
"""Bytes of the state of a session, as in Azure Service Bus."""
SESSIONS_SHOWN_MAX: Final = 1_000
"""Ids of sessions in the answer to one request."""
DELIVERY_WINDOW_MAX: Final = 2_000
"""Messages that a shard may send to a consumer beyond those that the consumer's socket accepted."""
DELIVERY_WINDOW_FIRST: Final = 64
"""The same for a connection that has not received a message yet: the size of its messages is unknown."""
DELIVERY_WINDOW_BYTES: Final = 2 * 1024 * 1024
"""Bytes of the same, by the mean message size, shared by the links of a connection; one message at least."""
CONNECTION_UNSETTLED_BYTES: Final = 64 * 1024 * 1024
"""Unsettled bytes of deliveries of a connection, with overhead; beyond, links with more than an equal share
of these bytes get no deliveries until the client settles."""
UNSETTLED_RUN_BYTES: Final = 384
"""Bytes that a run of unsettled deliveries counts for: 150 in the frontend and 220 in the shard. Settlements
in another order, and links that alternate, make many runs."""
OUTFLOW_LOOK_MS: Final = 1_000
"""When FRONTEND_UNREAD_BYTES are used up, connections that received nothing for this time fall back to
WRITE_ROOM_MIN."""
WRITE_ROOM_MIN: Final = 64 * 1024
"""Bytes that may wait for the socket of each connection, whatever others use. Shards may send it ahead in the
same proportion as DELIVERY_WINDOW_BYTES to WRITE_HIGH_WATER."""
WRITE_HIGH_WATER: Final = 1024 * 1024
"""Bytes that may wait for a socket whose receivers use up their windows; beyond, the connection gets no more
deliveries."""
EXPIRE_AGAIN_MS: Final = 1_000
"""Pause before another attempt to delete a name whose owner ended, after the coordinator failed."""
ATTACH_AGAIN_MS: Final = 25
"""An attach whose name is deleted meanwhile is repeated at this interval."""
ATTACH_REPEATED_MS: Final = 5_000
"""For so long; then its client is asked to attach again."""
TRANSACTION_MESSAGES_MAX: Final = 10_000
"""Messages that one transaction sends."""
TRANSACTION_PARTS_MAX: Final = 10_000
"""Batches that one transaction sends, ranges of deliveries that it settles, and ranges that it acquires."""
TRANSACTIONS_PREPARED_SHARE: Final = 2
"""Their bytes in memory, at most the memory mark divided by this, are shared by users in the same way."""
TRANSACTIONS_AT_ONCE: Final = 500
"""Transactions that a shard concludes, forgets or asks about in one turn."""
MANAGEMENT_PAGE_MAX: Final = 500
"""Entities in the answer to one QUERY."""
MANAGEMENT_PAGE_BYTES: Final = 1024 * 1024
"""Bytes of entities after which such an answer ends; it has at least one entity."""
LOCKS_RENEWED_MAX: Final = 500
"""Deliveries whose locks one request renews."""
CONNECTIONS_MAX: Final = 65_536
"""Connections per frontend."""
HALF_OPEN_MAX: Final = 16_384
"""Connections per frontend that have not finished their open."""

# --- frontend to shard ---------------------------------------------------------------------------------
HEARTBEAT_MS: Final = 1_000
PEER_SILENCE_MS: Final = 5_000
"""Silence after which a shard or frontend counts as unreachable until it sends again."""

REQUEST_MS: Final = 30_000
"""How long a request waits for a shard's answer."""
OVERVIEW_MS: Final = 2_000
"""How long a request to all shards waits, so that a hanging shard does not delay the figures of the
others."""
CONTROL_PAGE_MAX: Final = 100
"""Connections in one answer, which occupies a frontend for 5 ms."""
COORDINATOR_PAUSE_MS: Final = 100
"""Between two attempts to reach a coordinator that a process needs to start; doubles each time."""
COORDINATOR_PAUSE_MS_MAX: Final = 2_000
DIRECTORY_POLL_MS: Final = 50
"""Interval at which a process applies changes of names, subscriptions and rights."""

# --- gateway -------------------------------------------------------------------------------------------
HTTP_JSON_BYTES: Final = 1024 * 1024
"""Largest policy, subscription or other JSON document in a request; definitions have a limit of their own."""
HTTP_DEFINITIONS_BYTES: Final = 64 * 1024 * 1024
"""Largest set of definitions that is imported by one request."""
HTTP_HEADER_BYTES: Final = 64 * 1024
"""Longest header of a request: BrokerProperties and application properties are headers."""
HTTP_HEADERS_MAX: Final = 128
"""Headers of a request."""
HTTP_BATCH_BYTES: Final = 16 * 1024 * 1024
"""Largest body of a numbered batch; a batch of one message may be as large as a message."""
HTTP_BATCH_MESSAGES: Final = 65_536
"""Messages of one numbered batch: the runs of it that differ in durability, priority or time to live are
numbered with 16 bits."""
HTTP_BATCH_NUMBER_MAX: Final = (1 << 47) - 1
"""Highest number of a batch."""
HTTP_PRODUCER_BYTES: Final = 512
"""Longest name of a producer of numbered batches."""
RECEIVE_WAIT_MS_MAX: Final = 600_000
"""Longest time-out of a request for a message."""
PAGE_MAX: Final = 1_000
"""Most names, messages or other things in one answer."""
CALLERS_MAX: Final = 10_000
"""Credentials that a gateway remembers as checked."""
TOKEN_SECONDS_MAX: Final = 30 * 86_400
"""Longest life of a token."""

# --- readers of journals -------------------------------------------------------------------------------
READER_POSITIONS_MAX: Final = 1_000
"""Journals that a reader may have positions in; all of them are one entry of the coordinator."""
READER_HOLD_HOURS: Final = 168.0
"""How long segments are kept for a reader that has not read them, by default."""
READER_HOLD_HOURS_MAX: Final = 87_600.0
READER_HOLD_BYTES: Final = 100 * 1000**3
"""Bytes that each shard keeps for a reader that has not read them, by default."""
READER_HOLD_BYTES_MAX: Final = 1 << 60
JOURNAL_READ_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a journal in one answer of a shard."""

# --- shard ---------------------------------------------------------------------------------------------
DELIVERY_SLICE_MESSAGES: Final = 500
DELIVERY_SLICE_BYTES: Final = 256 * 1024
"""Most messages that one consumer gets in one turn."""
DELIVERY_COUNT_MAX_DEFAULT: Final = 10
"""Failed deliveries that make a message a dead letter; RabbitMQ's quorum queues use 20, Service Bus 10."""
RETRY_DELAY_FACTOR_MAX: Final = 100
"""Longest wait after failed deliveries, as a multiple of retry_delay, unless the policy has one."""
DEAD_LETTER_RETRY_MS: Final = 10
"""How long a dead letter waits after its first failed delivery if its queue has no retry_delay; each further
wait is twice as long. Nothing but accepted removes a dead letter, so without a wait a consumer that always
fails would get it again without end. A program that puts one dead letter back does not notice this wait."""
DEAD_LETTER_RETRY_MS_MAX: Final = 5_000
"""The longest of these waits. Until its end a redrive and a browser do not get the dead letter."""
RESIDENT_HEAD_BYTES: Final = 4 * 1024 * 1024
"""Bytes at the head of a queue that are never spilled to disk."""
HEAD_BYTES_MIN: Final = 10 * 1024
"""A larger batch at the head of a queue is spilled when memory is above the mark after all others were."""
JOINED_BYTES: Final = 64 * 1024
"""Largest size of a batch that is joined from small ones in memory; small is at most half of it."""
JOIN_AT_BYTES: Final = 2 * JOINED_BYTES
"""Bytes that arrive in a queue before its batches are joined again."""
SLIM_BYTES_MIN: Final = 16 * 1024
"""Smaller batches stay in memory until the last of their messages leaves."""
SLIM_AT_BYTES: Final = 1024 * 1024
"""Bytes of single messages that leave a queue before the queue searches for sparse batches; and bytes of
batches that its unsettled deliveries are parts of."""
SPARE_BYTES_MIN: Final = 1024
"""Bytes of a batch that a part of it may keep in memory unnoticed, beside its own."""
RUN_BYTES: Final = 800
"""Bytes that a batch in memory costs beyond its messages: objects, and the head of its frame."""
RUN_ON_DISK_BYTES: Final = 400
"""Bytes in memory of a run that is only on disk."""
RUN_EVICTED_BYTES: Final = RUN_BYTES - RUN_ON_DISK_BYTES
"""Bytes besides its messages that the eviction of a run frees."""
RUNS_UNCOUNTED_MAX: Final = 16
"""Runs of unsettled messages of a queue that do not count towards the memory mark."""
SINGLE_BYTES: Final = 250
"""Bytes in memory of a message that is a run of its own, on disk or not, with its due time; measured."""
RANGE_BYTES: Final = 100
"""Bytes of a range of sequences that a consumer has yet to examine, or of a message's entry in its group."""
GROUP_BYTES: Final = 400
"""Bytes of a group that has messages, or whose last message left recently."""
REMEMBERED_ID_BYTES: Final = 170
"""Bytes of a message-id in a window of duplicates."""
TIMED_BYTES: Final = 200
"""Bytes of an entry for the expiry of a message or a lock."""
INDEX_SHARE: Final = 2
"""The indexes of all queues may take the memory mark divided by this; beyond, senders to queues with an index
wait."""
CONSUMER_BYTES: Final = 1_500
"""Bytes of a consumer at its shard: measured are 1,440 with a label of 34 characters."""
ENDED_LINK_BYTES: Final = 400
"""Bytes of a link that has ended with locked messages: measured are 366 to 391, with a key of 16 letters."""
LINKS_SHARE: Final = 4
"""Consumers and their selectors may take the memory mark divided by this; beyond the share of a user, none of
its consumers is attached."""
SINGLES_SHARING_MAX: Final = 256
"""Messages of such a queue that are described by one batch while they are only on disk."""
FETCHES_AHEAD_MAX: Final = 64
"""Reads that a queue of such messages has under way for the next deliveries."""
LOOK_AHEAD_MESSAGES: Final = 10_000
"""Messages that are searched for the next one to be read."""
STALE_ENTRIES_MIN: Final = 256
"""Dead entries that a line, heap or table of a queue may have before it is rebuilt without them; in larger
structures the dead entries are at most as many as the live ones, or twice as many."""
STALE_RANGES_MIN: Final = 1_024
"""The same for unused ranges, and for keys of last values."""
SEGMENT_BYTES: Final = 64 * 1024 * 1024
FULL_RETRY_MS: Final = 250
"""How often a full disk is tried again."""
STORE_RECORDS_AT_ONCE: Final = 1_024
"""Records whose messages a store without segments releases together."""
SPAN_BYTES_MAX: Final = 1024 * 1024
"""Longest area of a segment that one span of live messages covers, and so the largest read for them."""
CLEAN_BYTES: Final = 2 * 1024 * 1024
"""Bytes of live messages that the cleaner rewrites between two commits."""
PRODUCERS_MAX: Final = 100_000
"""Producers whose last batch number a shard remembers; the longest silent is dropped first."""
DUPLICATE_IDS_MAX: Final = 100_000
"""Message-ids that a queue remembers for its duplicate window; the oldest are forgotten early."""
NAMES_MAX: Final = 200_000
"""Names with a role."""
RULES_MAX: Final = 2_000
"""Rules of a subscription, as in Service Bus."""
NAMES_AT_ONCE: Final = 250
"""Names that a list or an export takes from the directory before other requests run, at about 10 us each."""
EQUAL_VALUES_MAX: Final = 1_024
"""Different policies, and placements, that a process decodes once; more of them are decoded again."""
QUEUES_MAX: Final = 100_000
"""Queues created by attaching, per shard."""
PEEK_BYTES_MAX: Final = 8 * 1024 * 1024
"""Most messages, and bytes of them, that one peek at a queue returns; at least one message."""
PEEKS_MAX: Final = 64
"""Peeks at a shard's queues that wait for the disk."""
QUEUES_SHOWN_MAX: Final = 1_000
"""Queues in one answer of figures."""
ROUTE_TARGETS_MAX: Final = 10_000
"""Queues of a shard in one set of a router's link; the journal would take 65,535."""
ROUTE_SETS_MAX: Final = 10_000
"""Sets of one link; the oldest is dropped for the next."""
GIVEN_BACK_ONE_BY_ONE: Final = 16
"""Returned runs that are inserted into a line one by one; more of them are merged in at once."""
PURGED_AT_ONCE: Final = 4_000
"""Runs of messages that a purge removes in one step."""
LOOKS_OF_A_TURN: Final = 200_000
"""Budget of filters in one step of a shard, in units of about 0.1 microseconds: operators, and work that
depends on the message (filters/message.py). The next step continues."""
LOOKED_INTO_AT_ONCE: Final = 1_000
"""Messages for queues with an index (keys, groups, delays, duplicates) that a shard stores between two looks
at the clock, at 12 microseconds each. Larger batches are split."""
WIRE_MESSAGES_AHEAD: Final = 4_000
"""ZeroMQ messages between a frontend and a shard that were received and not read yet. They lie in
buffers of 8 KiB, which live as long as the last message in them; a message that arrives alone occupies a
buffer of its own. Further messages wait at the sender, where they occupy only their length."""
LOADING_LOOKS: Final = 2_000
"""Messages that are indexed in one step while a queue is loaded; at least a batch."""

# --- filters and actions -------------------------------------------------------------------------------
FILTER_EXPRESSION_BYTES: Final = 8 * 1024
"""Bytes of one SQL expression, JMS selector or subject pattern; Service Bus takes 1,024 characters."""
FILTER_DEPTH_MAX: Final = 32
"""Expressions inside one another: parentheses, NOT, chains of arithmetic; also all, any and not in JSON."""
FILTER_NODES_MAX: Final = 1_000
"""Operators, literals and fields of one filter."""
FILTER_WEIGHT_MAX: Final = 5_000
"""Operators, literals and fields of all expressions of one filter, and words of its subject patterns, eight
of which count as one."""
TARGET_SETS_MAX: Final = 4_096
"""Different sets of subscriptions that a matcher caches; then it starts with an empty cache."""
TARGETS_KEPT_MAX: Final = 65_536
"""Subscriptions in all of these sets together, with the same consequence; 70 bytes for each."""

# --- moving queues ------------------------------------------------------------------------------------------
MOVE_CHUNK_BYTES: Final = 2 * 1024 * 1024
"""Bytes of messages in one answer to `export`; at least one message."""
MOVE_CHUNK_MESSAGES: Final = 20_000
"""Messages in one such answer."""
MOVE_THROTTLE_MAX: Final = 1 << 40
"""Highest throttle of a move, in bytes per second."""
PLAN_MOVES_MAX: Final = 100_000
"""Moves in one plan."""
PLAN_SAMPLE_S_MAX: Final = 10
"""Seconds over which a plan may count messages."""

# --- etcd ---------------------------------------------------------------------------------------------------
ETCD_CALLS_WAITING: Final = 100_000
"""Writes of one process that wait for etcd: some hundred bytes each."""
ETCD_THREADS: Final = 4
"""Calls of one process that are under way to etcd at a time."""
ETCD_STREAM_THREADS: Final = 2
"""Threads that gRPC starts for an open stream: one sends requests, one collects answers. The watch of a
process is such a stream, and so is each refresh of its lease."""
ETCD_LEASE_MS: Final = 10_000
"""Life of a registration without a refresh; refreshed at a third of it."""
OWNER_RETRY_MS: Final = 10
"""Pause before links are opened again at a shard that did not own their queue; it doubles up to
OWNER_RETRY_MS_MAX."""
OWNER_RETRY_MS_MAX: Final = 500
OWNER_LOST_MS: Final = 5_000
"""Time without an owner after which links end if the coordinator has no placement of their queue."""
MOVE_AGAIN_MS: Final = 100
"""Pause before a step of a move that found a shard or the coordinator unreachable is tried again; it
doubles."""
MOVE_AGAIN_MS_MAX: Final = 2_000
"""Longest such pause; also between two attempts of a source to win its frozen queue back."""
MOVE_SOURCE_AGAIN_MS_MAX: Final = 250
"""Longest pause before an unreachable source is asked again, and how long a request waits for its greeting:
its queue may be frozen and wait for the destination."""
MOVED_LINKS_MAX: Final = 65_536
"""Moved consumers of one frontend that a shard remembers, to return their settlements to the frontend."""
MOVE_HELD_FRAMES_MAX: Final = 10_000
"""Settlements of a consumer whose queue is about to be opened here; those beyond are dropped, and their
messages are delivered again."""

# --- Spark ------------------------------------------------------------------------------------------------
SPARK_RETRY_MS: Final = 300_000
"""How long a task repeats a request that fails temporarily: recovery of a shard takes a while."""
SPARK_RETRY_PAUSE_MS_MAX: Final = 5_000
"""Longest pause between two attempts of a request of a task."""
SPARK_LAKE_BUFFER_BYTES: Final = 128 * 1024 * 1024
"""Rows that a task of `capture` collects before it writes them to files."""
SPARK_LAKE_AGAIN: Final = 10
"""How often a commit that conflicts with another one is tried again."""

# --- relations between bounds --------------------------------------------------------------------------
assert HEARTBEAT_MS * 2 < PEER_SILENCE_MS, "one lost heartbeat is no silence"
assert OVERVIEW_MS < REQUEST_MS, "a hanging shard must not delay the figures of the others"
assert WRITE_ROOM_MIN < WRITE_HIGH_WATER, "the room of a connection that others leave is a part of its room"
assert DELIVERY_WINDOW_FIRST <= DELIVERY_WINDOW_MAX
assert HALF_OPEN_MAX <= CONNECTIONS_MAX, "half-open connections are connections"
assert ATTACH_AGAIN_MS < ATTACH_REPEATED_MS
assert SETTLED_RANGES_AT_ONCE <= SETTLED_AT_ONCE, "a range has a delivery at least"
assert SUSPENDED_DELIVERIES_MAX <= SUSPENDED_DELIVERIES_SUM_MAX
assert FILTER_NODES_MAX <= FILTER_WEIGHT_MAX, "an expression of the greatest size fits into a filter"
assert RUN_ON_DISK_BYTES < RUN_BYTES, "the eviction of a run frees memory"
assert ROUTE_TARGETS_MAX <= 65_535, "the journal counts the targets of a record with 16 bits"
assert HTTP_BATCH_MESSAGES <= 1 << 16, "the runs of a numbered batch are numbered with 16 bits"
assert MOVE_SOURCE_AGAIN_MS_MAX <= MOVE_AGAIN_MS_MAX, "a frozen source is asked again sooner than others"
assert COORDINATOR_PAUSE_MS <= COORDINATOR_PAUSE_MS_MAX
assert OWNER_RETRY_MS <= OWNER_RETRY_MS_MAX
assert MOVE_AGAIN_MS <= MOVE_AGAIN_MS_MAX
assert DEAD_LETTER_RETRY_MS <= DEAD_LETTER_RETRY_MS_MAX
assert READER_HOLD_HOURS <= READER_HOLD_HOURS_MAX
assert READER_HOLD_BYTES <= READER_HOLD_BYTES_MAX
