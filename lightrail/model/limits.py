"""Bounds that several files use, by name; sizes in bytes, times in milliseconds, the rest counts.

A bound of one file stands at the top of that file, declared `Final[int]`. Tests replace bounds by name.
"""

from typing import Final

# --- AMQP engine: bounds of untrusted peers ------------------------------------------------------------
MAX_FRAME_SIZE: Final = 65_536
"""Largest frame that we announce in open (spec 2.7.1); proton and rhea announce 32 KiB and 1 MiB."""
MIN_MAX_FRAME_SIZE: Final = 512
"""No peer may ask for less (spec 2.4.1)."""
MAX_SASL_FRAME_SIZE: Final = 16_384
"""Largest SASL frame. SCRAM and OAuth tokens outgrow the 512 bytes of the specification (5.3.2)."""
CHANNEL_MAX: Final = 255
"""Highest channel number of a connection."""
HANDLE_MAX: Final = 4_095
"""Highest link handle of a session."""
LINKS_PER_CONNECTION_MAX: Final = 4_096
"""Links of a connection over all of its sessions, as many as one session may have. More are refused; at twice
as many the connection is closed."""
ATTACH_BYTES_MAX: Final = 2 * 1024 * 1024
"""Bytes that a connection's links may occupy: whole attaches until they are answered, then name and
addresses. Enforced like LINKS_PER_CONNECTION_MAX."""
PIPELINED_BYTES_MAX: Final = 32 * 1024
"""Bytes that a peer may send after a SASL frame before its answer: open, begin and some attaches."""
SESSION_INCOMING_WINDOW: Final = 8_192
"""Transfer frames a session may send us before we open its window again."""
MAX_MESSAGE_BYTES: Final = 128 * 1024 * 1024
"""Largest message that a link accepts (attach.max-message-size)."""
UNFINISHED_MESSAGES_MAX: Final = 2
"""Unfinished messages of the largest size that a connection may have, over all of its links."""
FRAGMENT_OVERHEAD: Final = 64
"""Bytes that each frame of an unfinished message counts beyond its own, for its object."""
NESTING_DEPTH_MAX: Final = 32
"""Compound values inside compound values; JSON parsers stop at 20 to 1000."""
FRAMES_OF_A_TURN: Final = 3_000
"""Frames that one connection reads in one turn (30 ms), not counting transfers that resemble the previous
one. A frame that causes more work counts for several."""
ATTACH_FRAMES: Final = 6
"""Frames that an attach counts for, including the broker's work for it in the next turn."""
SETTLED_RANGES_AT_ONCE: Final = 4_000
"""Ranges of deliveries, and deliveries in them, that a disposition settles in one step; the rest follows in
the next. Four ranges count for a frame, and so do 32 deliveries beyond the first hundred."""
SETTLED_AT_ONCE: Final = 32_000
DROPPED_RANGES_A_FRAME: Final = 256
"""Ranges searched for those of a link that ends, in the time of one frame."""
SYMBOL_CACHE_MAX: Final = 1_024
"""Interned symbols per process."""
SHAPES_PER_LINK_MAX: Final = 16
"""Header sections whose transfers a link reads by comparison; there are ten priorities."""
LINK_TAGS_MAX: Final = 16_384
"""Unsettled deliveries of a link whose delivery-tags are not consecutive numbers, so that each tag is kept.
Unsettled tags are counted again when half more tags are kept than after the last count."""
IDLE_TIME_OUT_MS: Final = 60_000
"""Silence after which we close a connection; announced as half of it (spec 2.4.5)."""
OPENING_TIME_MS: Final = 10_000
"""Time from accept to open: SASL, header and open frame; then a half-open connection is closed."""
PROXY_HEADER_BYTES: Final = 4 * 1024
"""Bytes of the header of the PROXY protocol: its addresses, and fields of a balancer that are not read. The
protocol requires 536 (2.2), and HAProxy writes no more than these and the names of a TLS certificate."""
WEBSOCKET_HEAD_BYTES: Final = 16 * 1024
"""Bytes of the HTTP request that opens a WebSocket; h11 parses no more than this."""
WEBSOCKET_FRAMES_AT_ONCE: Final = 256
"""Frames of a WebSocket that are read before other sockets are read: 10 µs each, even if they are tiny."""
WEBSOCKET_MESSAGE_BYTES: Final = 64 * 1024
"""Bytes of a WebSocket message to a client; some client libraries refuse more than 1 MiB."""
FORWARDED_AGE_MS: Final = 60_000
"""Greatest age of the header that a gateway adds to a forwarded request; a frontend is never busy for
longer."""
WEBSOCKET_REFUSAL_BYTES: Final = 200
"""Bytes of a server's refusal of a WebSocket that the client's error quotes."""
CLOSING_TIME_MS: Final = 5_000
"""Time from our close to the peer's; then the socket is closed."""
CLOSE_ANSWER_MS: Final = 250
"""Time from our close to the end of a TLS session, for the client's close."""

