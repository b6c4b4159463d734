"""Limits: every bound of the broker by name; sizes in bytes, times in milliseconds, the rest counts.

This is the one table of all bounds, which tests patch by name, so it stays one file however long it gets.
"""

from typing import Final

# --- AMQP engine: what a stranger may send ------------------------------------------------------------
MAX_FRAME_SIZE: Final = 65_536
"""Largest frame that we announce in open (spec 2.7.1); proton and rhea announce 32 KiB and 1 MiB."""
MIN_MAX_FRAME_SIZE: Final = 512
"""No peer may ask for less (spec 2.4.1)."""
MAX_SASL_FRAME_SIZE: Final = 16_384
"""SCRAM and OAuth tokens outgrow the 512 bytes of the specification (5.3.2); what is larger is no token."""
CHANNEL_MAX: Final = 255
"""Highest channel number of a connection."""
HANDLE_MAX: Final = 4_095
"""Highest link handle of a session."""
LINKS_PER_CONNECTION_MAX: Final = 4_096
"""Links of a connection over all of its sessions, as many as one session may have; more are refused. Who goes
on to twice as many has the connection closed."""
ATTACH_BYTES_MAX: Final = 2 * 1024 * 1024
"""Bytes that a connection's links may have us keep: of attaches that are not answered yet all, of others the
name and the addresses. Enforced as LINKS_PER_CONNECTION_MAX is."""
PIPELINED_BYTES_MAX: Final = 32 * 1024
"""Bytes that a peer may send behind a SASL frame before that is answered: open, begin and some attaches."""
SESSION_INCOMING_WINDOW: Final = 8_192
"""Transfer frames a session may send us before we open its window again."""
MAX_MESSAGE_BYTES: Final = 128 * 1024 * 1024
"""Largest message that a link takes (attach.max-message-size)."""
UNFINISHED_MESSAGES_MAX: Final = 2
"""Largest messages whose beginnings a connection may have us hold, over all of its links."""
FRAGMENT_OVERHEAD: Final = 64
"""Bytes that each frame of an unfinished message counts beyond its own: what an object takes."""
NESTING_DEPTH_MAX: Final = 32
"""Compound values inside compound values; JSON parsers stop at 20 to 1000."""
FRAMES_OF_A_TURN: Final = 3_000
"""Frames, but for transfers that are like those before them, that one connection reads in one turn: 30 ms.
A frame that leads to more counts for as many as take about that long."""
ATTACH_FRAMES: Final = 6
"""What an attach counts for, with what a broker does for it in the next turn."""
SETTLED_RANGES_AT_ONCE: Final = 4_000
"""Ranges of deliveries that a disposition settles in one piece, and deliveries of them; what is left of it
comes next. Four ranges count for a frame, and so do 32 deliveries beyond the first hundred."""
SETTLED_AT_ONCE: Final = 32_000
DROPPED_RANGES_A_FRAME: Final = 256
"""Ranges that are looked through for those of a link that ends, in the time of one frame."""
SYMBOL_CACHE_MAX: Final = 1_024
"""Interned symbols per process."""
SHAPES_PER_LINK_MAX: Final = 16
"""Header sections whose transfers a link reads by comparison; there are ten priorities."""
IDLE_TIME_OUT_MS: Final = 60_000
"""Silence after which we close a connection; announced as half of it (spec 2.4.5)."""
OPENING_TIME_MS: Final = 10_000
"""From accept to open: SASL, header and open frame; half-open connections go after it."""
CLOSING_TIME_MS: Final = 5_000
"""From our close to the peer's; then the socket goes."""

