"""The journal on disk, byte by byte. Everything is little-endian; format version 1.

The journal is one endless row of bytes. An LSN is a position in it. Segment files of one fixed
size cut it up: the file ``journal/<base as 16 hex digits>.seg`` holds the bytes from LSN ``base``
up to ``base + size``.

Segment header, one page (4096 bytes), so that no record shares a page with it::

    offset size
         0    8  magic "finojrnl"
         8    4  format version
        12    4  CRC-32 of this header's 128 bytes with this field zero
        16    8  base: LSN of the segment's first byte
        24    8  size of the segment in bytes
        32   16  salt, random, made anew with each segment file
        48   16  node id
        64    8  incarnation of the node
        72   56  zero

Record, starting at a multiple of 8::

    offset size
         0    4  length of the body in bytes; 0 where no record has been stored
         4    4  CRC (see below)
         8    8  LSN of this record
        16    8  durable LSN known when the record was written (its stamp)
        24    4  CRC of the record before, also across segments; 0 before the first
        28    4  length of the attachment in bytes, 0 without one
        32    …  body (msgpack, see ``engine/records.py``)
         …   32  only with an attachment: SHA-256 of its bytes
         …    4  only with an attachment: CRC-32 of its bytes
         …    …  only with an attachment: its bytes
         …    …  zeros up to a multiple of 8

The record's CRC is CRC-32 started from the CRC-32 of the segment's salt, over bytes 0-3, 8-31,
the body and the attachment's SHA-256. So a record of an earlier life of the same disk blocks, or
one that does not follow its predecessor, never reads as valid; and an attachment can be blanked
(its CRC and bytes zeroed) without breaking the chain. A record never crosses a segment's end: the
rest of the segment stays zero and the next record opens the next segment.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple
from zlib import crc32

from finomw import limits
from finomw.errors import DirectoryError, InvariantBroken, JournalDamaged
from finomw.types import Lsn

FORMAT_VERSION = 1
MAGIC = b"finojrnl"
MEND = "put the right file back; `finomw recover --dry-run` says what can be read without it"
"""What to do about a segment that is not what belongs in its place."""
HEADER_SIZE = limits.PAGE
ALIGNMENT = 8

_SEGMENT = struct.Struct("<8sIIQQ16s16sQ56x")
_RECORD = struct.Struct("<IIQQII")
_BEFORE_CRC = struct.Struct("<I")
_AFTER_CRC = struct.Struct("<QQII")
_ATTACHMENT = struct.Struct("<32sI")
RECORD_HEADER_SIZE = _RECORD.size

if (_SEGMENT.size, _RECORD.size, _ATTACHMENT.size) != (128, 32, 36):
    raise AssertionError("the layout above and the structs disagree")
if _BEFORE_CRC.size + 4 + _AFTER_CRC.size != _RECORD.size:
    raise AssertionError("the CRC must cover all of a record's header but itself")


class SegmentHeader(NamedTuple):
    """What stands in a segment's first page."""

    base: Lsn
    size: int
    salt: bytes
    node: bytes
    incarnation: int


class Tail(NamedTuple):
    """Where the journal ends: the last record, and where the next one goes.

    ``lsn`` and ``crc`` are the last record's, ``end`` is the LSN behind it: the last record is
    durable once ``end`` is. ``number`` counts the records since the journal began.
    """

    lsn: Lsn
    end: Lsn
    crc: int
    number: int


START = Tail(lsn=0, end=HEADER_SIZE, crc=0, number=0)
"""The tail of a journal that holds no record yet."""


class StoredRecord(NamedTuple):
    """A record as read back. ``attachment`` is ``None`` where there is none or it was blanked."""

    lsn: Lsn
    end: Lsn
    crc: int
    durable: Lsn
    body: bytes
    attachment: bytes | None


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the 128 bytes that open a segment file."""
    fields = (MAGIC, FORMAT_VERSION, 0, *header)
    crc = crc32(_SEGMENT.pack(*fields))
    return _SEGMENT.pack(MAGIC, FORMAT_VERSION, crc, *header)


def decode_segment_header(data: bytes, path: str, base: Lsn) -> SegmentHeader:
    """Read a segment's header and check it against its place.

    Raises `DirectoryError` for a newer format, `JournalDamaged` for anything that is not the
    header of the segment at ``base``.
    """
    magic, version, crc, *rest = _SEGMENT.unpack(data[: _SEGMENT.size])
    without_crc = data[:12] + bytes(4) + data[16 : _SEGMENT.size]
    if magic != MAGIC:
        raise JournalDamaged(path, base, "not a journal segment", MEND)
    if version > FORMAT_VERSION:
        raise DirectoryError(
            f"{path}: journal format {version} is newer than this finomw ({FORMAT_VERSION}); "
            "install the version that wrote it"
        )
    header = SegmentHeader(*rest)
    if crc != crc32(without_crc):
        raise JournalDamaged(path, base, "the segment's header is damaged", MEND)
    if header.base != base:
        raise JournalDamaged(path, base, f"this is the segment of LSN {header.base}", MEND)
    return header


def record_size(body_length: int, attachment_length: int) -> int:
    """Return how many bytes a record takes, padding included."""
    size = RECORD_HEADER_SIZE + body_length
    if attachment_length:
        size += _ATTACHMENT.size + attachment_length
    return -(-size // ALIGNMENT) * ALIGNMENT


def encode_record(
    seed: int, lsn: Lsn, durable: Lsn, previous: int, body: bytes, attachment: bytes = b""
) -> tuple[bytes, int]:
    """Return a record's bytes, padded, and its CRC.

    ``seed`` is the CRC-32 of the segment's salt; ``previous`` the CRC of the record before.
    """
    if not body:
        raise InvariantBroken("a journal record needs a body")
    before = _BEFORE_CRC.pack(len(body))
    rest = _AFTER_CRC.pack(lsn, durable, previous, len(attachment)) + body
    tail = b""
    if attachment:
        digest = hashlib.sha256(attachment).digest()
        tail = _ATTACHMENT.pack(digest, crc32(attachment)) + attachment
        crc = crc32(digest, crc32(rest, crc32(before, seed)))
    else:
        crc = crc32(rest, crc32(before, seed))
    data = b"".join((before, _BEFORE_CRC.pack(crc), rest, tail))
    return data + bytes(-len(data) % ALIGNMENT), crc


def decode_record(
    data: memoryview | bytes, seed: int, lsn: Lsn, previous: int | None
) -> StoredRecord | None:
    """Return the record that starts at ``data[0]``, or ``None`` where there is no valid one.

    ``data`` reaches from the record to the segment's end. ``previous`` is the CRC it must follow;
    ``None`` takes any (to look for life behind a damaged place).
    """
    if len(data) < RECORD_HEADER_SIZE:
        return None
    length, crc, found, durable, follows, attached = _RECORD.unpack_from(data)
    if not 0 < length <= limits.RECORD_BODY_MAX or found != lsn:
        return None
    if previous is not None and follows != previous:
        return None
    size = record_size(length, attached)
    if size > len(data):
        return None
    body_end = RECORD_HEADER_SIZE + length
    computed = crc32(data[8:body_end], crc32(data[:4], seed))
    attachment = None
    if attached:
        digest, own = _ATTACHMENT.unpack_from(data, body_end)
        computed = crc32(digest, computed)
        start = body_end + _ATTACHMENT.size
        kept = bytes(data[start : start + attached])
        attachment = kept if crc32(kept) == own else None
    if computed != crc:
        return None
    body = bytes(data[RECORD_HEADER_SIZE:body_end])
    return StoredRecord(lsn, lsn + size, crc, durable, body, attachment)