# --- frontend ------------------------------------------------------------------------------------------
LINK_CREDIT_MAX: Final = 4_000
"""Messages a sending link may have unanswered; 4,000 for 2,000 saves a tenth of a durable one's CPU."""
COPIED_BYTES: Final = 64 * 1024
"""A slice of deliveries below this is copied out of its frame: a view costs more than the copy."""
LARGE_PIECE_BYTES: Final = 16 * 1024
"""From this size on a piece of a message is not copied; below, a copy costs less than one more piece."""
PACE_SAMPLE_MS: Final = 10
"""How often a queue of at least PACE_DEPTH_MIN messages compares its rates of deliveries and of enqueued
ones."""
PACE_MEAN_MS: Final = 1_000
"""Time over which both rates are averaged."""
PACE_DEPTH_MIN: Final = 512
"""Ready messages in a queue from which its rates are compared."""
PACE_FREED_MIN: Final = 512
"""Least number of messages for which credit is freed at a time."""
PACE_AHEAD_MS: Final = 12
"""Senders get no credit while more messages are ready than consumers get in this time."""
PACE_SLOWNESS: Final = 8
"""Consumers that get less than one message per so many enqueued ones do not slow senders: the queue fills."""
CREDIT_HELD_MS: Final = 500
"""Time without a frame FREED after which a frontend itself frees credit for PACE_FREED_MIN messages."""
LINK_CREDIT_MIN: Final = 20
"""Least credit of a link, whatever the size of its messages."""
UNSETTLED_TAGS_MAX: Final = 10_000
"""Delivery-tags that a shard keeps of a link that may be resumed; the client's credit ends before."""
TERMINI_MAX: Final = 20_000
"""Links of a shard that may be resumed, attached or suspended; those beyond the share of their user
(user_shares.py) can't be resumed."""
TERMINI_TAGS_MAX: Final = 1_000_000
"""Delivery-tags of all of these links; beyond the share of a user, its links with most of them can't be
resumed any more."""
TERMINI_MOVED_TAGS: Final = 20_000
"""Tags, and runs of deliveries, of durable links that the cleaner writes again in one turn: 10 ms."""
SUSPENDED_DELIVERIES_MAX: Final = 10_000
"""Unsettled deliveries of a link that a client may resume as receiver; its credit ends before."""
SUSPENDED_CONSUMERS_MAX: Final = 20_000
"""Suspended links of a shard on which clients receive; beyond the share of a user (user_shares.py), that of
its links that was suspended first is released."""
SUSPENDED_DELIVERIES_SUM_MAX: Final = 1_000_000
"""Unsettled deliveries of all of these links, shared in the same way."""
RESENT_BYTES: Final = 1024 * 1024
"""Bytes of deliveries that a shard sends again at once to a resumed link, which requests more when its
client has read them."""
RESENT_MESSAGES: Final = 500
"""The same in messages: the frontend writes each by itself, in 15 us."""
TERMINUS_TIMEOUT_S_MAX: Final = 3_600
"""Longest time for which a link is suspended, whatever the client requests; the attach answer has this
time."""
LINK_UNANSWERED_BYTES: Final = 8 * 1024 * 1024
"""Target of unanswered bytes of a sending link; credit follows from it and the mean message size."""
CONNECTION_UNANSWERED_BYTES: Final = 32 * 1024 * 1024
"""Unanswered bytes of a connection from which its socket is not read, until half of them are answered."""
UNANSWERED_BATCH_BYTES: Final = 1_024
"""Bytes that a batch counts for besides its messages until it is answered: its objects take 300 to 550 bytes
in a frontend and 800 in a shard. Tiny messages over many links are a batch each."""
INTAKE_STALL_MS: Final = 1_000
"""How long the socket of a connection that also receives stays unread without an answer. Then it is read,
because its settlements may make room, and its messages are refused until there is room."""
FRONTEND_UNANSWERED_BYTES: Final = 256 * 1024 * 1024
"""Unanswered bytes of a frontend from which links fall back to LINK_CREDIT_MIN and sockets with more messages
are not read."""
FRONTEND_UNFINISHED_BYTES: Final = 1024 * 1024 * 1024
"""Bytes of unfinished messages of all connections; beyond, the connections with most of them are closed."""
HEADERS_CACHED: Final = 256
"""Decoded header sections that a process remembers; one sender's messages mostly have the same."""
EXPIRY_SPAN_MS: Final = 10
"""Messages that expire within this time of each other are one batch, which expires with the last of them. So
a message may be delivered this long after its expiry, like a message that the network delays, and never
expires early."""
BUS_LOCK_SHOWN_MS: Final = 24 * 3_600_000
"""Lock time that clients of Azure Service Bus are shown for a lock that only the end of its link ends: they
expect a time, and renew before it."""
LOCK_DOUBT_MS: Final = 1_000
"""Before the end of a lock from which a frontend asks the shard whether it has ended: their clocks differ,
and an outcome is on its way for a while."""
LOCK_ENDS_APART_MS: Final = 250
"""Locks of one link that end within this time of each other have one end at the frontend, the first."""
LOCK_ENDS_MAX: Final = 1_024
"""Ends of locks that a frontend knows for one link; later ones are assumed to be the last of these."""
DEFERRED_LOCK_MS: Final = 60_000
"""How long a deferred message is locked for who asks for it, where the queue has no lock_duration: no link
would end the lock of a client that has died."""
DEFERRED_RECEIVED_MAX: Final = 500
"""Deferred messages that one request receives."""
BUS_REASON_CHARACTERS: Final = 1_024
"""Characters of a dead letter's reason, and of its description, from a client of Azure Service Bus; the rest
is cut."""
SESSION_ID_CHARACTERS_MAX: Final = 128
"""Characters of the id of a session, as in Azure Service Bus; below KEY_BYTES_MAX, so that the key of a group
has all of them."""
SESSION_STATE_BYTES_MAX: Final = 256 * 1024
"""Bytes of the state of a session, as in Azure Service Bus."""
SESSIONS_SHOWN_MAX: Final = 1_000
"""Ids of sessions in the answer to one request."""
SESSION_LOADING_AGAIN_MS: Final = 50
"""After what time a frontend repeats a request about a queue whose groups are being read."""
SESSION_PEEK_PAGES_MAX: Final = 100
"""Pages of messages that are read from the shard for one request to peek at a session."""
SESSION_WAIT_MS: Final = 60_000
"""How long a receiver waits for the next available session, unless its client has another time-out: Azure
Service Bus waits for a minute."""
SESSION_WAIT_MS_MAX: Final = 3_600_000
"""Longest such wait."""
SESSION_ANSWER_MS: Final = 100
"""How long before the client's time-out it is answered that there is no session: the answer is on its way for
a while, and a client whose own time ends first reports another error."""
ACCESS_KEYS_MAX: Final = 4
"""Shared access keys of one user: replacing a key needs two; a signature is checked with each."""
BATCHED_MESSAGES_MAX: Final = 16_384
"""Messages in one transfer of format 0x80013700; a longer batch is refused whole."""
BATCHED_EXPIRY_SPAN_MS: Final = 1_000
"""Messages of such a transfer that expire within this time of each other are stored together, and expire with
the last of them: its sender made them one after the other, with the same ttl."""
REFUSED_PAUSE_MS: Final = 500
"""Time without new credit for a link after one of its batches was refused for lack of room."""
DELIVERY_WINDOW_MAX: Final = 2_000
"""Messages that a shard may send to a consumer beyond those that the consumer's socket accepted."""
DELIVERY_WINDOW_FIRST: Final = 64
"""The same for a connection that has not received a message yet: the size of its messages is unknown."""
DELIVERY_WINDOW_BYTES: Final = 2 * 1024 * 1024
"""Bytes of the same, by the mean message size, shared by the links of a connection; one message at least."""
CONNECTION_UNSETTLED_BYTES: Final = 64 * 1024 * 1024
"""Unsettled bytes of deliveries of a connection, with overhead; beyond, deliveries wait for settlements."""
UNSETTLED_SLICE_BYTES: Final = 1_024
"""Bytes that a slice of a batch counts for besides its messages until they are settled: objects of its
shard."""
UNSETTLED_RUN_BYTES: Final = 384
"""Bytes that a run of unsettled deliveries counts for: 150 in the frontend and 220 in the shard. Settlements
in another order, and links that alternate, make many runs."""
FRONTEND_UNREAD_BYTES: Final = 128 * 1024 * 1024
"""Bytes of a frontend that wait for clients that do not read, beyond WRITE_ROOM_MIN of each, or are on the
way to them; beyond, buffers and windows stay small."""
OUTFLOW_LOOK_MS: Final = 1_000
"""When FRONTEND_UNREAD_BYTES are used up, connections that received nothing for this time fall back to
WRITE_ROOM_MIN."""
LARGE_READ_BYTES: Final = 512 * 1024
"""Bytes of a message charged to FRONTEND_UNREAD_BYTES that a client has to read per LARGE_READ_LOOKS while
others wait for these bytes; the connection of a slower client is closed."""
LARGE_READ_LOOKS: Final = 10
"""Time for LARGE_READ_BYTES, in units of OUTFLOW_LOOK_MS."""
WRITE_ROOM_MIN: Final = 64 * 1024
"""Bytes that may wait for the socket of each connection, whatever others use. Shards may send it ahead in the
same proportion as DELIVERY_WINDOW_BYTES to WRITE_HIGH_WATER."""
LAST_READ_BYTES: Final = 64 * 1024
LAST_READS_MAX: Final = 64
"""How much is read from a socket whose client has reset it: more than a system keeps for one by default."""
WRITE_HIGH_WATER: Final = 1024 * 1024
"""Bytes that may wait for a socket whose receivers use up their windows; beyond, the connection gets no more
deliveries."""
WRITE_ANSWERS_BYTES: Final = 4 * 1024 * 1024
"""Bytes of answers that may wait, beyond WRITE_HIGH_WATER, for a peer that keeps sending; they count in
FRONTEND_UNREAD_BYTES. Beyond, the peer's socket is not read until the peer reads."""
STANDSTILL_MS: Final = 500
"""A timer this late means that the process was suspended, or the clock was set. Silence of clients until
then, and for as long again, does not count."""
TEMPORARY_NAMES_MAX: Final = 256
"""Dynamic nodes that a connection may have."""
ANONYMOUS_ADDRESSES_MAX: Final = 64
"""Addresses that a sender without a target keeps open; the least recently used is closed first."""
ANONYMOUS_CREDIT_MAX: Final = 500
"""Messages that such a sender may have unanswered, over all its addresses."""
ORPHANED_NODES_MAX: Final = 1_000
"""Dynamic nodes of a frontend that have outlived their connections, as their lifetime-policies ask; the
oldest is deleted for one more."""
DYNAMIC_NODES_CHECK_MS: Final = 1_000
"""How often the shards of dynamic nodes are asked for links and messages."""
LABEL_CHARACTERS_MAX: Final = 256
"""Characters of a link's name that are shown to people."""
UNUSED_TRIES: Final = 10
"""How often a shard is asked again whether a subscription to be deleted has no consumers."""
UNUSED_AGAIN_MS: Final = 50
"""Pause before each of these requests: a detach at another frontend takes milliseconds to reach the shard."""
DELAY_TRIES: Final = 100
"""How often a shard is asked whether a queue delays messages yet, and how often a change of a policy that
conflicts with another change is repeated."""
DELAY_AGAIN_MS: Final = 20
"""Pause before each further of these requests; a shard reads changes twenty times a second."""
EXPIRE_AGAIN_MS: Final = 1_000
"""Pause before another attempt to delete a name whose owner ended, after the coordinator failed."""
SOLE_CONNECTION_END_MS: Final = 500
"""A connection that is refused for another one of its container waits so long for the end of that one: its
client may have the answer to its close while its frontend deletes the claim."""
YIELD_MS: Final = 500
"""A link that its client attaches anew waits so long for the frontend that still has it open: outcomes of the
client may be on their way from there."""
ATTACH_AGAIN_MS: Final = 25
"""An attach whose name is deleted meanwhile is repeated at this interval."""
ATTACH_REPEATED_MS: Final = 5_000
"""For so long; then its client is asked to attach again."""
TAKEOVERS_AT_ONCE: Final = 500
"""Links that a shard opens in one turn in the place of former links of their clients: 10 to 20 ms."""
NODE_LINKS_MAX: Final = 64
"""Links of a connection to nodes of the frontend itself: $management, $cbs."""
NODE_REQUESTS_MAX: Final = 20
"""Requests that such a link may have unanswered."""
COORDINATOR_REQUEST_BYTES: Final = 4_096
"""Largest message to a coordinator of transactions."""
COORDINATOR_CREDIT: Final = 100
"""Credit of a link to a coordinator of transactions."""
TRANSACTIONS_PER_CONNECTION_MAX: Final = 1_024
"""Open transactions of one connection."""
TRANSACTION_MESSAGES_MAX: Final = 10_000
"""Messages that one transaction sends."""
TRANSACTION_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of the messages that one transaction sends."""
TRANSACTION_REWRITTEN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes that one transaction writes at a shard for what it settles as rejected or modified: dead letters, and
messages with annotations."""
TRANSACTION_PARTS_MAX: Final = 10_000
"""Batches that one transaction sends, ranges of deliveries that it settles, and ranges that it acquires."""
TRANSACTIONS_BYTES_MAX: Final = 256 * 1024 * 1024
"""Memory of all open transactions of a frontend; those of one connection have at most what is left of it."""
TRANSACTION_PARTS_AT_ONCE: Final = 250
"""Batches for which a frontend finds queues and shards, at a commit, before it does other work."""
TRANSACTION_OVERHEAD: Final = 2_048
"""Bytes that a declared transaction counts for."""
TRANSACTION_PART_OVERHEAD: Final = 512
"""Bytes that a batch of messages counts for besides them, and a range of deliveries that it settles."""
TRANSACTION_MESSAGE_OVERHEAD: Final = 64
"""Bytes that a message counts for besides its own."""
TRANSACTION_TIME_MS: Final = 300_000
"""Time without a discharge after which a transaction that has work is rolled back; one without work, if its
connection declares more transactions than it may have open."""
TRANSACTIONS_PREPARED_MAX: Final = 10_000
"""Transactions over several shards that wait for their decision at one shard. One user may have as many as
are free besides: the first one a half, each of two a third."""
TRANSACTIONS_PREPARED_SHARE: Final = 2
"""Their bytes in memory, at most the memory mark divided by this, are shared by users in the same way."""
TRANSACTIONS_PREPARED_BYTES_MIN: Final = 64 * 1024
"""They may have so much whatever the mark is."""
TRANSACTION_PREPARED_BYTES: Final = 3 * 1024
"""Bytes in memory for such a transaction beside its messages."""
TRANSACTION_PREPARED_PART_BYTES: Final = 1024
"""Bytes in memory for each of its batches and ranges of deliveries."""
TRANSACTIONS_AT_ONCE: Final = 500
"""Transactions that a shard concludes, forgets or asks about in one turn."""
DECISIONS_ASKED_AT_ONCE: Final = 16
"""Decisions that a shard requests from another one at the same time."""
TRANSACTIONS_SHOWN_MAX: Final = 1_000
"""Prepared transactions that a shard reports, the oldest first; the others are counted."""
TRANSACTION_QUEUES_SHOWN_MAX: Final = 20
"""Queues of each of them that are named."""
TRANSACTION_RESOLVE_MS: Final = 5_000
"""Time after which a shard with a prepared transaction asks the deciding shard for the decision."""
TRANSACTION_ABORTED_MS: Final = 3_600_000
"""How long the deciding shard remembers that it answered such a request with an abort; afterwards it refuses
all transactions that are not younger."""
TRANSACTIONS_ABORTED_MAX: Final = 100_000
"""Aborted transactions that it remembers; the oldest are forgotten earlier."""
TRANSACTION_COMMIT_MS: Final = 60_000
"""How long a commit looks for queues that move before the transaction is rolled back."""
NODE_REQUEST_BYTES: Final = 1024 * 1024
"""Largest request to such a node."""
NODE_REPLY_BYTES: Final = 4 * 1024 * 1024
"""Bytes of answers that may wait for a client's credit; beyond, it may send no requests."""
NODE_ADDRESSES_MAX: Final = 16
"""Queues that a request link keeps open for its answers; the least recently used is closed first."""
NODE_POST_MS: Final = 5_000
"""How long an answer waits for the shard of the queue that it goes to."""
MANAGEMENT_PAGE_MAX: Final = 500
"""Entities in the answer to one QUERY."""
MANAGEMENT_PAGE_BYTES: Final = 1024 * 1024
"""Bytes of entities after which such an answer ends; it has at least one entity."""
MANAGEMENT_FIGURES_AT_ONCE: Final = 50
"""Queues whose figures are asked for at a time."""
LOCKS_RENEWED_MAX: Final = 500
"""Deliveries whose locks one request renews."""
CBS_TOKENS_MAX: Final = 64
"""Audiences that a connection may have put tokens for."""
CONNECTIONS_MAX: Final = 65_536
"""Connections per frontend."""
VHOSTS_LOGGED_MAX: Final = 64
"""Virtual hosts that clients expect and that the log of a process names."""
HALF_OPEN_MAX: Final = 16_384
"""Connections per frontend that have not finished their open."""

