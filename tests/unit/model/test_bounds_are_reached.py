"""Every bound that somebody outside reaches is named by a test that reaches it; of others it is said why not.

"Outside" is whoever connects, sends, receives, asks or manages within its rights. A name is looked for in the
files of tests: whoever adds a limit writes the test that reaches it, or says here who alone comes near it.
"""

import re
from pathlib import Path

from tests.support import bounds
from tests.support.broker import ROOT

TESTS = ROOT / "tests"
OWN_PACE = "a pace of the process itself: it bounds how often or how long, and nobody outside changes it"
OWN_WORK = "how the process cuts its own work into pieces; what may be asked for has a bound of its own"
COST = "what a thing in memory is counted with; tests of INDEX_SHARE and RUN_BYTES hold the sums to reality"
MODELLED = "tests/model/modelled_queue.py makes it small, so that the histories of the model cross it"
SPARK = "of a job that its owner starts in a cluster of Spark: its memory and its patience, not the broker's"
ETCD = "how a process deals with its etcd; who sends or manages has ETCD_CALLS_WAITING before it"
COST_OF_A_TURN = "what a thing counts for in the budget of a turn, whose tests are in test_turns.py"
DEFAULT = "a default where nobody says another value; the bound is that of the setting or field"

NOT_FROM_OUTSIDE = {
    # frontend
    "HEADERS_CACHED": "the size of an lru_cache, which keeps to it",
    "STANDSTILL_MS": OWN_PACE,
    "UNUSED_TRIES": OWN_PACE,
    "DELAY_TRIES": OWN_PACE,
    "DELAY_AGAIN_MS": OWN_PACE,
    "CONTROL_MS": OWN_PACE,
    "CLOSE_ANSWER_MS": OWN_PACE,
    "LAST_READ_BYTES": "of what the kernel has of a socket that was reset, which the kernel bounds",
    "LAST_READS_MAX": "of what the kernel has of a socket that was reset, which the kernel bounds",
    "DIRECTORY_POLL_MS": OWN_PACE,
    "COPIED_BYTES": OWN_WORK,
    "PACE_SAMPLE_MS": OWN_PACE,
    "PACE_MEAN_MS": OWN_PACE,
    "PACE_SLOWNESS": "what unit/shard/test_pacing.py has slow workers on either side of",
    "ATTACH_FRAMES": COST_OF_A_TURN,
    "DROPPED_RANGES_A_FRAME": COST_OF_A_TURN,
    "OVERVIEW_MS": "how long a gateway waits for a shard; chaos/test_hanging_disk.py has one that hangs",
    # shards
    "GIVEN_BACK_ONE_BY_ONE": OWN_WORK,
    "LOOK_NS": OWN_PACE,
    "ENDED_NS": OWN_PACE,
    "YIELD_NS": OWN_PACE,
    "STUCK_NS": OWN_PACE,
    "MESSAGES_AHEAD": "of one connection between two members, in a socket of ZeroMQ, which keeps to it",
    "PURGED_AT_ONCE": OWN_WORK,
    "TRANSACTIONS_PREPARED_SHARE": "test_room.py fills the room that it gives at the marks of its shards",
    "TRANSACTION_PREPARED_PART_BYTES": COST,
    "SETTLED_AT_ONCE": OWN_WORK,
    "KEPT_SHOWN_MAX": "of names in one answer to gateways; the others are counted",
    "CLOCK_JUMP_MS": "when the log says that the machine's clock was set",
    "LOGIN_LOG_MS": OWN_PACE,
    "HTTP_BACKLOG": "the kernel's line of connections that are not accepted yet, which the kernel bounds",
    "HTTP_FILES_RESERVED": "tests of HTTP_FILES_PART give a process so few descriptors that the part counts",
    "SWEEP_MS": OWN_PACE,
    "JOURNAL_READS_AHEAD": "a turn in the gateway: who is beyond waits, and JOURNAL_STREAMS_MAX is before it",
    "BULK_GREETING_MS": OWN_PACE,
    "JOURNAL_ASK_MS": OWN_PACE,
    "DELIVERY_COUNT_MAX_DEFAULT": DEFAULT,
    "MEMORY_MARK_BYTES": DEFAULT,
    "MEMORY_LOW_WATER": OWN_WORK,
    "JOINED_SPAN_MS": OWN_WORK,
    "JOIN_AT_BYTES": MODELLED,
    "JOIN_BACKLOG_BYTES": MODELLED,
    "LOCATION_SPARSE_BYTES": MODELLED,
    "LOCATION_SPARSENESS": OWN_WORK,
    "LOCATION_SPARSE_MESSAGES_BYTES": OWN_WORK,
    "SLIM_BYTES_MIN": OWN_WORK,
    "KEYED_BYTES": COST,
    "RANGE_BYTES": COST,
    "GROUP_BYTES": COST,
    "TIMED_BYTES": COST,
    "FETCHES_AHEAD_MAX": OWN_WORK,
    "LOOK_AHEAD_MESSAGES": OWN_WORK,
    "LOG_NAMES_MAX": "of names in one line of the log",
    "STORE_RESERVE_BYTES": "what a full disk leaves for settlements; tests of full disks fill it",
    "STORE_RECORDS_AT_ONCE": OWN_WORK,
    "FILE_COPY_BYTES": OWN_WORK,
    "CLEAN_LIVE_FACTOR": OWN_WORK,
    "CLEAN_SLACK_SEGMENTS": OWN_WORK,
    "CLEAN_SLACK_FILES": OWN_WORK,
    "LAZY_COMMIT_MS": OWN_PACE,
    "CLEAN_BYTES": OWN_WORK,
    "ARCHIVE_SEGMENTS_AT_ONCE": OWN_WORK,
    "PEEK_BYTES_DEFAULT": DEFAULT,
    "LOADING_BYTES": MODELLED,
    "LOADING_LOOKS": OWN_WORK,
    "RELAY_IDLE_MS": OWN_PACE,
    # forwarding, moves, homes
    "TRANSFER_CANCEL_MS": OWN_PACE,
    "FORWARD_PAUSE_MS": OWN_PACE,
    "FORWARD_PAUSE_MS_MAX": OWN_PACE,
    "TOPICS_SWEEP_MS": OWN_PACE,
    "MOVE_CHUNK_BYTES": "of what shards, which have the installation's key, answer each other",
    "MOVE_CHUNK_RUNS": "of what shards, which have the installation's key, answer each other",
    "MOVE_AGAIN_MS": OWN_PACE,
    "MOVE_SOURCE_AGAIN_MS_MAX": OWN_PACE,
    "MOVE_THROTTLED_CHUNK_BYTES_MIN": OWN_WORK,
    "MOVES_SHOWN_MAX": "the maxlen of a deque, which keeps to it",
    # etcd
    "ETCD_CALL_MS": ETCD,
    "ETCD_ATTEMPT_MS": ETCD,
    "ETCD_OPEN_MS": ETCD,
    "ETCD_OPEN_MS_MAX": ETCD,
    "EXTENT_REPORT_MS": OWN_PACE,
    "ETCD_BEHIND_MS": ETCD,
    "ETCD_PAUSE_MS": ETCD,
    "ETCD_PAUSE_MS_MAX": ETCD,
    "ETCD_PING_MS": ETCD,
    "ETCD_PING_ANSWER_MS": ETCD,
    "ETCD_ANSWER_BYTES": ETCD,
    "ETCD_CHANGES_KEPT": ETCD,
    # Spark
    "SPARK_BATCH_ROWS": SPARK,
    "SPARK_BATCH_BYTES": SPARK,
    "SPARK_MAP_PAIRS": SPARK,
    "SPARK_RETRY_MS": SPARK,
    "SPARK_RETRY_PAUSE_MS": SPARK,
    "SPARK_ANSWER_MS": SPARK,
    "SPARK_ANSWER_BYTES_MAX": SPARK,
    "SPARK_LAKE_BUFFER_BYTES": SPARK,
    "SPARK_LAKE_BATCH_BYTES": SPARK,
    "SPARK_LAKE_FILE_BYTES": SPARK,
    "SPARK_LAKE_AGAIN": SPARK,
    "SPARK_LAKE_VACUUM_HOURS_MIN": SPARK,
    "SPARK_CLOCK_MS": SPARK,
    "SPARK_RANGE_BYTES": SPARK,
    "SPARK_TASK_BYTES": SPARK,
    "SPARK_PIN_MS": SPARK,
    "SPARK_SINK_MESSAGES": SPARK,
    "SPARK_SINK_CHUNK_BYTES": SPARK,
    "SPARK_SINK_ID_BYTES": SPARK,
    "SPARK_REPORT_TOP_MAX": SPARK,
    "SPARK_REPORT_REASONS_MAX": SPARK,
    "SPARK_PLAN_QUEUES_MAX": SPARK,
    "SPARK_LAST_HOURS_MAX": SPARK,
}
"""Names of limits that nobody outside reaches, or whose reaching shows nothing; each with the reason."""