# --- frontend ------------------------------------------------------------------------------------------
LINK_CREDIT_MAX: Final = 4_000
"""Messages a sending link may have unanswered; 4,000 for 2,000 saves a tenth of a durable one's CPU."""
COPIED_BYTES: Final = 64 * 1024
"""A slice of deliveries below this is copied out of its frame: a view costs more than so many bytes."""
LARGE_PIECE_BYTES: Final = 16 * 1024
"""From here on a piece of a message stays where it lies: below, a copy costs less than one more piece."""
PACE_SAMPLE_MS: Final = 10
"""How often a queue of some depth compares its deliveries with what is enqueued."""
PACE_MEAN_MS: Final = 1_000
"""Over about how long both are averaged."""
PACE_DEPTH_MIN: Final = 512
"""Messages that are ready in a queue before anybody compares."""
PACE_FREED_MIN: Final = 512
"""Messages for which credit is freed at a time, at the least."""
PACE_AHEAD_MS: Final = 12
"""Credit of senders is held while more messages are ready than consumers get in this time."""
PACE_SLOWNESS: Final = 8
"""Consumers that get less than one message for so many that are enqueued hold up no sender: a queue fills
for them."""
CREDIT_HELD_MS: Final = 500
"""After so long without FREED a frontend frees credit for PACE_FREED_MIN messages by itself."""
LINK_CREDIT_MIN: Final = 20
"""Credit that even a link of very large messages gets."""
LINK_UNANSWERED_BYTES: Final = 8 * 1024 * 1024
"""Bytes a sending link should have unanswered; credit is set from it and the mean message size."""
CONNECTION_UNANSWERED_BYTES: Final = 32 * 1024 * 1024
"""Bytes that a connection may have unanswered before its socket is not read; it is again at half of this."""
UNANSWERED_BATCH_BYTES: Final = 1_024
"""What a batch counts for beside its messages until it is answered: it takes 300 to 550 bytes in a frontend
and 800 in a shard. Tiny messages over many links are a batch each."""
INTAKE_STALL_MS: Final = 1_000
"""How long the socket of a connection that also receives is not read without any answer: its settlements may
be what makes room. Then it is read, and what it sends is refused until there is room."""
FRONTEND_UNANSWERED_BYTES: Final = 256 * 1024 * 1024
"""Bytes that all of a frontend may have unanswered before links fall back to LINK_CREDIT_MIN, and sockets
that more comes from are not read."""
FRONTEND_UNFINISHED_BYTES: Final = 1024 * 1024 * 1024
"""Bytes of messages whose last frame has not come, of all connections; past it the largest holders go."""
HEADERS_CACHED: Final = 256
"""Header sections of which a process knows what they say; that of one sender's messages hardly changes."""
EXPIRY_SPAN_MS: Final = 10
"""Messages that expire within such a span of each other are one batch, which expires with the last of them. A
message may be delivered so much after its end and never ends before it; a network delays it by as much."""
REFUSED_PAUSE_MS: Final = 500
"""No new credit for a link for so long after a batch was refused for want of room."""
DELIVERY_WINDOW_MAX: Final = 2_000
"""Messages that a shard may send ahead of what a consumer's socket took."""
DELIVERY_WINDOW_FIRST: Final = 64
"""The same for a connection whose receiving links have not seen a message: its size is not known yet."""
DELIVERY_WINDOW_BYTES: Final = 2 * 1024 * 1024
"""Bytes of the same, by the mean message size, shared by the links of a connection; one message at least."""
CONNECTION_UNSETTLED_BYTES: Final = 64 * 1024 * 1024
"""Bytes that a connection may have received and not settled, with what is around them; past it deliveries
wait for settlements."""
UNSETTLED_SLICE_BYTES: Final = 1_024
"""What a slice of a batch counts for beside its messages, until they are settled: objects of its shard."""
UNSETTLED_RUN_BYTES: Final = 384
"""What a run of unsettled deliveries counts for: 150 bytes in the frontend and 220 in the shard. Settlements
in another order, and links that take turns, make many."""
FRONTEND_UNREAD_BYTES: Final = 128 * 1024 * 1024
"""Bytes that all of a frontend may let wait for clients that do not read, beyond WRITE_ROOM_MIN of each, or
have on the way to them; past it buffers and windows stay as small as they are."""
OUTFLOW_LOOK_MS: Final = 1_000
"""Where that is used up, connections that received nothing for so long go back to WRITE_ROOM_MIN."""
LARGE_READ_BYTES: Final = 512 * 1024
"""What a client has to read of a message that is charged to FRONTEND_UNREAD_BYTES, in each LARGE_READ_LOOKS
while others wait for these bytes; a client that reads less is closed."""
LARGE_READ_LOOKS: Final = 10
"""Looks of OUTFLOW_LOOK_MS."""
WRITE_ROOM_MIN: Final = 64 * 1024
"""Bytes that may wait for the socket of each connection, whatever others use; its shards may send ahead as
many times that as DELIVERY_WINDOW_BYTES is WRITE_HIGH_WATER."""
WRITE_HIGH_WATER: Final = 1024 * 1024
"""Bytes that may wait for a socket whose receivers use up their windows; past it the connection gets no more
deliveries."""
WRITE_ANSWERS_BYTES: Final = 4 * 1024 * 1024
"""Bytes that come to wait beyond those, of answers to what such a peer goes on sending, as long as
FRONTEND_UNREAD_BYTES has them; past it its socket is not read until it reads."""
STANDSTILL_MS: Final = 500
"""A timer that rings so late was not late by itself: the process stood still, or the clock was set. Silence
of the clients up to then, and for as long again, is excused."""
TEMPORARY_NAMES_MAX: Final = 256
"""Dynamic nodes that a connection may have."""
ANONYMOUS_ADDRESSES_MAX: Final = 64
"""Addresses that a sender without a target keeps open; the longest unused goes first."""
ANONYMOUS_CREDIT_MAX: Final = 500
"""Messages that such a sender may have unanswered, over all its addresses."""
LABEL_CHARACTERS_MAX: Final = 256
"""Of the name that people are shown for a client's link."""
UNUSED_TRIES: Final = 10
"""How often a shard is asked again whether nobody receives from a subscription that is to be ended."""
UNUSED_AGAIN_MS: Final = 50
"""Pause before each of them: a detach at another frontend takes a few milliseconds to the shard."""
EXPIRE_AGAIN_MS: Final = 1_000
"""Pause before a name whose owner is gone is deleted anew, when the coordinator could not do it."""
NODE_LINKS_MAX: Final = 64
"""Links of a connection to nodes that the frontend itself serves: $management, $cbs."""
NODE_REQUESTS_MAX: Final = 20
"""Requests that such a link may have unanswered."""
NODE_REQUEST_BYTES: Final = 1024 * 1024
"""Largest request to such a node."""
NODE_REPLY_BYTES: Final = 4 * 1024 * 1024
"""Bytes of answers that may wait for a client's credit; while there are more it may send no requests."""
NODE_ADDRESSES_MAX: Final = 16
"""Queues that a request link keeps open for its answers; the longest unused goes first."""
NODE_POST_MS: Final = 5_000
"""How long an answer waits for the shard of the queue that it goes to."""
MANAGEMENT_PAGE_MAX: Final = 500
"""Entities in the answer to one QUERY."""
MANAGEMENT_PAGE_BYTES: Final = 1024 * 1024
"""Bytes of entities after which such an answer ends; one entity at least is in it."""
MANAGEMENT_FIGURES_AT_ONCE: Final = 50
"""Queues whose figures are asked for at a time."""
MANAGEMENT_TURN: Final = 250
"""Names that a QUERY looks at before clients get their turn."""
LOCKS_RENEWED_MAX: Final = 500
"""Deliveries whose locks one request renews."""
CBS_TOKENS_MAX: Final = 64
"""Audiences that a connection may have put tokens for."""
CONNECTIONS_MAX: Final = 65_536
"""Connections per frontend."""
HALF_OPEN_MAX: Final = 16_384
"""Connections per frontend that have not finished their open."""

# --- frontend to shard ---------------------------------------------------------------------------------
HEARTBEAT_MS: Final = 1_000
PEER_SILENCE_MS: Final = 5_000
"""A shard or frontend that says nothing for so long is taken as gone until it speaks again."""

DISK_SILENCE_MS: Final = 5_000
"""A commit is under way for so long: the disk does not answer, and the shard says nothing until it does."""
DISK_ROOM_MS: Final = 10_000
"""A disk that was full has room again once messages have found room for so long."""