# --- frontend to shard ---------------------------------------------------------------------------------
HEARTBEAT_MS: Final = 1_000
PEER_SILENCE_MS: Final = 5_000
"""Silence after which a shard or frontend counts as unreachable until it sends again."""

DISK_SILENCE_MS: Final = 5_000
"""Time of a commit after which the disk counts as hanging, and the shard is silent until it answers."""
DISK_ROOM_MS: Final = 10_000
"""Time for which messages must find room until a full disk counts as having room again."""

REQUEST_MS: Final = 30_000
"""How long a request waits for a shard's answer."""
OVERVIEW_MS: Final = 2_000
"""How long a request to all shards waits, so that a hanging shard does not delay the figures of the
others."""
REQUESTS_MAX: Final = 20_000
"""Requests of one process that wait for one shard."""
CONTROL_MS: Final = 2_000
"""How long a gateway waits for a frontend's answer about its connections."""
CONTROL_REQUESTS_MAX: Final = 1_000
"""Requests that wait for one frontend's answer."""
CONTROL_PAGE_MAX: Final = 100
"""Connections in one answer, which occupies a frontend for 5 ms."""
CONTROL_SCAN_MAX: Final = 4_096
"""Connections that a frontend examines for one answer with a filter."""
CONTROL_LINKS_SHOWN: Final = 16
"""Links of each connection in a list of connections; a request for one connection returns all of them."""
CONTROL_LINKS_MAX: Final = 4_000
"""Links in the answer about one connection."""
KEPT_SHOWN_MAX: Final = 100
"""Queues stored and not served whose names a shard reports; the others are counted."""
LEASE_MARGIN_MS: Final = 3_000
"""Time beyond ETCD_LEASE_MS after which a registration counts as that of a living process: etcd revokes
expired leases with some delay, and its leader may change."""
COORDINATOR_PAUSE_MS: Final = 100
"""Between two attempts to reach a coordinator that a process needs to start; doubles each time."""
COORDINATOR_PAUSE_MS_MAX: Final = 2_000
DIRECTORY_POLL_MS: Final = 50
"""Interval at which a process applies changes of names, subscriptions and rights."""

