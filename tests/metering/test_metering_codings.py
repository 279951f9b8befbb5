"""Content codings undone for the meter: any cut, any label, bounded."""

from __future__ import annotations

import gzip
import hashlib
import logging
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import brotli
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from finomw import limits
from finomw.metering import codings
from finomw.metering.codings import Undecodable, codings_of, decoder_of, unsupported
from finomw.metering.meter import Meter
from finomw.metering.readers import Readers
from finomw.metering.usage import Usage
from finomw.types import UsageStatus

EVENTS = [b'data: {"text":"%d"}\n\n' % number for number in range(40)]
PLAIN = b"".join(EVENTS) + b'data: {"usage":{"n":7}}\n\ndata: [DONE]\n\n'
KNOWN = Usage({"n": 7}, UsageStatus.KNOWN, False)
MISSING = Usage({}, UsageStatus.MISSING, False)
INVALID = Usage({}, UsageStatus.INVALID, False)


def flushed(
    compressor: Any, flush: Callable[[], bytes], finish: Callable[[], bytes]
) -> list[bytes]:
    """Compress the stream so that each event can be read when it comes."""
    take = getattr(compressor, "process", None) or compressor.compress
    parts = [take(event) + flush() for event in [*EVENTS, b'data: {"usage":{"n":7}}\n\n']]
    return [*parts, take(b"data: [DONE]\n\n") + flush(), finish()]


def by_zlib(wbits: int) -> list[bytes]:
    compressor = zlib.compressobj(wbits=wbits)
    return flushed(compressor, lambda: compressor.flush(zlib.Z_SYNC_FLUSH), compressor.flush)


def by_brotli() -> list[bytes]:
    compressor = brotli.Compressor()
    return flushed(compressor, compressor.flush, compressor.finish)


def by_zstd() -> list[bytes]:
    compressor = zstandard.ZstdCompressor().compressobj()
    block = zstandard.COMPRESSOBJ_FLUSH_BLOCK
    return flushed(compressor, lambda: compressor.flush(block), compressor.flush)


STREAMS = {
    "gzip": by_zlib(31),
    "x-gzip": by_zlib(31),
    "GZIP": by_zlib(31),
    "deflate": by_zlib(15),
    "Deflate": by_zlib(-15),
    "br": by_brotli(),
    "zstd": by_zstd(),
    " identity , gzip": by_zlib(31),
    "gzip, gzip": [gzip.compress(gzip.compress(PLAIN))],
    "deflate, gzip": [gzip.compress(zlib.compress(PLAIN))],
}


def decode(label: str, chunks: list[bytes]) -> bytes:
    parts: list[bytes] = []
    decoder = decoder_of(codings_of([label.encode()]))
    for chunk in chunks:
        decoder.feed(chunk, parts.append)
    return b"".join(parts)


def readers(spec: str = ".usage.n") -> Readers:
    return Readers("chat", Meter({"n": spec}), limits.RESPONSE_BODY_MAX, tail=False)


def read(
    label: str, chunks: list[bytes], kind: bytes = b"text/event-stream", made: Readers | None = None
) -> Usage:
    made = made or readers()
    headers = [(b"Content-Type", kind), (b"Content-Encoding", label.encode())]
    reader = made.reader_for(200, headers)
    if reader is None:
        return made.meter.unread()
    for chunk in chunks:
        reader.feed(chunk)
    return reader.finish()


@pytest.mark.parametrize("label", STREAMS)
def test_a_coding_is_undone_whole_and_byte_by_byte(label: str) -> None:
    whole = b"".join(STREAMS[label])
    assert decode(label, [whole]) == PLAIN
    assert decode(label, [whole[at : at + 1] for at in range(len(whole))]) == PLAIN
    assert read(label, [whole]) == KNOWN


@pytest.mark.parametrize("label", STREAMS)
@settings(derandomize=True, max_examples=60, deadline=None)
@given(data=st.data())
def test_a_coding_is_undone_in_any_cut(label: str, data: st.DataObject) -> None:
    whole = b"".join(STREAMS[label])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    assert decode(label, [whole[a:b] for a, b in pairwise([0, *cuts, len(whole)])]) == PLAIN


@pytest.mark.parametrize("label", ["gzip", "deflate", "Deflate", "br", "zstd"])
def test_an_event_is_read_with_the_part_that_flushes_it(label: str) -> None:
    """Nothing is held back until the end, and the marker is seen in its own message."""
    reader = readers().reader_for(
        200, [(b"content-type", b"text/event-stream"), (b"content-encoding", label.encode())]
    )
    assert reader is not None
    marks = [reader.feed(part) for part in STREAMS[label]]
    assert marks == [False] * (len(marks) - 2) + [True, True]


def test_all_members_of_gzip_and_frames_of_zstd_are_read() -> None:
    middle = len(PLAIN) // 2
    members = [gzip.compress(PLAIN[:middle]), gzip.compress(b""), gzip.compress(PLAIN[middle:])]
    for padding in (b"", b"\0" * 512, b"junk"):
        whole = b"".join(members) + padding
        assert decode("gzip", [whole]) == PLAIN
        assert decode("gzip", [whole[at : at + 1] for at in range(len(whole))]) == PLAIN
    compress = zstandard.ZstdCompressor().compress
    skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    assert decode("zstd", [skippable + compress(PLAIN[:99]) + compress(PLAIN[99:])]) == PLAIN