REQUEST_MS: Final = 30_000
"""How long a request waits for a shard's answer."""
OVERVIEW_MS: Final = 2_000
"""How long a request to all shards waits: what is shown of the others does not wait for one that hangs."""
REQUESTS_MAX: Final = 20_000
"""Requests of one process that wait for one shard."""
CONTROL_MS: Final = 2_000
"""How long a gateway waits for a frontend's answer about its connections."""
CONTROL_REQUESTS_MAX: Final = 1_000
"""Requests that wait for one frontend's answer."""
CONTROL_PAGE_MAX: Final = 100
"""Connections in one answer; a page of them keeps a frontend from its clients for 5 ms."""
CONTROL_SCAN_MAX: Final = 4_096
"""Connections that a frontend looks at for one answer, where a filter picks some of them."""
CONTROL_LINKS_SHOWN: Final = 16
"""Links of each connection in a list of connections; all of one connection are asked for by its id."""
CONTROL_LINKS_MAX: Final = 4_000
"""Links in the answer about one connection."""
KEPT_SHOWN_MAX: Final = 100
"""Queues that are kept and not served, of which a shard tells the names; the others are counted."""
LEASE_MARGIN_MS: Final = 3_000
"""What is waited beyond ETCD_LEASE_MS until a registration counts as that of a living process: etcd looks now
and then for leases that ran out, and its leader may change."""
COORDINATOR_PAUSE_MS: Final = 100
"""Between two attempts to reach a coordinator that a process needs to start; doubles each time."""
COORDINATOR_PAUSE_MS_MAX: Final = 2_000
DIRECTORY_POLL_MS: Final = 50
"""How often a process asks by itself whether names, subscriptions or rights have changed."""

# --- time ----------------------------------------------------------------------------------------------
CLOCK_SLEW: Final = 10
"""A process's clock moves towards a wall clock that was set by at most this part of the time that passes: a
jump of a minute is caught up with in ten, and a lock of 30 s is meanwhile 27 to 33 s long."""
CLOCK_JUMP_MS: Final = 1_000
"""A wall clock that is so much further off than before was set; the log says so."""

# --- log-ins -------------------------------------------------------------------------------------------
LOGIN_HASHES_AT_ONCE: Final = 2
"""Passwords that a process hashes at a time."""
LOGIN_SOURCE_FREE: Final = 10
"""Wrong log-ins that one address may have made before the next ones have to wait."""
LOGIN_SOURCE_MS: Final = 1_000
"""Between two checks of log-ins from such an address; one wrong log-in is forgotten in the same time."""
LOGIN_USER_FREE: Final = 20
"""Wrong log-ins for one user, from whatever addresses, before those from new addresses take longer."""
LOGIN_USER_MS: Final = 2_000
"""How much longer."""
LOGIN_USER_PACE_MS: Final = 6_000
"""In which one wrong log-in for a user is forgotten."""
LOGIN_WRONG_COUNTED: Final = 100
"""Wrong log-ins that are remembered of an address or a user: so that they are forgotten some day."""
LOGINS_WAITING: Final = 100
"""Log-ins of one address that wait for their check; more are refused."""
LOGIN_SOURCES_MAX: Final = 10_000
"""Addresses, and users, whose wrong log-ins a process counts; the longest silent go first."""
LOGIN_LINES: Final = 100
"""Lines in the log about wrong log-ins in LOGIN_LOG_MS; what is beyond is one line at its end."""
LOGIN_LOG_MS: Final = 60_000
LOGIN_USERS_SAMPLED: Final = 50
"""Users whose numbers of rounds a process knows, to answer for unknown users as for them."""

# --- gateway -------------------------------------------------------------------------------------------
HTTP_JSON_BYTES: Final = 1024 * 1024
"""Largest policy, subscription or other JSON document in a request; definitions have a limit of their own."""
HTTP_DEFINITIONS_BYTES: Final = 64 * 1024 * 1024
"""Largest set of definitions that is imported by one request."""
HTTP_HEADER_BYTES: Final = 64 * 1024
"""Longest header of a request: BrokerProperties and application properties are headers."""
HTTP_HEADERS_MAX: Final = 128
"""Headers of a request."""
HTTP_BODIES_BYTES: Final = 256 * 1024 * 1024
"""Bytes of messages that one gateway is being sent and has not stored; what comes beyond is asked to wait."""
HTTP_BATCH_BYTES: Final = 16 * 1024 * 1024
"""Largest body of a numbered batch; one that holds a single message may have as many as a message may."""
HTTP_BATCH_MESSAGES: Final = 65_536
"""Messages of one numbered batch: the runs of it that differ in durability, priority or time to live are
numbered with 16 bits."""
HTTP_BATCH_NUMBER_MAX: Final = (1 << 47) - 1
"""Highest number of a batch."""
HTTP_PRODUCER_BYTES: Final = 512
"""Longest name of a producer of numbered batches."""
HTTP_BATCH_QUEUES_AT_ONCE: Final = 16
"""Queues of a router that a numbered batch is on its way to at a time."""
HTTP_BODY_MS: Final = 60_000
"""A request whose body is not there after this time is ended: what was held for it goes to others."""
HTTP_BACKLOG: Final = 4_096
"""Connections that wait to be accepted."""
HTTP_CONNECTIONS_MAX: Final = 65_536
"""Connections of one gateway to HTTP clients, where the descriptors of its process allow as many."""
HTTP_OWN_CONNECTIONS_MAX: Final = 256
"""The same at the page with a process's own metrics and health, which Prometheus and probes ask for."""
HTTP_FILES_RESERVED: Final = 1_024
"""Descriptors of a process that HTTP connections leave to everything else; where it has few: 1 / part."""
HTTP_FILES_PART: Final = 2
"""1 / this of the descriptors is for a gateway's HTTP connections where the reserve leaves them fewer."""
HTTP_OWN_FILES_PART: Final = 8
"""The same of the connections to the page with a process's own metrics."""
HTTP_SOURCE_PART: Final = 2
"""1 / this of the connections of a listener may come from one source."""
HTTP_IDLE_LOOKS: Final = 64
"""Connections that are looked at for one without a request, when a listener that is full has a new client."""
HTTP_HEAD_MS: Final = 10_000
"""From accept to the head of the first request, its line and headers; the same for the TLS handshake before
it, and from the first byte of a later request to its head."""
HTTP_IDLE_MS: Final = 75_000
"""How long a connection may stay without another request, as nginx has it."""
HTTP_WRITE_MS: Final = 60_000
"""A client that reads nothing of an answer for so long is cut off."""
RECEIVE_WAIT_MS_MAX: Final = 600_000
"""Longest time-out of a request for a message."""
RECEIVERS_MAX: Final = 50_000
"""Requests of one gateway that wait for a message."""
RECEIVER_IDLE_MS: Final = 200
"""A gateway's consumer without anybody who waits is closed after this time: it counts as one of the queue's,
and opening another one for the next request waits for no answer of the shard."""
SENDER_IDLE_MS: Final = 60_000
"""A gateway's producer that nobody sends through is closed after this time."""
PAGE_MAX: Final = 1_000
"""Most names, messages or other things in one answer."""
CALLERS_MAX: Final = 10_000
"""Credentials that a gateway remembers as checked."""
CALLER_FRESH_MS: Final = 1_000
"""How long checked credentials are good without a look at the user they belong to."""
TOKEN_SECONDS_MAX: Final = 30 * 86_400
"""Longest life of a token."""
TOKEN_SCOPES_MAX: Final = 64
"""Most prefixes that a token can be limited to: it travels in a header."""
SWEEP_MS: Final = 1_000
"""How often a gateway deletes names and subscriptions whose time is over."""
ORPHAN_MS: Final = 60_000
"""How long a frontend has to be registered nowhere before the names that went with its connections go."""