# --- time ----------------------------------------------------------------------------------------------
CLOCK_SLEW: Final = 10
"""After the wall clock was set, a process's clock gains or loses at most 1/CLOCK_SLEW of the passing time: a
jump of a minute is corrected in ten minutes, and a lock of 30 s is meanwhile 27 to 33 s long."""
CLOCK_JUMP_MS: Final = 1_000
"""Jump of the wall clock that counts as setting it and is logged."""

# --- log-ins -------------------------------------------------------------------------------------------
LOGIN_HASHES_AT_ONCE: Final = 2
"""Passwords that a process hashes at a time."""
LOGIN_SOURCE_FREE: Final = 10
"""Wrong log-ins of one address after which its next log-ins have to wait."""
LOGIN_SOURCE_MS: Final = 1_000
"""Time between two checks of log-ins from such an address; one wrong log-in is forgotten in this time."""
LOGIN_USER_FREE: Final = 20
"""Wrong log-ins for one user, from whatever addresses, before those from new addresses take longer."""
LOGIN_USER_MS: Final = 2_000
"""How much longer such a log-in takes."""
LOGIN_USER_PACE_MS: Final = 6_000
"""Time in which one wrong log-in for a user is forgotten."""
LOGIN_WRONG_COUNTED: Final = 100
"""Most wrong log-ins that are remembered of an address or a user, which bounds the time to forget them."""
LOGINS_WAITING: Final = 100
"""Log-ins of one address that wait for their check; more are refused."""
LOGIN_SOURCES_MAX: Final = 10_000
"""Addresses, and users, whose wrong log-ins a process counts; the longest silent are dropped first."""
LOGIN_LINES: Final = 100
"""Lines in the log about wrong log-ins per LOGIN_LOG_MS; one line at the end counts the others."""
LOGIN_LOG_MS: Final = 60_000
LOGIN_USERS_SAMPLED: Final = 50
"""Users whose numbers of rounds a process remembers, to answer for unknown users in the same way."""

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
"""Bytes of messages that one gateway receives and has not stored; further requests are answered with 503."""
HTTP_BATCH_BYTES: Final = 16 * 1024 * 1024
"""Largest body of a numbered batch; a batch of one message may be as large as a message."""
HTTP_BATCH_MESSAGES: Final = 65_536
"""Messages of one numbered batch: the runs of it that differ in durability, priority or time to live are
numbered with 16 bits."""
HTTP_BATCH_NUMBER_MAX: Final = (1 << 47) - 1
"""Highest number of a batch."""
HTTP_PRODUCER_BYTES: Final = 512
"""Longest name of a producer of numbered batches."""
HTTP_BATCH_QUEUES_AT_ONCE: Final = 16
"""Queues of a router that a numbered batch is sent to at a time."""
HTTP_BODY_MS: Final = 60_000
"""Time for the body of a request; then the request ends and frees its share of memory."""
HTTP_BACKLOG: Final = 4_096
"""Connections that wait to be accepted."""
HTTP_CONNECTIONS_MAX: Final = 65_536
"""Connections of one gateway to HTTP clients, where the descriptors of its process allow as many."""
HTTP_OWN_CONNECTIONS_MAX: Final = 256
"""The same at the page with a process's own metrics and health, which Prometheus and probes read."""
HTTP_WEBSOCKET_BUFFER_BYTES: Final = 256 * 1024
"""Bytes of a client that may wait for a frontend that does not read; beyond, the client's socket is not
read."""
HTTP_FILES_RESERVED: Final = 1_024
"""Descriptors of a process reserved for everything but HTTP connections."""
HTTP_FILES_PART: Final = 2
"""1 / this of the descriptors is for a gateway's HTTP connections if the reserve would leave fewer."""
HTTP_OWN_FILES_PART: Final = 8
"""The same for connections to the page with a process's own metrics."""
HTTP_SOURCE_PART: Final = 2
"""1 / this of the connections of a listener may come from one source."""
HTTP_IDLE_LOOKS: Final = 64
"""Connections that a full listener searches for one without a request, for a new client."""
HTTP_HEAD_MS: Final = 10_000
"""Time from accept to the complete head (line and headers) of the first request; the same for the TLS
handshake before it, and from the first byte of a later request to its complete head."""
HTTP_IDLE_MS: Final = 75_000
"""How long a connection may stay open without another request, as in nginx."""
HTTP_WRITE_MS: Final = 60_000
"""Time without reading after which a client's connection is closed during an answer."""
RECEIVE_WAIT_MS_MAX: Final = 600_000
"""Longest time-out of a request for a message."""
RECEIVERS_MAX: Final = 50_000
"""Requests of one gateway that wait for a message."""
RECEIVER_IDLE_MS: Final = 200
"""Idle time after which a gateway's consumer is closed, because it counts as one of the queue's. Opening the
next one needs no answer of the shard."""
SENDER_IDLE_MS: Final = 60_000
"""Idle time after which a gateway's producer is closed."""
PAGE_MAX: Final = 1_000
"""Most names, messages or other things in one answer."""
ADMINISTRATION_PAGE_MAX: Final = 100
"""Most entities in one answer to an administration client of Azure Service Bus, as there."""
CALLERS_MAX: Final = 10_000
"""Credentials that a gateway remembers as checked."""
CALLER_FRESH_MS: Final = 1_000
"""How long checked credentials are valid without reading their user again."""
TOKEN_SECONDS_MAX: Final = 30 * 86_400
"""Longest life of a token."""
TOKEN_SCOPES_MAX: Final = 64
"""Most prefixes that a token can be limited to: it travels in a header."""
SWEEP_MS: Final = 1_000
"""How often a gateway deletes expired names and subscriptions."""
ORPHAN_MS: Final = 60_000
"""Time without a registration of a frontend after which the names owned by its connections are deleted."""