def test_a_body_that_is_cut_off_is_read_as_far_as_it_came() -> None:
    for label in ("gzip", "deflate", "br", "zstd"):
        assert read(label, STREAMS[label][:-1]) == KNOWN
        assert read(label, STREAMS[label][:5]) == MISSING
        assert read(label, []) == MISSING


@pytest.mark.parametrize("label", ["gzip", "zstd", "gzip, gzip"])
def test_what_is_labelled_but_was_never_coded_is_read_as_it_is(label: str) -> None:
    assert read(label, [PLAIN]) == KNOWN
    assert read(label, [PLAIN[at : at + 1] for at in range(len(PLAIN))]) == KNOWN
    assert read(label, [b' {"usage":{"n":7}}'], b"application/json") == KNOWN


@pytest.mark.parametrize("label", ["deflate", "br", "gzip", "zstd"])
@pytest.mark.parametrize("kind", [b"text/event-stream", b"application/json"])
def test_what_is_not_what_its_label_says_is_invalid(label: str, kind: bytes) -> None:
    begin = STREAMS[label][0]
    for body in (begin + b"\xff" * 99, begin[:10] + b"\x07" * 50_000):
        assert read(label, [body], kind).status is not UsageStatus.KNOWN
        assert read(label, [body[:5], body[5:], body], kind).status is not UsageStatus.KNOWN
    broken = b"".join(STREAMS[label][:-2]) + b"\xff" * 99
    assert read(label, [broken]) == INVALID  # the counts that came before may not be the last


def test_random_bytes_never_raise() -> None:
    seed = b"seed"
    for _ in range(100):
        seed = zlib.crc32(seed).to_bytes(4, "little") + seed[:200]
        for label in STREAMS:
            assert read(label, [seed[:3], seed[3:]]).status is not UsageStatus.KNOWN


def bombs() -> dict[str, bytes]:
    """Small bodies that decode to 128 MiB, far more than they may."""
    mib = b" " * limits.MIB
    makers: dict[str, Any] = {
        "gzip": zlib.compressobj(9, wbits=31),
        "deflate": zlib.compressobj(9, wbits=15),
        "br": brotli.Compressor(quality=1),
        "zstd": zstandard.ZstdCompressor().compressobj(),
    }
    made = {}
    for label, compressor in makers.items():
        take = getattr(compressor, "process", None) or compressor.compress
        finish = getattr(compressor, "finish", None) or compressor.flush
        made[label] = b"".join([*(take(mib) for _ in range(128)), finish()])
    made["gzip, gzip"] = gzip.compress(made["gzip"])
    return made


def test_a_bomb_is_invalid_and_is_not_expanded() -> None:
    for label, body in bombs().items():
        assert len(body) < limits.MIB
        tracemalloc.start()
        try:
            assert read(label, [body], b"application/json") == INVALID
            assert read(label, [body]) == INVALID
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 4 * limits.DECODED_FREE
        with pytest.raises(Undecodable, match="decode to more than"):
            decode(label, [body])


def test_a_long_stream_that_is_not_a_bomb_may_decode_to_any_size() -> None:
    compressor = zlib.compressobj(wbits=31)
    made = readers()
    headers = [(b"content-type", b"text/event-stream"), (b"content-encoding", b"gzip")]
    reader = made.reader_for(200, headers)
    assert reader is not None
    sent = 0
    while sent < 2 * limits.DECODED_FREE:
        words = hashlib.sha256(b"%d" % sent).hexdigest().encode()
        event = b"data: " + b'{"text":"%s"} ' % words * 60 + b"\n\n"
        reader.feed(compressor.compress(event) + compressor.flush(zlib.Z_SYNC_FLUSH))
        sent += len(event)
    reader.feed(compressor.compress(b'data: {"usage":{"n":7}}') + compressor.flush())
    assert reader.finish() == KNOWN


@pytest.mark.parametrize("label", ["compress", "dcb", "gzip, snappy", "gzip" + ", gzip" * 4])
def test_an_unsupported_coding_is_missing_with_one_warning(
    label: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = readers()
    with caplog.at_level(logging.WARNING, "finomw"):
        for _ in range(3):
            assert read(label, [b"\x1f\x9d"], made=made) == MISSING
    assert len(caplog.records) == 1
    assert "rule chat: answers with Content-Encoding" in caplog.text


@pytest.mark.parametrize("package", ["brotli", "zstandard"])
def test_without_its_package_a_coding_is_unsupported(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    codings._installed.cache_clear()
    try:
        name = {"brotli": b"br", "zstandard": b"zstd"}[package]
        assert unsupported((b"gzip", name)) == name
        assert unsupported((b"gzip", b"deflate")) is None
    finally:
        codings._installed.cache_clear()


def test_the_codings_of_several_headers_come_together() -> None:
    assert codings_of([b"gzip", b" identity", b"BR,,zstd "]) == (b"gzip", b"br", b"zstd")
    assert codings_of([b""]) == ()