# --- readers of journals -------------------------------------------------------------------------------
READERS_MAX: Final = 1_000
"""Readers that an installation may have."""
READER_POSITIONS_MAX: Final = 1_000
"""Journals that a reader may have positions in; all of them are one entry of the coordinator."""
READER_HOLD_HOURS: Final = 168.0
"""How long a reader holds back what it has not read, where it does not say."""
READER_HOLD_HOURS_MAX: Final = 87_600.0
READER_HOLD_BYTES: Final = 100 * 1000**3
"""How much a reader holds back at each shard, where it does not say."""
READER_HOLD_BYTES_MAX: Final = 1 << 60
JOURNAL_READ_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a journal in one answer of a shard."""
JOURNAL_READS_MAX: Final = 16
"""Such answers of one shard that wait for its disk; who asks for more is told to ask again."""
JOURNAL_READS_AHEAD: Final = 8
"""The same of one gateway at one shard: others wait for their turn in the gateway."""
BULK_GREETING_MS: Final = 5_000
"""How long who asks for much waits until the shard has greeted the way that large answers take."""
BULK_IDLE_MS: Final = 60_000
"""How long such a way is kept that nobody uses."""
JOURNAL_ASK_MS: Final = 10_000
"""How long a gateway waits for what a shard says of its journals; one that is stopped counts as away then."""
JOURNAL_AGAIN_MS: Final = 100
"""Before a gateway asks a shard again whose JOURNAL_READS_MAX others have used up."""
JOURNAL_AGAIN_MAX: Final = 20
"""How often it does so for one piece."""
JOURNAL_STREAMS_MAX: Final = 16
"""Journals that one gateway sends to clients at a time; each has two pieces in its memory."""
JOURNAL_STREAM_WAIT_MS: Final = 10_000
"""How long others wait for their turn."""
JOURNAL_WRITE_MS: Final = 60_000
"""A client that takes nothing of a journal for so long is cut off, since it holds pieces in memory."""
SEGMENTS_SHOWN_MAX: Final = 2_000
"""Segments of journals in one answer of a shard."""

# --- shard ---------------------------------------------------------------------------------------------
DELIVERY_SLICE_MESSAGES: Final = 500
DELIVERY_SLICE_BYTES: Final = 256 * 1024
"""Most that one consumer gets in one turn."""
ANNOTATIONS_BYTES_MAX: Final = 64 * 1024
"""Bytes of message-annotations that outcomes of consumers, modified or rejected, may make of a message's."""
DELIVERY_COUNT_MAX_DEFAULT: Final = 10
"""Failed deliveries that make a message a dead letter; RabbitMQ's quorum queues say 20, Service Bus 10."""
RESIDENT_HEAD_BYTES: Final = 4 * 1024 * 1024
"""Bytes at the head of a queue that are never flowed to disk."""
MEMORY_MARK_BYTES: Final = 1024 * 1024 * 1024
"""Bytes of messages that a shard keeps in memory before it flows to disk."""
MEMORY_LOW_WATER: Final = 0.9
"""Relief goes on down to this part of the mark, so that it is not needed again at once."""
FETCH_RETRY_MS: Final = 1_000
"""After a read that failed, before the same run is asked for again."""
JOINED_BYTES: Final = 64 * 1024
"""Size that small batches are joined up to in memory; at most half of it is small."""
JOINED_SPAN_MS: Final = 60_000
"""Messages of one joined batch came within this time; it keeps the earliest time of arrival."""
JOIN_AT_BYTES: Final = 2 * JOINED_BYTES
"""Bytes that come to a queue before its batches are joined again."""
JOIN_BACKLOG_BYTES: Final = 8 * JOINED_BYTES
"""Ready bytes below which batches are left as they came: they will be delivered before joining pays."""
PLACE_BYTES: Final = 1024 * 1024
"""Largest area of the journal that one batch stands for, and so the largest read of a fetch."""
PLACE_SPARSE_BYTES: Final = 8 * 1024 * 1024
"""The same where records of other queues lie between, if at least one byte in PLACE_SPARSENESS is ours."""
PLACE_SPARSENESS: Final = 32
PLACE_SPARSE_MESSAGES_BYTES: Final = 256 * 1024
"""Most messages that such a sparse area stands for."""
SLIM_BYTES_MIN: Final = 16 * 1024
"""Smaller batches stay in memory until the last of their messages leaves."""
SLIM_AT_BYTES: Final = 1024 * 1024
"""Bytes of single messages that leave a queue before it looks for what little is left of their batches."""
RUN_BYTES: Final = 800
"""What a batch in memory costs beyond its messages: objects, and the head of the frame that it came in."""
RUN_ON_DISK_BYTES: Final = 400
"""What is left in memory of a run that is only on disk."""
SINGLE_BYTES: Final = 250
"""The same of a message that is a run of its own, on disk or not, with when it is due; measured."""
KEYED_BYTES: Final = 150
"""What such a message costs more that stands in an order by key, with a key of 16 characters."""
RANGE_BYTES: Final = 100
"""A range of sequences that a consumer has yet to look at, or the place of a message in its group."""
GROUP_BYTES: Final = 400
"""A group that has messages, or one that has left and is not forgotten yet."""
REMEMBERED_ID_BYTES: Final = 170
"""A message-id in a window of duplicates."""
TIMED_BYTES: Final = 200
"""A time at which something expires or a lock runs out."""
KEY_BYTES_MAX: Final = 256
"""Of a text or binary that is a key. What is longer is sorted by its beginning, told apart by a digest."""
INDEX_SHARE: Final = 2
"""The indexes of all queues may take the memory mark divided by this; past it, who sends to a queue that
looks into its messages waits."""
INDEX_BYTES_MIN: Final = 64 * 1024
"""They may always take so much."""
UNFLOWABLE_SLACK_BYTES: Final = 1024 * 1024
"""Bytes beyond the memory mark that can't flow to disk, past which no sender is answered."""
PLACE_SINGLES_BYTES: Final = 32 * 1024
"""Largest area of the journal that is read for one message of a queue in which each is a run of its own, if
no record is larger."""
SINGLES_SHARING_MAX: Final = 256
"""Such messages that are described by one batch while they are only on disk."""
FETCHES_AHEAD_MAX: Final = 64
"""Reads that a queue of such messages has begun for what a consumer gets next."""
LOOK_AHEAD_MESSAGES: Final = 10_000
"""Messages that are looked through for what has to be read next."""
STALE_ENTRIES_MIN: Final = 256
"""Entries of what is gone that a line, heap or table of a queue may have before it is made anew without them;
beyond, they are at most as many as the others, or twice as many."""
STALE_RANGES_MIN: Final = 1_024
"""The same of ranges that nobody needs any more, and of keys of last values."""
LOG_NAMES_MAX: Final = 20
"""Queues that are named one by one in the log; the others are counted."""
SEGMENT_BYTES: Final = 64 * 1024 * 1024
FULL_RETRY_MS: Final = 250
"""How often a full disk is asked again."""
STORE_RESERVE_BYTES: Final = SEGMENT_BYTES
"""Free space that SQLite's store leaves for settlements when the disk runs full."""
STORE_RECORDS_AT_ONCE: Final = 1_024
"""Records whose messages a store without segments releases together."""
SPAN_BYTES_MAX: Final = 1024 * 1024
"""Longest area of a segment that one span of live messages covers: what has to be read to get at them."""
FILE_COPY_BYTES: Final = 1024 * 1024
"""Of a file that is copied, in memory at a time."""
CLEAN_LIVE_FACTOR: Final = 2
"""Disk use stays below this times the live bytes, and CLEAN_SLACK_SEGMENTS segments."""
CLEAN_SLACK_SEGMENTS: Final = 2
CLEAN_SLACK_FILES: Final = 16
"""So many files more than the bytes need are left alone: a restart makes a short one."""
LAZY_COMMIT_MS: Final = 5
"""Settlements nobody waits for gather for so long before they are committed; a crash redelivers them."""
CAPTURE_GATHERED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of transient messages of captured queues that gather for one commit; beyond, senders wait for it."""
CLEAN_BYTES: Final = 2 * 1024 * 1024
"""Bytes of live messages that the cleaner writes again between two commits."""
ARCHIVE_LOOK_MS: Final = 10_000
"""How often a shard looks what its archive need not keep any longer."""
ARCHIVE_RETRY_MS: Final = 5_000
"""After the disk refused something of the archive: before it is tried again."""
ARCHIVE_SEGMENTS_AT_ONCE: Final = 16
"""Segments that go into the archive before anything is said of it."""
PRODUCERS_MAX: Final = 100_000
"""Producers whose last batch number a shard remembers; the longest silent goes first."""
DUPLICATE_IDS_MAX: Final = 100_000
"""Message-ids that a queue remembers for its duplicate window; the oldest are forgotten early."""
PARKED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of batches that wait in a shard for room in their queues, and at most half of its memory mark; what
comes beyond is refused."""
QUEUE_NAME_BYTES_MAX: Final = 512
NAMES_MAX: Final = 200_000
"""Names with a role."""
SUBSCRIPTIONS_MAX: Final = 10_000
"""Subscriptions of a router whose policy says nothing."""
ROUTE_PATHS_MAX: Final = 100_000
"""Ways that a message may take from a router to queues, over all routers behind it."""
QUEUES_MAX: Final = 100_000
"""Queues that come into being by attaching, per shard."""
PEEK_MESSAGES_MAX: Final = 1_000
PEEK_BYTES_DEFAULT: Final = 1024 * 1024
PEEK_BYTES_MAX: Final = 8 * 1024 * 1024
"""Most messages, and bytes of them, that one look into a queue gives; one message at least."""
PEEKS_MAX: Final = 64
"""Looks into queues of a shard that wait for the disk."""
QUEUES_SHOWN_MAX: Final = 1_000
"""Queues in one answer of figures."""
CONSUMERS_SHOWN_MAX: Final = 1_000
"""Consumers in the figures of one queue."""
SEQUENCES_KEPT: Final = 4_096
"""Batches of a producer that asked for sequences whose first one is remembered, for repeats."""
SEQUENCE_PRODUCERS_KEPT: Final = 1_024
"""Such producers that are not open now, which are remembered."""
ROUTE_TARGETS_MAX: Final = 10_000
"""Queues of a shard in one set of a router's link; the journal would take 65,535."""
ROUTE_SETS_MAX: Final = 10_000
"""Sets of one link; the one declared first is forgotten for the next."""
PRIORITIES_MAX: Final = 10
"""Levels of priority that a queue may tell apart, as in JMS; AMQP's header has 256 and ten are used."""
COLLECT_YOUNG: Final = 50_000
"""Objects more than before, after which Python's collector walks the new ones of a shard; every third time
those of the two passes before as well."""
COLLECT_LOOK_MS: Final = 500
"""How often a shard looks at how much the collector would have to walk."""
COLLECT_ALL_BLOCKS: Final = 400_000
"""A shard with more blocks of memory does not have everything walked: 0.25 us for each object. A shard
without queues has 225,000 blocks, 60,000 of them objects that are walked; a message that came alone adds six
blocks, four of them such objects."""
COLLECT_ALL_LOOKS: Final = 120
"""Looks between two passes over everything, at least."""
SELECTOR_LOOKS: Final = 2_000
"""Messages that the selectors of a queue's consumers look at in one step; the next one goes on there."""
QUEUE_WORK_OF_A_TURN: Final = 20_000
"""Units of about a microsecond that the queues of a shard may spend in one step on what time, a lost frontend
or a policy makes them do; the next step goes on."""
DELIVERIES_OF_A_TURN: Final = 20_000
"""Runs that the queues of a shard hand out in one step: 2.2 us each; the next step goes on."""
GIVEN_BACK_ONE_BY_ONE: Final = 16
"""Runs that come back to a line one by one; more of them go into it in one piece."""
RETURNED_AT_ONCE: Final = 4_000
"""Deliveries that a consumer that goes gives back at once; more come back in pieces."""
EXPIRED_AT_ONCE: Final = 500
"""Messages of one batch that become dead letters in one piece."""
PURGED_AT_ONCE: Final = 4_000
"""Runs of messages that a purge removes at once; more leave in pieces."""
LOOKS_OF_A_TURN: Final = 200_000
"""What all looks into messages of one step of a shard cost, in units of about 0.1 microseconds: the filter's
operators and what the message makes them do (filters/message.py). What is left goes on in the next step."""
SETTLE_SLICE: Final = 4_000
"""Pieces of deliveries in flight that a range settles, or a closing consumer gives back, in one turn."""
SETTLE_SLICE_REWRITTEN: Final = 1_000
"""The same where each of them goes back to the queue, or is written anew."""
SETTLE_SLICE_MESSAGES: Final = 2_000
"""Delivery numbers of the same, however few pieces they are."""
SETTLE_SLICE_BYTES: Final = 8 * 1024 * 1024
"""Bytes of the same: those of the settlement, annotations included, for each message it is written into."""
LOOKED_INTO_AT_ONCE: Final = 1_000
"""Messages that queues which look into them (for keys, groups, delays, duplicates) take from a frontend
between two looks at the time, at 12 microseconds each. A larger batch comes in pieces."""
ROUTED_LOOKS_AT_ONCE: Final = 2_000
"""Looks that queues of one shard take into one routed batch, its messages times those queues of its set that
look into them. Frontends cut a larger batch; one message for more such queues is the least."""
JOINED_SLICE_MESSAGES: Final = 8
"""Slices of so few messages, of batches up to JOINED_SLICE_BYTES, are joined with those that follow."""
JOINED_SLICE_BYTES: Final = 8 * 1024
JOINED_SLICES: Final = 64
"""Slices that become one at most."""
SHARD_PARTS: Final = 256
"""Frames that a shard receives between two looks at the time."""
SHARD_MESSAGES: Final = 4_000
"""ZeroMQ messages that a shard reads in a turn; what SHARD_INTAKE_MS has no time for waits in its backlog."""
WIRE_MESSAGES_AHEAD: Final = 4_000
"""ZeroMQ messages between a frontend and a shard that were received and that nobody has read. They come in
buffers of 8 KiB, which live as long as the last message in them; one that comes alone has one to itself.
More waits at the sending end, where it takes no more than its length."""
SHARD_INTAKE_MS: Final = 20
"""Of a turn of a shard for what frontends sent; the rest waits for the next turns, in each frontend's
order."""
LOADING_BYTES: Final = 16 * 1024 * 1024
"""Bytes that a queue whose index needs its messages has under way from disk while it is loaded."""
LOADING_LOOKS: Final = 2_000
"""Messages that such a queue looks into in one step while it is loaded, or a batch at least."""
DELIVERY_MARK_PAUSE_MS: Final = 10
"""Where the delivery mark of a queue is due again sooner than this, it is written further ahead."""
DELIVERY_MARK_WAIT_MS: Final = 1_000
"""How long deliveries beyond the mark in the file wait for theirs; while a disk hangs they leave without."""
DELIVERED_LOST_MAX: Final = 4_096
"""Messages that a shard delivered and, being killed, did not store: the first that come after them may be the
same, and count as delivered before. More of them were transient ones, which do not come again."""
DELIVERY_MARK_AHEAD_MAX: Final = 16_384
"""Messages by which a delivery mark is ahead of what was delivered at the most; after half as many deliveries
it is written again. After a crash so many that were not delivered may count as such."""