# --- readers of journals -------------------------------------------------------------------------------
READERS_MAX: Final = 1_000
"""Readers that an installation may have."""
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
JOURNAL_READS_MAX: Final = 16
"""Such answers of one shard that wait for its disk; further requests are refused and have to be repeated."""
JOURNAL_READS_AHEAD: Final = 8
"""The same of one gateway at one shard; further requests wait in the gateway."""
BULK_GREETING_MS: Final = 5_000
"""How long a reader waits until the shard has greeted on the connection for large answers."""
BULK_IDLE_MS: Final = 60_000
"""Idle time after which the connection for large answers is closed."""
JOURNAL_ASK_MS: Final = 10_000
"""How long a gateway waits for a shard's list of journals; then the shard counts as unreachable."""
JOURNAL_AGAIN_MS: Final = 100
"""Pause before another request to a shard whose JOURNAL_READS_MAX is used up."""
JOURNAL_AGAIN_MAX: Final = 20
"""Number of these attempts for one piece."""
JOURNAL_STREAMS_MAX: Final = 16
"""Journals that one gateway sends to clients at a time; each occupies two pieces of memory."""
JOURNAL_STREAM_WAIT_MS: Final = 10_000
"""How long further requests wait."""
JOURNAL_WRITE_MS: Final = 60_000
"""Time without reading after which a client of a journal is disconnected, since its pieces occupy memory."""
SEGMENTS_SHOWN_MAX: Final = 2_000
"""Segments of journals in one answer of a shard."""

