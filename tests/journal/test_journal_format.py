"""What is written reads back; what was not written as it stands never reads as a record."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finomw import limits
from finomw.errors import DirectoryError, InvariantBroken, JournalDamaged
from finomw.journal.format import (
    FORMAT_VERSION,
    RECORD_HEADER_SIZE,
    SegmentHeader,
    decode_record,
    decode_segment_header,
    encode_record,
    encode_segment_header,
    record_size,
)

SEED, LSN, PREVIOUS = 0xC0FFEE, 4096 + 64, 0xDEADBEEF
HEADER = SegmentHeader(1 << 20, 1 << 16, b"s" * 16, b"n" * 16, 3)
ROOM = 512


def encode(body: bytes, attachment: bytes = b"") -> bytes:
    return encode_record(SEED, LSN, 4000, PREVIOUS, body, attachment)[0]


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@given(body=st.binary(min_size=1, max_size=200), attachment=st.binary(max_size=200))
@settings(derandomize=True)
def test_a_record_reads_back(body: bytes, attachment: bytes) -> None:
    data, crc = encode_record(SEED, LSN, 4000, PREVIOUS, body, attachment)
    assert len(data) == record_size(len(body), len(attachment))
    assert len(data) % 8 == 0
    for previous in (PREVIOUS, None):
        record = decode_record(data + bytes(ROOM), SEED, LSN, previous)
        assert record == (LSN, LSN + len(data), crc, 4000, body, attachment or None)


@pytest.mark.parametrize("attachment", [b"", b"an answer"], ids=["plain", "attached"])
def test_a_record_cut_at_any_byte_is_none(attachment: bytes) -> None:
    body = b"a body of odd length!"
    data = encode(body, attachment)
    content = RECORD_HEADER_SIZE + len(body) + (36 + len(attachment) if attachment else 0)
    for cut in range(RECORD_HEADER_SIZE + len(body)):
        torn = data[:cut] + bytes(len(data) - cut + ROOM)
        assert decode_record(torn, SEED, LSN, PREVIOUS) is None, cut
        assert decode_record(data[:cut], SEED, LSN, PREVIOUS) is None, cut
    for cut in range(RECORD_HEADER_SIZE + len(body), content):
        record = decode_record(data[:cut] + bytes(ROOM), SEED, LSN, PREVIOUS)
        assert record is None or (record.body, record.attachment) == (body, None), cut


@pytest.mark.parametrize("previous", [PREVIOUS, None])
def test_no_single_flipped_bit_reads_as_valid(previous: int | None) -> None:
    data = encode(b"[6,1767225600000000,17]")
    content = RECORD_HEADER_SIZE + 23
    for bit in range(content * 8):
        changed = flipped(data, bit) + bytes(ROOM)
        assert decode_record(changed, SEED, LSN, previous) is None, bit


def test_a_flipped_bit_in_an_attachment_loses_the_attachment_alone() -> None:
    body, attachment = b"body", b"the stored answer"
    data = encode(body, attachment)
    start = RECORD_HEADER_SIZE + len(body) + 36
    for bit in range(start * 8, (start + len(attachment)) * 8):
        record = decode_record(flipped(data, bit), SEED, LSN, PREVIOUS)
        assert record is not None
        assert (record.body, record.attachment) == (body, None)
    for bit in range(RECORD_HEADER_SIZE * 8, (start - 4) * 8):
        assert decode_record(flipped(data, bit), SEED, LSN, PREVIOUS) is None, bit


def test_a_blanked_attachment_keeps_the_record_and_its_crc() -> None:
    body, attachment = b"body", b"the stored answer"
    data, crc = encode_record(SEED, LSN, 0, PREVIOUS, body, attachment)
    blank = RECORD_HEADER_SIZE + len(body) + 32
    record = decode_record(data[:blank] + bytes(len(data) - blank), SEED, LSN, PREVIOUS)
    assert record == (LSN, LSN + len(data), crc, 0, body, None)


def test_a_record_belongs_to_one_segment_one_place_and_one_predecessor() -> None:
    data = encode(b"body") + bytes(ROOM)
    assert decode_record(data, SEED + 1, LSN, PREVIOUS) is None
    assert decode_record(data, SEED, LSN + 8, PREVIOUS) is None
    assert decode_record(data, SEED, LSN, PREVIOUS + 1) is None
    assert decode_record(data, SEED, LSN, PREVIOUS) is not None


def test_an_impossible_length_is_no_record() -> None:
    body = b"x" * (limits.RECORD_BODY_MAX + 1)
    assert decode_record(encode(body), SEED, LSN, PREVIOUS) is None
    assert decode_record(bytes(ROOM), SEED, LSN, PREVIOUS) is None
    assert decode_record(bytes(RECORD_HEADER_SIZE - 1), SEED, LSN, None) is None


def test_a_record_needs_a_body() -> None:
    with pytest.raises(InvariantBroken):
        encode(b"")


def test_a_segment_header_reads_back() -> None:
    data = encode_segment_header(HEADER)
    assert len(data) == 128
    assert decode_segment_header(data + bytes(100), "a.seg", HEADER.base) == HEADER


def test_no_flipped_bit_in_a_segment_header_goes_unseen() -> None:
    data = encode_segment_header(HEADER)
    for bit in range(72 * 8):
        with pytest.raises((JournalDamaged, DirectoryError)):
            decode_segment_header(flipped(data, bit), "a.seg", HEADER.base)


def test_a_segment_in_a_wrong_place_is_damage() -> None:
    with pytest.raises(JournalDamaged, match=r"a\.seg: LSN 0: this is the segment of LSN 1048576"):
        decode_segment_header(encode_segment_header(HEADER), "a.seg", 0)


def test_what_is_no_segment_is_damage() -> None:
    with pytest.raises(JournalDamaged, match="not a journal segment") as caught:
        decode_segment_header(bytes(128), "a.seg", 64)
    assert (caught.value.path, caught.value.lsn) == ("a.seg", 64)


def test_a_newer_format_is_refused_by_name() -> None:
    newer = struct.pack("<8sI", b"finojrnl", FORMAT_VERSION + 1)
    data = newer + encode_segment_header(HEADER)[12:]
    with pytest.raises(DirectoryError, match=f"format {FORMAT_VERSION + 1} is newer"):
        decode_segment_header(data, "a.seg", HEADER.base)


def test_the_seed_is_the_salt_s_crc() -> None:
    assert crc32(HEADER.salt) != crc32(b"t" * 16)