# --- filters and actions -------------------------------------------------------------------------------
FILTER_EXPRESSION_BYTES: Final = 8 * 1024
"""Bytes of one SQL expression, JMS selector or subject pattern; Service Bus takes 1,024 characters."""
FILTER_DEPTH_MAX: Final = 32
"""Expressions inside one another: parentheses, NOT, chains of arithmetic; also all, any and not in JSON."""
FILTER_NODES_MAX: Final = 1_000
"""Operators, literals and fields of one filter."""
SOURCE_FILTERS_MAX: Final = 16
"""Filters of one receiving link; RabbitMQ takes as many fields."""
FILTER_PATH_BYTES: Final = 512
"""Bytes of the name of an application property or annotation in a filter or action."""
FILTER_PATHS_KEPT: Final = 4_096
"""Parsed paths per process that are kept to be given out again."""
FILTER_WEIGHT_MAX: Final = 5_000
"""Operators, literals and fields of all expressions of one filter, and words of its subject patterns, eight
of which count as one."""
FILTER_SECTION_BYTES: Final = 1024 * 1024
"""Largest section of a message that filters look into; a field of a larger one is as one that is not
there."""
FILTER_MAP_ITEMS: Final = 32 * 1024
"""Keys and values of a section that filters look into, in the same way."""
FILTER_SECTIONS_MAX: Final = 16
"""Sections before the body that filters look at; there are five (messaging 3.2)."""
LIKE_TEXT_MAX: Final = 64 * 1024
"""Characters of a value that LIKE looks at; a longer one gives UNKNOWN. It bounds the time of one match."""
LIKE_WORK_MAX: Final = 2 * 1024 * 1024
"""Characters times weight (filters/like.py) that all LIKE of one filter look at in a message: more than
sixteen patterns, or heavy ones, get less than LIKE_TEXT_MAX each. About 30 ms."""
SUBJECT_WORDS_MAX: Final = 1_024
"""Words of a subject that a pattern looks at; a subject of more matches no pattern."""
ACTION_ENTRIES_MAX: Final = 64
"""Fields that one action sets or removes."""
TARGET_SETS_MAX: Final = 4_096
"""Different sets of subscriptions that a matcher remembers; past it it begins anew."""
RELAY_IDLE_MS: Final = 1_000
"""A sender of a connection point that uses no grant for so long loses it to others who wait for one."""