# --- shard ---------------------------------------------------------------------------------------------
DELIVERY_SLICE_MESSAGES: Final = 500
DELIVERY_SLICE_BYTES: Final = 256 * 1024
"""Most messages that one consumer gets in one turn."""
ANNOTATIONS_BYTES_MAX: Final = 64 * 1024
"""Bytes of all message-annotations of a message after consumers added theirs with modified or rejected."""
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
MEMORY_MARK_BYTES: Final = 1024 * 1024 * 1024
"""Bytes of messages that a shard keeps in memory before it spills to disk."""
MEMORY_LOW_WATER: Final = 0.9
"""Spilling continues down to this part of the mark, so that it is not needed again at once."""
FETCH_RETRY_MS: Final = 1_000
"""Pause after a failed read, before the same run is read again."""
JOINED_BYTES: Final = 64 * 1024
"""Largest size of a batch that is joined from small ones in memory; small is at most half of it."""
JOINED_SPAN_MS: Final = 60_000
"""Messages of one joined batch arrived within this time; it keeps the earliest time of arrival."""
JOIN_AT_BYTES: Final = 2 * JOINED_BYTES
"""Bytes that arrive in a queue before its batches are joined again."""
JOIN_BACKLOG_BYTES: Final = 8 * JOINED_BYTES
"""Ready bytes below which batches are not joined: they will be delivered before joining pays."""
LOCATION_BYTES: Final = 1024 * 1024
"""Largest area of the journal that one batch stands for, and so the largest read of a fetch."""
LOCATION_SPARSE_BYTES: Final = 8 * 1024 * 1024
"""The same with records of other queues in between, if at least one byte in LOCATION_SPARSENESS is the
queue's."""
LOCATION_SPARSENESS: Final = 32
LOCATION_SPARSE_MESSAGES_BYTES: Final = 256 * 1024
"""Most messages that such a sparse area stands for."""
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
"""Unsettled messages of a queue whose runs do not count towards the memory mark."""
RENEWED_LOCK_BYTES: Final = 100
"""Bytes of the note of a lock that was renewed, beside its run."""
RENEWED_LOCKS_UNCOUNTED_MAX: Final = 1_000
"""Renewed locks of a consumer that count with its next deliveries and settlements, and not at once."""
SINGLE_BYTES: Final = 250
"""Bytes in memory of a message that is a run of its own, on disk or not, with its due time; measured."""
KEYED_BYTES: Final = 150
"""Further bytes of such a message in an order by key, with a key of 16 characters."""
RANGE_BYTES: Final = 100
"""Bytes of a range of sequences that a consumer has yet to examine, or of a message's entry in its group."""
GROUP_BYTES: Final = 400
"""Bytes of a group that has messages, or whose last message left recently."""
REMEMBERED_ID_BYTES: Final = 170
"""Bytes of a message-id in a window of duplicates."""
TIMED_BYTES: Final = 200
"""Bytes of an entry for the expiry of a message or a lock."""
KEY_BYTES_MAX: Final = 256
"""Characters or bytes of a key. Longer keys are sorted by their beginning and distinguished by a digest."""
INDEX_SHARE: Final = 2
"""The indexes of all queues may take the memory mark divided by this; beyond, senders to queues with an index
wait."""
INDEX_BYTES_MIN: Final = 64 * 1024
"""Bytes that the indexes may always take."""
IDS_SHARE: Final = 4
"""The message-ids in the windows of duplicates may take the memory mark divided by this; beyond, the queues
with most of them forget their oldest early."""
CONSUMER_BYTES: Final = 1_500
"""Bytes of a consumer at its shard: measured are 1,440 with a label of 34 characters."""
SELECTOR_FACTOR: Final = 120
"""Bytes of a selector for each character of its filter: measured are 119 with LIKE, 95 where numbers are
compared, 72 with texts, 17 with IN."""
LINKS_SHARE: Final = 4
"""Consumers and their selectors may take the memory mark divided by this; beyond the share of a user, none of
its consumers is attached."""
LINKS_BYTES_MIN: Final = 4 * 1024 * 1024
"""They may have so much whatever the mark is."""
UNSETTLED_SHARE: Final = 4
"""What stays in memory of unsettled deliveries may take the memory mark divided by this; beyond, consumers
with many of them get no more until they have settled some."""
UNSETTLED_RUNS_MIN: Final = 16
"""Runs that each consumer may have unsettled whatever others have."""
UNSPILLABLE_SLACK_BYTES: Final = 1024 * 1024
"""Bytes beyond the memory mark that can't be spilled, from which no sender is answered."""
LOCATION_SINGLES_BYTES: Final = 32 * 1024
"""Largest area of the journal that is read for one message of a queue with a run per message, if no record is
larger."""
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
LOG_NAMES_MAX: Final = 20
"""Queues that the log names; the others are counted."""
SEGMENT_BYTES: Final = 64 * 1024 * 1024
FULL_RETRY_MS: Final = 250
"""How often a full disk is tried again."""
STORE_RESERVE_BYTES: Final = SEGMENT_BYTES
"""Free space that SQLite's store leaves for settlements when the disk runs full."""
STORE_RECORDS_AT_ONCE: Final = 1_024
"""Records whose messages a store without segments releases together."""
SPAN_BYTES_MAX: Final = 1024 * 1024
"""Longest area of a segment that one span of live messages covers, and so the largest read for them."""
FILE_COPY_BYTES: Final = 1024 * 1024
"""Bytes of a copied file in memory at a time."""
CLEAN_LIVE_FACTOR: Final = 2
"""Disk use stays below this times the live bytes, and CLEAN_SLACK_SEGMENTS segments."""
CLEAN_SLACK_SEGMENTS: Final = 2
CLEAN_SLACK_FILES: Final = 16
"""Files beyond the number that the bytes need that are not cleaned: each restart makes a short file."""
LAZY_COMMIT_MS: Final = 5
"""How long settlements without a waiting client are collected for a commit; a crash redelivers their
messages."""
CAPTURE_GATHERED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of transient messages of captured queues that are collected for a commit; beyond, senders wait for
it."""
CLEAN_BYTES: Final = 2 * 1024 * 1024
"""Bytes of live messages that the cleaner rewrites between two commits."""
CLEAN_RUNS: Final = 1_000
"""Runs of messages that the cleaner rewrites between two commits."""
ARCHIVE_LOOK_MS: Final = 10_000
"""How often a shard applies retention to its archive."""
ARCHIVE_RETRY_MS: Final = 5_000
"""Pause before another attempt after the archive's disk failed."""
ARCHIVE_SEGMENTS_AT_ONCE: Final = 16
"""Segments that one round of the archiver copies."""
PRODUCERS_MAX: Final = 100_000
"""Producers whose last batch number a shard remembers; the longest silent is dropped first."""
DUPLICATE_IDS_MAX: Final = 100_000
"""Message-ids that a queue remembers for its duplicate window; the oldest are forgotten early."""
PARKED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of batches that wait in a shard for room in their queues, at most half of its memory mark; batches
beyond are refused."""
QUEUE_NAME_BYTES_MAX: Final = 512
NAMES_MAX: Final = 200_000
"""Names with a role."""
SUBSCRIPTIONS_MAX: Final = 10_000
"""Subscriptions of a router, by default."""
FILTERS_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of the filters, actions and rules of all subscriptions, as JSON; a frontend or gateway that routes by
all of them takes up to 120 bytes for each."""
RULES_MAX: Final = 100
"""Rules of a subscription."""
RULES_BYTES_MAX: Final = 256 * 1024
"""Bytes of the rules of a subscription as JSON, which are one entry of the coordinator."""
NAMES_AT_ONCE: Final = 250
"""Names that a list or an export takes from the directory before other requests run, at about 10 us each."""
CHILDREN_AT_ONCE: Final = 50
"""Segments below a name that a list counts before other requests run."""
EQUAL_VALUES_MAX: Final = 1_024
"""Different policies, and placements, that a process decodes once; more of them are decoded again."""
ROUTE_PATHS_MAX: Final = 100_000
"""Paths of a message from a router to queues, over all routers behind it."""
QUEUE_BYTES: Final = 4_340
"""Bytes of a queue at its shard without any message or link; measured."""
QUEUES_SHARE: Final = 2
"""Queues may take the memory mark of their shard divided by this; beyond, no further one is created there."""
QUEUES_BYTES_MIN: Final = 4 * 1024 * 1024
"""They may take so much whatever the mark is."""
QUEUES_MAX: Final = 100_000
"""Queues created by attaching, per shard."""
PEEK_MESSAGES_MAX: Final = 1_000
PEEK_BYTES_DEFAULT: Final = 1024 * 1024
PEEK_BYTES_MAX: Final = 8 * 1024 * 1024
"""Most messages, and bytes of them, that one peek at a queue returns; at least one message."""
PEEKS_MAX: Final = 64
"""Peeks at a shard's queues that wait for the disk."""
QUEUES_SHOWN_MAX: Final = 1_000
"""Queues in one answer of figures."""
CONSUMERS_SHOWN_MAX: Final = 1_000
"""Consumers in the figures of one queue."""
SEQUENCES_KEPT: Final = 4_096
"""Batches of a producer that requested sequences whose first one is remembered for repeats."""
SEQUENCE_PRODUCERS_KEPT: Final = 1_024
"""Closed producers of this kind that are remembered."""
ROUTE_TARGETS_MAX: Final = 10_000
"""Queues of a shard in one set of a router's link; the journal would take 65,535."""
ROUTE_SETS_MAX: Final = 10_000
"""Sets of one link; the oldest is dropped for the next."""
PRIORITIES_MAX: Final = 10
"""Levels of priority of a queue, as in JMS; AMQP's header has 256 values, of which ten are in use."""
COLLECT_YOUNG: Final = 50_000
"""New objects after which Python's garbage collector scans the new objects of a shard; every third time it
also scans those of the two scans before."""
COLLECT_LOOK_MS: Final = 500
"""How often a shard checks how many objects the collector would have to scan."""
COLLECT_ALL_BLOCKS: Final = 400_000
"""Blocks of memory of a shard beyond which no full scan is made, since it takes 0.25 us for each object. A
shard without queues has 225,000 blocks, 60,000 of them scanned objects; a message that arrived alone adds six
blocks, four of them scanned objects."""
COLLECT_ALL_LOOKS: Final = 120
"""Least number of these checks between two full scans."""
SELECTOR_LOOKS: Final = 2_000
"""Messages that the selectors of a queue's consumers examine in one step; the next step continues there."""
QUEUE_WORK_OF_A_TURN: Final = 20_000
"""Units of about a microsecond that the queues of a shard may spend in one step on expiry, a lost frontend or
a new policy; the next step continues."""
DELIVERIES_OF_A_TURN: Final = 20_000
"""Runs that the queues of a shard deliver in one step, 2.2 us each; the next step continues."""
GIVEN_BACK_ONE_BY_ONE: Final = 16
"""Returned runs that are inserted into a line one by one; more of them are merged in at once."""
RETURNED_AT_ONCE: Final = 4_000
"""Deliveries that a closing consumer returns at once; more return in several steps."""
EXPIRED_AT_ONCE: Final = 500
"""Messages of one batch that become dead letters in one step."""
PURGED_AT_ONCE: Final = 4_000
"""Runs of messages that a purge removes in one step."""
LOOKS_OF_A_TURN: Final = 200_000
"""Budget of filters in one step of a shard, in units of about 0.1 microseconds: operators, and work that
depends on the message (filters/message.py). The next step continues."""
SETTLE_SLICE: Final = 4_000
"""Runs of deliveries that a range settles, or a closing consumer returns, in one turn."""
SETTLE_SLICE_REWRITTEN: Final = 1_000
"""The same where each run returns to the queue, or is rewritten."""
SETTLE_SLICE_MESSAGES: Final = 2_000
"""Delivery numbers in the same, however few runs they are."""
SETTLE_SLICE_BYTES: Final = 8 * 1024 * 1024
"""Bytes of the same: those of the settlement, annotations included, for each message it is written into."""
LOOKED_INTO_AT_ONCE: Final = 1_000
"""Messages for queues with an index (keys, groups, delays, duplicates) that a shard stores between two looks
at the clock, at 12 microseconds each. Larger batches are split."""
ROUTED_LOOKS_AT_ONCE: Final = 2_000
"""Messages of one routed batch times the queues with an index among its targets at one shard. Frontends split
a larger batch, down to one message."""
JOINED_SLICE_MESSAGES: Final = 8
"""Slices of so few messages, of batches up to JOINED_SLICE_BYTES, are joined with those that follow."""
JOINED_SLICE_BYTES: Final = 8 * 1024
JOINED_SLICES: Final = 64
"""Most slices that are joined to one."""
SHARD_PARTS: Final = 256
"""Frames that a shard receives between two looks at the clock."""
SHARD_MESSAGES: Final = 4_000
"""ZeroMQ messages that a shard reads in a turn; those beyond SHARD_INTAKE_MS wait in its backlog."""
WIRE_MESSAGES_AHEAD: Final = 4_000
"""ZeroMQ messages between a frontend and a shard that were received and not read yet. They lie in
buffers of 8 KiB, which live as long as the last message in them; a message that arrives alone occupies a
buffer of its own. Further messages wait at the sender, where they occupy only their length."""
SHARD_INTAKE_MS: Final = 20
"""Part of a shard's turn for frames of frontends; the rest waits for the next turns, in each frontend's
order."""
LOADING_BYTES: Final = 16 * 1024 * 1024
"""Bytes that are read at once to build the index of a queue."""
LOADING_LOOKS: Final = 2_000
"""Messages that are indexed in one step while a queue is loaded; at least a batch."""
DELIVERY_MARK_PAUSE_MS: Final = 10
"""A delivery mark that is due again sooner than this is written further ahead."""
DELIVERY_MARK_WAIT_MS: Final = 1_000
"""How long deliveries beyond the mark in the file wait for a new mark; if the disk hangs, they are sent
anyway."""
DELIVERY_MARK_AHEAD_MAX: Final = 16_384
"""Most messages by which a delivery mark is ahead of the deliveries; it is rewritten after half as many.
After a crash up to this number of undelivered messages may count as delivered."""