ELSEWHERE = {
    "amqp/reader.py:CONTINUATION_BYTES_MAX": "longer encodings of transfers are decoded and not compared",
    "amqp/shapes.py:PREFIX_BYTES_MAX": "longer heads of transfers are decoded and not compared",
    "cluster/joining.py:LEAVE_TIME_MAX_S": OWN_PACE,
    "filters/action.py:_INTEGER_MAX": "64 bits with a sign; test_action.py has the numbers themselves",
    "filters/action.py:_ULONG_MAX": "64 bits; test_action.py has the numbers themselves",
    "gateway/processes/health.py:SCRAPE_BYTES_MAX": "of the metrics of the installation's own processes",
    "gateway/pages/parts.py:NODES_MAX": "of a drawing; what is left out is counted beside it",
    "gateway/pages/parts.py:SAMPLES_MAX": "the maxlen of a deque, which keeps to it",
    "gateway/pages/parts.py:SERIES_MAX": "charts that are remembered, of those who look at them",
    "gateway/pages/pages.py:ROWS_MAX": "of a page; the rest is on the next one",
    "gateway/resources/readers.py:AGAIN_MAX": OWN_PACE,
    "model/settings.py:PROCESSES_MAX": "a setting, which the operator makes",
}
"""The same of constants that end with MAX and are no bounds by their declaration, as FILE:NAME."""
OUTSIDE = ("amqp", "cluster", "filters", "frontend", "gateway", "model", "namespace")
"""Packages of which clients and managers reach the code."""