# --- forwarding of the gateway -------------------------------------------------------------------------
TRANSFERS_RUNNING: Final = 16
"""Transfers that one gateway runs at a time."""
TRANSFERS_KEPT: Final = 200
"""Transfers that ended and are still shown; the oldest go first."""
TRANSFER_WINDOW: Final = 1_000
"""Messages of a transfer that the sink has not answered."""
TRANSFER_WINDOW_FIRST: Final = 16
"""The same before it is known how large the messages are."""
TRANSFER_WINDOW_BYTES: Final = 32 * 1024 * 1024
"""Bytes of the same, by the mean message size; one message at least."""
TRANSFER_HELD: Final = 1_000
"""Messages that a transfer holds since it could not send them, or they came too late; then it ends."""
TRANSFER_CANCEL_MS: Final = 5_000
"""How long who cancels a transfer waits for what is on its way."""
FORWARDER_WINDOW_BYTES: Final = 8 * 1024 * 1024
"""Bytes of messages that a forwarder or pusher holds, by their mean size; one message at least."""
FORWARDER_WINDOW_FIRST: Final = 8
"""Messages of the same before it is known how large they are."""
FORWARD_WINDOW: Final = 100
"""Dead letters of one queue that are on their way to another name."""
FORWARD_PAUSE_MS: Final = 1_000
"""Before a dead letter is sent again that its target refused; it doubles up to FORWARD_PAUSE_MS_MAX."""
FORWARD_PAUSE_MS_MAX: Final = 60_000
FORWARDER_OPEN_PAUSE_MS: Final = 1_000
"""Before a forwarder that could not open its queue, or whose consumer was closed, tries again."""
PUSH_WINDOW: Final = 8
"""Messages of one subscription that are pushed at a time, those that wait for another attempt included."""
PUSHES_UNDER_WAY: Final = 256
"""Requests of one gateway to the URLs of subscriptions that wait for an answer."""
PUSH_REQUEST_MS: Final = 10_000
"""How long an endpoint may take for its answer."""
PUSH_RESPONSE_BYTES: Final = 64 * 1024
"""Bytes of an answer that are read, so that the connection can be used again; longer ones cost it."""
PUSH_BACKOFF_FACTOR_MAX: Final = 100
"""The pause between two attempts doubles up to so many times the policy's push_backoff."""
PUSH_RETRY_AFTER_MS_MAX: Final = 3_600_000
"""Longest pause that an endpoint may ask for."""
PUSH_URL_BYTES: Final = 2_048
PUSH_ALLOW_MAX: Final = 1_000
"""Patterns in the setting push_allow."""