# --- filters and actions -------------------------------------------------------------------------------
FILTER_EXPRESSION_BYTES: Final = 8 * 1024
"""Bytes of one SQL expression, JMS selector or subject pattern; Service Bus takes 1,024 characters."""
FILTER_PARAMETERS_BYTES: Final = 8 * 1024
"""Bytes of the parameters of a filter or an action as JSON."""
FILTER_DEPTH_MAX: Final = 32
"""Expressions inside one another: parentheses, NOT, chains of arithmetic; also all, any and not in JSON."""
FILTER_NODES_MAX: Final = 1_000
"""Operators, literals and fields of one filter."""
SOURCE_FILTERS_MAX: Final = 16
"""Filters of one receiving link; RabbitMQ takes as many fields."""
FILTER_PATH_BYTES: Final = 512
"""Bytes of the name of an application property or annotation in a filter or action."""
FILTER_PATHS_KEPT: Final = 4_096
"""Parsed paths that a process caches."""
FILTER_WEIGHT_MAX: Final = 5_000
"""Operators, literals and fields of all expressions of one filter, and words of its subject patterns, eight
of which count as one."""
FILTER_SECTION_BYTES: Final = 1024 * 1024
"""Largest section of a message that filters read; fields of a larger one count as absent."""
FILTER_MAP_ITEMS: Final = 32 * 1024
"""Most keys and values of a section that filters read, in the same way."""
FILTER_SECTIONS_MAX: Final = 16
"""Sections before the body that filters read; there are five (messaging 3.2)."""
LIKE_TEXT_MAX: Final = 64 * 1024
"""Longest value that LIKE matches; a longer one is UNKNOWN. It bounds the time of one match."""
LIKE_WORK_MAX: Final = 2 * 1024 * 1024
"""Characters times weight (filters/like.py) that all LIKE of one filter may examine per message, about 30 ms:
more than sixteen patterns, or heavy ones, get less than LIKE_TEXT_MAX each."""
SUBJECT_WORDS_MAX: Final = 1_024
"""Words of a subject; a longer subject matches no pattern but `#`."""
ACTION_ENTRIES_MAX: Final = 64
"""Fields that one action sets or removes."""
TARGET_SETS_MAX: Final = 4_096
"""Different sets of subscriptions that a matcher caches; then it starts with an empty cache."""
TARGETS_KEPT_MAX: Final = 65_536
"""Subscriptions in all of these sets together, with the same consequence; 70 bytes for each."""
RELAY_IDLE_MS: Final = 1_000
"""Time after which an unused grant of a connection point's sender passes to a sender that waits."""

# --- forwarding of the gateway -------------------------------------------------------------------------
TRANSFERS_RUNNING: Final = 16
"""Transfers that one gateway runs at a time."""
TRANSFERS_KEPT: Final = 200
"""Ended transfers that are still shown; the oldest are dropped first."""
TRANSFER_WINDOW: Final = 1_000
"""Unanswered messages of a transfer at its sink."""
TRANSFER_WINDOW_FIRST: Final = 16
"""The same while the size of the messages is unknown."""
TRANSFER_WINDOW_BYTES: Final = 32 * 1024 * 1024
"""Bytes of the same, by the mean message size; one message at least."""
TRANSFER_HELD: Final = 1_000
"""Messages that a transfer could not send, or received too late, after which it ends."""
TRANSFER_CANCEL_MS: Final = 5_000
"""How long a cancellation of a transfer waits for messages under way."""
FORWARDER_WINDOW_BYTES: Final = 8 * 1024 * 1024
"""Bytes of unsettled messages of a forwarder or pusher, by their mean size; at least one message."""
FORWARDER_WINDOW_FIRST: Final = 8
"""Messages of the same while their size is unknown."""
FORWARD_WINDOW: Final = 100
"""Dead letters of one queue that are being forwarded at a time."""
FORWARD_PAUSE_MS: Final = 1_000
"""Pause before a dead letter that its target refused is sent again; it doubles up to FORWARD_PAUSE_MS_MAX."""
FORWARD_PAUSE_MS_MAX: Final = 60_000
FORWARDER_OPEN_PAUSE_MS: Final = 1_000
"""Pause before a forwarder whose consumer could not be opened, or was closed, tries again."""
PUSH_WINDOW: Final = 8
"""Messages of one subscription that are pushed at a time, those that wait for another attempt included."""
PUSHES_UNDER_WAY: Final = 256
"""Requests of one gateway to the URLs of subscriptions that wait for an answer."""
PUSH_REQUEST_MS: Final = 10_000
"""How long an endpoint may take for its answer."""
PUSH_RESPONSE_BYTES: Final = 64 * 1024
"""Bytes of an answer that are read so that the connection can be reused; after a longer one it is closed."""
PUSH_BACKOFF_FACTOR_MAX: Final = 100
"""Longest pause between two attempts, as a multiple of the policy's push_backoff; the pauses double up to
it."""
PUSH_RETRY_AFTER_MS_MAX: Final = 3_600_000
"""Longest pause that an endpoint may ask for."""
PUSH_URL_BYTES: Final = 2_048
PUSH_ALLOW_MAX: Final = 1_000
"""Patterns in the setting push_allow."""

