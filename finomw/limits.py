"""Every bound in one place, and how they relate.

A number that comes from outside is compared with one of these before anything is written. The
relations between bounds are checked when this module is imported, so that a changed bound cannot
quietly break another.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# Money and counts.
AMOUNT_MAX: Final = 2**53
"""Largest single amount in micros (about nine billion dollars): exact also where a JSON reader
knows only doubles."""
MICROS_MAX: Final = 2**62
"""Largest sum in micros: a sum of two still fits a signed 64-bit integer."""
COUNT_MAX: Final = 2**53
"""Largest count of one meter in one call."""

# Time.
INSTANT_MAX: Final = 253_402_300_799_999_999
"""Last microsecond of the year 9999, since 1970: what a date can be written for."""

# Names: bytes of UTF-8.
CUSTOMER_ID_BYTES: Final = 128
SOURCE_BYTES: Final = 64
SOURCE_ID_BYTES: Final = 255
NAME_BYTES: Final = 64
NOTE_BYTES: Final = 1000
TOKEN_BYTES: Final = 8 * KIB
LMDB_KEY_BYTES: Final = 511

METERS_MAX: Final = 16
"""Meters of one call: they bound how much its ending writes."""

# The journal.
PAGE: Final = 4096
SEGMENT_SIZE: Final = 16 * MIB
SEGMENT_SIZE_MIN: Final = 64 * KIB
SEGMENT_SIZE_MAX: Final = 1 * GIB
RECORD_BODY_MAX: Final = 32 * KIB
"""Largest record body in bytes, without its attachment."""
ENDING_BYTES_MAX: Final = 4 * KIB
"""Most bytes of the journal that a hold takes once it is open: the records of its start and its
ending together. Kept free for every open hold."""

JOURNAL_KEEP: Final = 256 * MIB
JOURNAL_KEEP_MAX: Final = 1024 * GIB
CHECKPOINT_EVERY: Final = 64 * MIB
CHECKPOINT_EVERY_MIN: Final = SEGMENT_SIZE_MIN
CHECKPOINT_EVERY_MAX: Final = 1024 * GIB

# The state (LMDB).
STATE_SIZE: Final = 256 * MIB
STATE_SIZE_MIN: Final = 1 * MIB
STATE_SIZE_MAX: Final = 1024 * GIB
STATE_READERS_MAX: Final = 1024
STATE_GROWTH: Final = 64 * MIB
"""By how much the state grows at least; one that is smaller doubles."""
STATE_ENDING_BYTES: Final = 96 * KIB
"""Room of the state for one hold's start and ending (measured: 84 KiB where somebody keeps a
snapshot, so that no page that was freed can be used again; else less than 1 KiB). Kept free for
every open hold."""
STATE_TRANSACTION_BYTES: Final = 256 * KIB
"""Room of the state for any one transaction, kept free beside the endings'."""

# Low space.
LOW_SPACE_SEGMENTS: Final = 4
"""Space is called low when it is not enough for so many segments and the state's next growth."""

# Workers.
SLOTS: Final = 256
"""Processes that may write to one node directory at the same time."""

# HTTP bodies, in bytes.
REQUEST_BODY_MAX: Final = 8 * MIB
"""Default bound on a request body that a rule has to read."""
RESPONSE_BODY_MAX: Final = 8 * MIB
"""Default bound on a response body kept for the meter."""
BODY_MAX: Final = 1 * GIB
"""Largest bound that a rule may set for either body."""
EVENT_MAX: Final = 1 * MIB
"""Largest event of an event stream that is read for usage; a larger one is passed over."""
TAIL: Final = 64 * KIB
"""How much of the end of a JSON answer above its bound is kept, where the rule reads that."""
DECODED_FREE: Final = 8 * MIB
"""Bytes that a content-coded body may decode to, however small it is."""
DECODED_RATIO: Final = 100
"""How many times larger than itself a body may decode to above that; more is a bomb."""

# Reading JSON. Measured on 2 cores at their worst documents, with room for slower machines.
JQ_DEPTH: Final = 10_000
"""How deeply jq takes a document to be nested."""
DECODED_INLINE: Final = 1 * MIB
"""Largest document that is decoded for a few members on the event loop (worst: 7 ms)."""
SPLIT_INLINE: Final = 64 * KIB
"""Largest one of which every element becomes an object there (worst: 3 ms)."""
JQ_INLINE: Final = 32 * KIB
"""Bytes that jq may read there at one go (worst: 10 ms)."""
JQ_WEIGHTS: Final = (1, 8, 128)
"""How much a byte counts, by the exponent with which a program's time grows: one that goes through
everything may read 4 KiB, one that goes through it for each element 256 bytes."""
HELPER_MILLISECONDS: Final = 1000
"""How long the helper process may take for one document."""
HELPER_START_SECONDS: Final = 10
"""How long it may take to start."""
HELPER_MEMORY: Final = 1 * GIB
"""Address space of the helper process."""
HELPER_BACKLOG: Final = 16
"""Documents that may wait for it."""
REWRITE_BACKLOG: Final = 256
"""Bodies that may wait to be rewritten by it."""
REWRITTEN_MAX: Final = 32 * MIB
"""Largest body that it may make of one."""

if not AMOUNT_MAX < MICROS_MAX < 2**63:
    raise AssertionError("one amount must fit a sum, and a sum a signed 64-bit integer")
if CUSTOMER_ID_BYTES + SOURCE_BYTES + SOURCE_ID_BYTES + 3 > LMDB_KEY_BYTES:
    raise AssertionError("the unique key of a ledger entry must fit an LMDB key")
if 2 * METERS_MAX * (NAME_BYTES + 11) + NOTE_BYTES + 400 > ENDING_BYTES_MAX:
    raise AssertionError("a settlement has two counts for each meter, a note, and little else")
if 2 * ENDING_BYTES_MAX + 2 * PAGE > SEGMENT_SIZE_MIN:
    raise AssertionError("the smallest segment must keep room for an ending")
if STATE_ENDING_BYTES + 2 * STATE_TRANSACTION_BYTES > STATE_SIZE_MIN:
    raise AssertionError("the smallest state must keep room for an ending")
if RECORD_BODY_MAX + 2 * PAGE > SEGMENT_SIZE_MIN:
    raise AssertionError("a record must fit the smallest segment")