FOR_TESTS = {"ETCD_STREAM_THREADS": "what gRPC starts, which laws about threads allow for"}
"""Names that the product does not use."""


def names() -> set[str]:
    return set(bounds.homes())


def words(*files: Path) -> set[str]:
    return {word for file in files for word in re.findall(r"\b[A-Z][A-Z0-9_]+\b", file.read_text())}


def files_of_tests() -> list[Path]:
    every = [*TESTS.rglob("test_*.py"), *TESTS.rglob("stories_*.py"), *TESTS.rglob("laws.py")]
    return [file for file in every if file != Path(__file__) and "node_modules" not in file.parts]


def test_every_bound_that_somebody_outside_reaches_is_named_by_a_test() -> None:
    missing = names() - words(*files_of_tests()) - NOT_FROM_OUTSIDE.keys()
    assert not missing, "write the test that reaches it, or say in NOT_FROM_OUTSIDE why nobody can"


def test_what_is_said_of_the_others_is_still_so() -> None:
    assert NOT_FROM_OUTSIDE.keys() <= names(), "there are no such limits"
    assert not NOT_FROM_OUTSIDE.keys() & words(*files_of_tests()), "tests name these: take them out"
    assert all(NOT_FROM_OUTSIDE.values())


def test_the_same_holds_for_other_constants_that_end_with_max() -> None:
    tested = words(*files_of_tests())
    found = {
        f"{file.relative_to(ROOT / 'lightrail')}:{name}"
        for package in OUTSIDE
        for file in (ROOT / "lightrail" / package).rglob("*.py")
        if file != bounds.SHARED
        for name in re.findall(r"^(\w+_MAX(?:_S)?): Final =", file.read_text(), re.MULTILINE)
        if name not in tested
    }
    assert found == ELSEWHERE.keys()


def test_what_the_model_of_a_queue_makes_small_it_names() -> None:
    modelled = {name for name, reason in NOT_FROM_OUTSIDE.items() if reason is MODELLED}
    assert modelled <= words(TESTS / "model" / "modelled_queue.py")


def test_every_limit_is_used() -> None:
    assert names() - bounds.used() == FOR_TESTS.keys()


def test_every_bound_has_a_name_of_its_own() -> None:
    """Else the test of one of them would count for the other."""
    assert not {name: files for name, files in bounds.homes().items() if len(files) > 1}