# --- moving queues ------------------------------------------------------------------------------------------
MOVES_AT_ONCE: Final = 8
"""Queues that one shard copies to itself at the same time."""
MOVE_FROZEN_MS: Final = 10_000
"""Time after which the source of a frozen queue tries to win it back."""
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
ETCD_CALL_MS: Final = 5_000
"""How long a read or write waits for etcd, all attempts together."""
ETCD_ATTEMPT_MS: Final = 2_000
"""How long one endpoint may take for its answer before the next one is asked."""
ETCD_CALLS_WAITING: Final = 100_000
"""Writes of one process that wait for etcd: some hundred bytes each."""
ETCD_GROUP_BYTES: Final = 512 * 1024
"""Keys and values of writes that are sent as one transaction; etcd takes 1.5 MiB (--max-request-bytes)."""
ETCD_OPEN_MS: Final = 10_000
"""How long a command waits for etcd and for reading its key space."""
ETCD_OPEN_MS_MAX: Final = 60_000
"""The same for one attempt of a process."""
ETCD_THREADS: Final = 4
"""Calls of one process that are under way to etcd at a time."""
ETCD_STREAM_THREADS: Final = 2
"""Threads that gRPC starts for an open stream: one sends requests, one collects answers. The watch of a
process is such a stream, and so is each refresh of its lease."""
ETCD_LEASE_MS: Final = 10_000
"""Life of a registration without a refresh; refreshed at a third of it."""
EXTENT_REPORT_MS: Final = 5_000
"""How often a shard reports the end of its journal. A copy of its directory that lacks less than that is not
recognised as outdated."""
ETCD_BEHIND_MS: Final = 2_000
"""How long a write waits until it is visible in the process's own view."""
ETCD_PAUSE_MS: Final = 100
"""Pause before another request to an unreachable etcd; it doubles up to ETCD_PAUSE_MS_MAX."""
ETCD_PAUSE_MS_MAX: Final = 2_000
ETCD_PING_MS: Final = 10_000
"""Silence of etcd after which gRPC pings it; servers refuse less than 5 s."""
ETCD_PING_ANSWER_MS: Final = 3_000
"""How long etcd has to answer the ping."""
ETCD_ANSWER_BYTES: Final = 256 * 1024 * 1024
"""Largest answer of etcd: a page of 1,000 entries, or the changes of one transaction."""
ETCD_CHANGES_KEPT: Final = 20_000
"""Changes that a process remembers for followers in the process that have not read them yet."""
OWNER_RETRY_MS: Final = 10
"""Pause before links are opened again at a shard that did not own their queue; it doubles up to
OWNER_RETRY_MS_MAX."""
OWNER_RETRY_MS_MAX: Final = 500
OWNER_LATE_MS: Final = 2_000
"""How long a former owner of a queue, by the placement, may take to send MOVED; then its links are opened at
the new owner without it."""
OWNER_LOST_MS: Final = 5_000
"""Time without an owner after which links end if the coordinator has no placement of their queue."""
OWNER_HELD_MAX: Final = 100_000
"""Settlements and closes of one queue that wait for the shard that the queue moves to."""
OWNER_LAST_MAX: Final = 10_000
"""Settlements and closes without a link that were sent to the owner and may be bounced by it once."""
MOVE_AGAIN_MS: Final = 100
"""Pause before a step of a move that found a shard or the coordinator unreachable is tried again; it
doubles."""
MOVE_AGAIN_MS_MAX: Final = 2_000
"""Longest such pause; also between two attempts of a source to win its frozen queue back."""
MOVE_SOURCE_AGAIN_MS_MAX: Final = 250
"""Longest pause before an unreachable source is asked again, and how long a request waits for its greeting:
its queue may be frozen and wait for the destination."""
MOVE_THROTTLED_CHUNK_BYTES_MIN: Final = 64 * 1024
"""Least answer of a copy with a throttle: with smaller ones it would never catch up with a busy queue."""
MOVE_THROTTLE_LOOK_S: Final = 0.25
"""How often a copy that waits for its throttle checks whether it was cancelled."""
MOVE_SOURCE_IDLE_MS: Final = 5_000
"""Idle time after which a connection to another shard is closed."""
MOVES_SHOWN_MS: Final = 600_000
"""How long an ended move is shown."""
MOVES_SHOWN_MAX: Final = 1_000
"""Ended moves that are shown; the oldest are dropped first."""
MOVED_LINKS_MAX: Final = 65_536
"""Moved consumers of one frontend that a shard remembers, to return their settlements to the frontend."""
MOVE_HELD_FRAMES_MAX: Final = 10_000
"""Settlements of a consumer whose queue is about to be opened here; those beyond are dropped, and their
messages are delivered again."""
MOVE_CHUNK_RUNS: Final = 2_000
"""Runs of messages in the same, each of which is a record at the destination."""

# --- Spark ------------------------------------------------------------------------------------------------
SPARK_WINDOW_BYTES: Final = 8 * 1024 * 1024
"""Bytes of a segment that are read at once; a larger record is read on its own."""
SPARK_BATCH_ROWS: Final = 65_536
"""Rows of a record batch."""
SPARK_BATCH_BYTES: Final = 16 * 1024 * 1024
"""Bytes of the messages in a record batch; a larger message is a batch of its own."""
SPARK_MAP_PAIRS: Final = 64
"""Entries of maps that are read in all messages of a batch at once; larger maps are read one by one."""
SPARK_RETRY_MS: Final = 300_000
"""How long a task repeats a request that fails temporarily: recovery of a shard takes a while."""
SPARK_RETRY_PAUSE_MS: Final = 100
"""Pause before the first of these attempts; it doubles up to SPARK_RETRY_PAUSE_MS_MAX."""
SPARK_RETRY_PAUSE_MS_MAX: Final = 5_000
SPARK_ANSWER_MS: Final = 90_000
"""How long a gateway may be silent; longer than a gateway waits for a shard."""
SPARK_ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
"""Largest answer of a gateway that a task reads."""
SPARK_LAKE_BUFFER_BYTES: Final = 128 * 1024 * 1024
"""Rows that a task of `capture` collects before it writes them to files."""
SPARK_LAKE_BATCH_BYTES: Final = 1024 * 1024 * 1024
"""Bytes of journals in one commit of `capture`, by default."""
SPARK_LAKE_FILE_BYTES: Final = 256 * 1024 * 1024
"""Target size of files of `compact`."""
SPARK_LAKE_AGAIN: Final = 10
"""How often a commit that conflicts with another one is tried again."""
SPARK_LAKE_VACUUM_HOURS_MIN: Final = 24
"""Age below which files without a commit may belong to a batch under way."""

# --- Spark's side ---------------------------------------------------------------------------------------
SPARK_CLOCK_MS: Final = 600_000
"""How much earlier a record's time may be than that of earlier records, after a clock was set back."""
SPARK_RANGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a journal in one request."""
SPARK_TASK_BYTES: Final = 64 * 1024 * 1024
"""Bytes of journals that a task reads: smaller segments are joined, larger ones split at blocks."""
SPARK_PIN_MS: Final = 30_000
"""How long a query tries to move its pin; the next micro-batch tries again."""
SPARK_SINK_MESSAGES: Final = 1_000
"""Messages of one request of the sink."""
SPARK_SINK_CHUNK_BYTES: Final = 1024 * 1024
"""Bytes of one request of the sink."""
SPARK_SINK_BYTES: Final = 16 * 1024 * 1024
"""Bytes of messages for several targets that a task gathers before it sends them; the driver sends the
rest."""
SPARK_SINK_TARGETS: Final = 10_000
"""Targets that a task gathers messages for before it sends them."""
SPARK_SINK_ID_BYTES: Final = 200
"""Longest name of a write; the name of a producer is made of it and the partition."""

SPARK_REPORT_TOP_MAX: Final = 50
"""Queues and shards that a report names; the others are summed."""
SPARK_REPORT_STEPS_MAX: Final = 120
"""Points in time of a chart."""
SPARK_REPORT_REASONS_MAX: Final = 12
"""Reasons of dead letters that a report names."""
SPARK_REPORT_TEXT_MAX: Final = 120
"""Characters of a name or reason in a report; of a longer one the end is shown."""
SPARK_PLAN_QUEUES_MAX: Final = 1_000_000
"""Queues whose loads the driver of `lightrail-spark plan` keeps in memory."""
SPARK_LAST_HOURS_MAX: Final = 24 * 366 * 100
"""Most hours of --last, so that the time stays within the calendar."""
