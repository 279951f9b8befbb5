"""Asks OpenAI-style streams to say their usage, and takes what that adds out again.

Such a stream says its usage only where the request has ``stream_options.include_usage``: in one
more chunk at its end, whose ``choices`` are empty. A client that did not ask for that chunk may
well fail on it. Azure begins streams with a chunk of empty ``choices`` in any case, which says
nothing of usage and stays.
"""

from __future__ import annotations

from typing import Final

import msgspec

from finomw.metering.allowance import Allowance, NotInline
from finomw.metering.guard import Guard, Job
from finomw.metering.media import BOM

_OPTIONS: Final = b'{"include_usage":true}'
_SAME: Final = b"="


class _Options(msgspec.Struct):
    include_usage: msgspec.Raw = msgspec.Raw(b"null")


class _Request(msgspec.Struct):
    stream: msgspec.Raw = msgspec.Raw(b"null")
    stream_options: msgspec.Raw = msgspec.Raw(b"")


class _Chunk(msgspec.Struct):
    choices: msgspec.Raw = msgspec.Raw(b"null")
    usage: msgspec.Raw = msgspec.Raw(b"null")


_request: Final = msgspec.json.Decoder(_Request).decode
_options: Final = msgspec.json.Decoder(_Options | None).decode
_chunk: Final = msgspec.json.Decoder(_Chunk).decode
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def asking(raw: bytes, allowance: Allowance | None = None) -> bytes:
    """Return a request that asks for the usage; ``raw`` itself if it does, or cannot be asked to.

    It cannot where it asks for no stream, or is not what an OpenAI-style request is. All its other
    members stay as they are. May raise `NotInline`.
    """
    if allowance is not None:
        allowance.decode(len(raw))
    try:
        request = _request(raw)
        given = bytes(request.stream_options)
        options = _options(given or b"null")
    except (msgspec.DecodeError, RecursionError):
        return raw
    wished = b"null" if options is None else bytes(options.include_usage)
    if bytes(request.stream) != b"true" or wished not in (b"null", b"false"):
        return raw
    if not given:
        end = raw.rindex(b"}")
        return raw[:end] + b',"stream_options":' + _OPTIONS + raw[end:]
    if allowance is not None:
        allowance.split(len(raw))
    more = b"" if options is None else given
    members = {**_members(more or b"{}"), "include_usage": msgspec.Raw(b"true")}
    options_raw = msgspec.Raw(msgspec.json.encode(members))
    return msgspec.json.encode({**_members(raw), "stream_options": options_raw})


async def ask_for_usage(raw: bytes, guard: Guard) -> bytes | None:
    """Do the same, in the helper process where it may take long; None where it takes too long."""
    try:
        return asking(raw, Allowance())
    except NotInline:
        reply = await guard.ask(Job("asking", {}), raw)
    return raw if reply == _SAME else reply


def answer(raw: bytes) -> bytes:
    """Return what `ask_for_usage` reads, in the helper process."""
    asked = asking(raw)
    return _SAME if asked is raw else asked


def is_usage_chunk(data: bytes) -> bool:
    """Tell whether the data of an event is the chunk that was sent for its usage alone."""
    if b'"usage"' not in data or b'"choices"' not in data:
        return False
    try:
        chunk = _chunk(data.removeprefix(BOM))
    except (msgspec.DecodeError, RecursionError):
        return False
    empty = bytes(chunk.choices).split() in ([b"[]"], [b"[", b"]"])
    return empty and bytes(chunk.usage).startswith(b"{")