# --- moving queues ------------------------------------------------------------------------------------------
MOVES_AT_ONCE: Final = 8
"""Queues that one shard copies to itself at the same time."""
MOVE_SEALED_MS: Final = 10_000
"""A source that has been sealed for so long tries to win its queue back."""
MOVE_CHUNK_BYTES: Final = 2 * 1024 * 1024
"""Bytes of messages in one answer to `export`; at least one message."""
MOVE_CHUNK_MESSAGES: Final = 20_000
"""Messages in the same."""
MOVE_THROTTLE_MAX: Final = 1 << 40
"""Bytes per second that a throttled move may be given."""
PLAN_MOVES_MAX: Final = 100_000
"""Moves in one plan."""
PLAN_SAMPLE_S_MAX: Final = 10
"""Seconds over which a plan may count messages."""

# --- etcd ---------------------------------------------------------------------------------------------------
ETCD_CALL_MS: Final = 5_000
"""How long a read or write waits for etcd, all attempts together."""
ETCD_ATTEMPT_MS: Final = 2_000
"""How long one endpoint may take for its answer before the next one is asked."""
ETCD_CALLS_WAITING: Final = 10_000
"""Writes of one process that wait for etcd."""
ETCD_OPEN_MS: Final = 10_000
"""How long a command waits until etcd has answered and its key space is read."""
ETCD_OPEN_MS_MAX: Final = 60_000
"""The same of a process, which tries again and again."""
ETCD_THREADS: Final = 4
"""Writes of one process that are on their way to etcd at a time."""
ETCD_STREAM_THREADS: Final = 2
"""Threads that gRPC starts for a stream while it is open: one hands over requests, one collects answers. The
watch of a process is such a stream, and each refresh of its lease."""
ETCD_LEASE_MS: Final = 10_000
"""Life of a registration whose process says nothing; refreshed at a third of it."""
EXTENT_REPORT_MS: Final = 5_000
"""How often a shard reports how far its journal has come: so much of the end may be missing from a copy that
can't be told from the original by anything but its length."""
ETCD_BEHIND_MS: Final = 2_000
"""How long a write waits until the process's own view has seen it."""
ETCD_PAUSE_MS: Final = 100
"""Before etcd is asked again that was away; it doubles up to ETCD_PAUSE_MS_MAX."""
ETCD_PAUSE_MS_MAX: Final = 2_000
ETCD_PING_MS: Final = 10_000
"""Silence of etcd after which it is asked for a sign of life; servers take offence at less than 5 s."""
ETCD_PING_ANSWER_MS: Final = 3_000
"""How long it has for that."""
ETCD_ANSWER_BYTES: Final = 256 * 1024 * 1024
"""Largest answer of etcd: a page of 1,000 entries, or the changes of one transaction."""
ETCD_CHANGES_KEPT: Final = 20_000
"""Changes that a process remembers for those of its parts that have not looked yet."""
OWNER_RETRY_MS: Final = 10
"""Before links are said again to a shard that did not have their queue; it doubles, to OWNER_RETRY_MS_MAX."""
OWNER_RETRY_MS_MAX: Final = 500
OWNER_LATE_MS: Final = 2_000
"""A shard that has lost a queue, by the placement, and has not said MOVED for so long is left without it."""
OWNER_LOST_MS: Final = 5_000
"""Links that no shard has taken for so long end where the coordinator says that their queue is nowhere."""
OWNER_HELD_MAX: Final = 100_000
"""Settlements and closes of one queue that wait to be said at the shard it moves to."""
OWNER_LAST_MAX: Final = 10_000
"""Of those without a link, that were said to the owner and may come back from it once."""
MOVE_AGAIN_MS: Final = 100
"""Before a step of a move is tried again that found a shard or the coordinator away; it doubles."""
MOVE_AGAIN_MS_MAX: Final = 2_000
"""Longest such pause; also between two attempts of a sealed source to win its queue back."""
MOVE_SOURCE_AGAIN_MS_MAX: Final = 250
"""Longest pause before a source is asked again that is away: its queue may be sealed, and waits for us."""
MOVE_THROTTLED_CHUNK_BYTES_MIN: Final = 64 * 1024
"""Of a copy with a throttle: smaller answers would have it catch up with a busy queue never."""
MOVE_THROTTLE_LOOK_S: Final = 0.25
"""How often a copy that waits for its throttle looks whether it is still wanted."""
MOVE_SOURCE_IDLE_MS: Final = 5_000
"""How long a way to another shard is kept that no move uses."""
MOVES_SHOWN_MS: Final = 600_000
"""How long a move that ended is still shown."""
MOVES_SHOWN_MAX: Final = 1_000
"""Moves that ended and are still shown; the oldest go first."""
MOVED_LINKS_MAX: Final = 65_536
"""Consumers of one frontend that a shard sent away and remembers, so that what they settle comes back."""
MOVE_HELD_FRAMES_MAX: Final = 10_000
"""Settlements that a consumer said whose queue is about to be opened here; those beyond are passed over, and
what they are about is delivered again."""
MOVE_CHUNK_RUNS: Final = 2_000
"""Runs of messages in the same that share nothing: each is a record of its own at the destination."""

