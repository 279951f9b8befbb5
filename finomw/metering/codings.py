"""Content codings, undone for the meter alone; the client gets the bytes as they were sent.

A body is decoded as it passes: what a flush of the compressor has made readable is given at once,
so that the end of a stream is seen in the very message that carries it. What is given comes in
pieces of a bounded size, and all of it together is bounded too: past ``limits.DECODED_FREE`` bytes
a body may not be more than ``limits.DECODED_RATIO`` times as large as what it was made from. A
bomb is thus noticed early and never expanded.

A label may be wrong. What says gzip or zstd and does not begin like it is taken as it is: layers
that decode a body may forget its header. Anything else that cannot be decoded is `Undecodable`.

``br`` and ``zstd`` need the extras of these names, and count as unknown where those are missing.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from finomw import limits
from finomw.errors import FinomwError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

Take: TypeAlias = Callable[[bytes], object]
"""Where decoded pieces go."""

_PIECE: Final = 64 * limits.KIB
"""Decoded at a time; also how much is decoded between two looks at the bound."""
_CODINGS_MAX: Final = 4
_IDENTITY: Final = b"identity"
_GZIP_WBITS: Final = 31
_ZLIB_WBITS: Final = 15
_RAW_WBITS: Final = -15
_GZIP_FIRST: Final = 0x1F
_ZSTD_FIRST: Final = frozenset({0x28, *range(0x50, 0x60)})
"""First bytes of a frame, and of the frames that are to be skipped."""
_ZSTD_WINDOW_MAX: Final = 8 * limits.MIB


class Undecodable(FinomwError):
    """A body is not what its Content-Encoding says, or is a bomb."""


class _Stage(Protocol):
    """One coding undone, incrementally. Raises ``Undecodable``."""

    def feed(self, data: bytes, take: Take) -> None: ...


class Decoder:
    """Undoes the codings of one body, the last applied first."""

    __slots__ = ("_given", "_raw", "_stages")

    def __init__(self, stages: list[_Stage]) -> None:
        self._stages = stages
        self._raw = 0
        self._given = [0] * len(stages)

    def feed(self, chunk: bytes, take: Take) -> None:
        """Decode on; ``take`` gets what came of it, in pieces. Raises `Undecodable`."""
        for start in range(0, len(chunk), _PIECE):
            part = chunk[start : start + _PIECE]
            self._raw += len(part)
            self._stage(0, part, take)

    def _stage(self, number: int, data: bytes, take: Take) -> None:
        if number == len(self._stages):
            take(data)
            return

        def given(piece: bytes) -> int:
            self._given[number] += len(piece)
            most = max(limits.DECODED_FREE, limits.DECODED_RATIO * self._raw)
            if self._given[number] > most:
                raise Undecodable(f"{self._raw} bytes decode to more than {most}")
            self._stage(number + 1, piece, take)
            return len(piece)

        self._stages[number].feed(data, given)


def codings_of(content_encodings: list[bytes]) -> tuple[bytes, ...]:
    """Return the codings of all Content-Encoding headers, in the order they were applied."""
    names = b",".join(content_encodings).lower().split(b",")
    return tuple(name for raw in names if (name := raw.strip()) and name != _IDENTITY)


def unsupported(codings: tuple[bytes, ...]) -> bytes | None:
    """Return what cannot be decoded here: the first such coding, or all where there are too many.

    None says that a `Decoder` can be made of them.
    """
    if len(codings) > _CODINGS_MAX:
        return b", ".join(codings)
    return next((name for name in codings if _factory(name) is None), None)


def decoder_of(codings: tuple[bytes, ...]) -> Decoder:
    """Make the decoder for supported codings."""
    factories = (_factory(name) for name in reversed(codings))
    return Decoder([factory() for factory in factories if factory is not None])


class _Zlib:
    """gzip with all its members, or deflate, with the wrapper that the RFC asks for or without."""

    def __init__(self, gzip: bool) -> None:
        self._gzip = gzip
        self._inflate: zlib._Decompress | None = None
        self._past = False

    def feed(self, data: bytes, take: Take) -> None:
        while data and not self._past:
            if self._inflate is None:
                if self._gzip and data[0] != _GZIP_FIRST:
                    self._past = True  # another member may follow; anything else means nothing
                    return
                self._inflate = zlib.decompressobj(self._wbits(data[0]))
            inflate = self._inflate
            full = True
            while (data or full) and not inflate.eof:
                try:
                    piece = inflate.decompress(data, _PIECE)
                except zlib.error as error:
                    raise Undecodable(str(error)) from None
                data = inflate.unconsumed_tail
                full = len(piece) == _PIECE  # then zlib may keep some back, all its input taken
                if piece:
                    take(piece)
            if inflate.eof:
                data = inflate.unused_data
                self._inflate = None
                self._past = not self._gzip

    def _wbits(self, first: int) -> int:
        if self._gzip:
            return _GZIP_WBITS
        return _ZLIB_WBITS if first & 0x8F == 8 else _RAW_WBITS  # no raw body begins so


class _Brotli:
    def __init__(self) -> None:
        import brotli

        self._decompressor = brotli.Decompressor()
        self._error: type[Exception] = brotli.error

    def feed(self, data: bytes, take: Take) -> None:
        while not self._decompressor.is_finished():
            try:
                piece: bytes = self._decompressor.process(data, output_buffer_limit=_PIECE)
            except self._error as error:
                raise Undecodable(str(error)) from None
            data = b""
            if not piece:
                break
            take(piece)


class _Sink(BytesIO):
    """The file that the zstd decoder writes to; it keeps nothing."""

    take: Take

    def write(self, piece: Buffer) -> int:
        data = bytes(piece)
        self.take(data)
        return len(data)


class _Zstd:
    """All frames of a zstd body, with windows no larger than HTTP allows."""

    def __init__(self) -> None:
        import zstandard

        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX)
        self._sink = _Sink()
        self._writer = decompressor.stream_writer(self._sink, write_size=_PIECE)
        self._error = zstandard.ZstdError

    def feed(self, data: bytes, take: Take) -> None:
        self._sink.take = take
        try:
            self._writer.write(data)
        except self._error as error:
            raise Undecodable(str(error)) from None


class _OrPlain:
    """A stage for what begins with one of some bytes; anything else is given as it is."""

    def __init__(self, stage: _Stage, begins: frozenset[int]) -> None:
        self._stage = stage
        self._begins = begins
        self._plain: bool | None = None

    def feed(self, data: bytes, take: Take) -> None:
        if self._plain is None and data:
            self._plain = data[0] not in self._begins
        if self._plain:
            take(data)
        else:
            self._stage.feed(data, take)


def _gzip() -> _Stage:
    return _OrPlain(_Zlib(gzip=True), frozenset({_GZIP_FIRST}))


def _zstd() -> _Stage:
    return _OrPlain(_Zstd(), _ZSTD_FIRST)


_FACTORIES: Final[dict[bytes, Callable[[], _Stage]]] = {
    b"gzip": _gzip,
    b"x-gzip": _gzip,
    b"deflate": lambda: _Zlib(gzip=False),
    b"br": _Brotli,
    b"zstd": _zstd,
}


@cache
def _installed(name: bytes) -> bool:
    try:
        _FACTORIES[name]()
    except ImportError:
        return False
    return True


def _factory(name: bytes) -> Callable[[], _Stage] | None:
    return _FACTORIES[name] if name in _FACTORIES and _installed(name) else None