# --- Spark ------------------------------------------------------------------------------------------------
SPARK_WINDOW_BYTES: Final = 8 * 1024 * 1024
"""Of a segment, read at once; a larger record is read on its own."""
SPARK_BATCH_ROWS: Final = 65_536
"""Of a record batch that a reader gives."""
SPARK_BATCH_BYTES: Final = 16 * 1024 * 1024
"""Of the messages in it; one that is larger is a batch of its own."""
SPARK_MAP_PAIRS: Final = 64
"""Maps in messages with more are read one by one, not in all messages of a batch at once."""
SPARK_RETRY_MS: Final = 300_000
"""How long a task says a request again that failed for now: a shard that recovers takes a while."""
SPARK_RETRY_PAUSE_MS: Final = 100
"""Before the first of these attempts; it doubles up to SPARK_RETRY_PAUSE_MS_MAX."""
SPARK_RETRY_PAUSE_MS_MAX: Final = 5_000
SPARK_ANSWER_MS: Final = 90_000
"""How long a gateway may say nothing; longer than what a gateway itself waits for a shard."""
SPARK_ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
"""Largest answer of a gateway that a task takes."""
SPARK_LAKE_BUFFER_BYTES: Final = 128 * 1024 * 1024
"""Rows that a task of `capture` collects before it writes them to files."""
SPARK_LAKE_BATCH_BYTES: Final = 1024 * 1024 * 1024
"""Bytes of journals in one commit of `capture`, unless it is told otherwise."""
SPARK_LAKE_FILE_BYTES: Final = 256 * 1024 * 1024
"""About how large files become that `compact` makes."""
SPARK_LAKE_AGAIN: Final = 10
"""How often a commit is tried again that another one came before."""
SPARK_LAKE_VACUUM_HOURS_MIN: Final = 24
"""Files without a commit are younger than this as long as a batch may still want to commit them."""

# --- Spark's side ---------------------------------------------------------------------------------------
SPARK_CLOCK_MS: Final = 600_000
"""So much earlier than those before it may a record say that it is, for clocks that are set back."""
SPARK_RANGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a journal asked for at once."""
SPARK_TASK_BYTES: Final = 64 * 1024 * 1024
"""Bytes of journals that a task reads: smaller segments are put together, larger ones split at blocks."""
SPARK_PIN_MS: Final = 30_000
"""How long a query tries to move its pin; the next micro-batch tries it anew."""
SPARK_SINK_MESSAGES: Final = 1_000
"""Messages of one request of the sink."""
SPARK_SINK_CHUNK_BYTES: Final = 1024 * 1024
"""Bytes of the same."""
SPARK_SINK_BYTES: Final = 16 * 1024 * 1024
"""Bytes of messages for several targets that a task gathers before all of them leave; at its end they are the
driver's to send."""
SPARK_SINK_TARGETS: Final = 10_000
"""Targets that a task gathers messages for before all of them leave."""
SPARK_SINK_ID_BYTES: Final = 200
"""Longest name of a write; the name of a producer is made of it and the partition."""

SPARK_REPORT_TOP_MAX: Final = 50
"""Queues and shards that a report names; all others are summed."""
SPARK_REPORT_STEPS_MAX: Final = 120
"""Points in time of a chart."""
SPARK_REPORT_REASONS_MAX: Final = 12
"""Reasons of dead letters that a report names."""
SPARK_REPORT_TEXT_MAX: Final = 120
"""Letters of a name or reason in a report; of a longer one the end is shown."""
SPARK_PLAN_QUEUES_MAX: Final = 1_000_000
"""Queues whose loads the driver of `lightrail-spark plan` holds."""
SPARK_LAST_HOURS_MAX: Final = 24 * 366 * 100
"""What --last takes: times before the calendar begins would be errors of another kind."""
