"""The last members of a JSON object of which only the end was kept.

Providers put ``usage`` last, so that the end of a body too large to keep may still tell it. The
end of a complete object lies outside of any string, and so reading backwards from there is exact:
a quote with no backslash before it begins a string or ends one, in turns, and within a string no
quote stands without one. Text that looks like a usage inside a string is therefore passed as a
string, and one at a greater depth has its brackets around it. What cannot be read so to the byte
gives no members.

Of members with the same name the last is the one that counts, and is the one found first.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

_BLANKS: Final = b" \t\r\n"
_TOKEN: Final = re.compile(rb'"(?:[^"]|"(?=\\))*+"|["{}\[\]:,]')
"""In reversed bytes: a whole string, what gives its structure to JSON, or the end of a string whose
begin is not there."""
_OPENING: Final = frozenset(b"{[")
_CLOSING: Final = frozenset(b"}]")
_QUOTE, _COLON, _COMMA = b'":,'


def last_members(tail: bytes) -> dict[str, bytes]:
    """Return the members of the object that ``tail`` ends with, as far as they are in it."""
    tail = tail.rstrip(_BLANKS)
    if not tail.endswith(b"}"):
        return {}
    members: dict[str, bytes] = {}
    backwards = tail[::-1]
    depth = 0
    value = b""
    end = 1  # where the value under way ends, seen backwards
    named = False  # a colon was the last token: a name comes next
    for token in _TOKEN.finditer(backwards):
        kind = backwards[token.start()]
        cut = token.end() - token.start() < 2 or token.end() == len(backwards)
        if (named or kind == _QUOTE) and cut:
            break  # the string's begin, or the backslash before it, may not be there
        if named:
            members.setdefault(_name(token[0]), value)
            named = False
        elif kind in _CLOSING:
            depth += 1
        elif kind in _OPENING:
            depth -= 1
            if depth == 0:
                break
        elif depth == 1 and kind == _COLON:
            value = backwards[end : token.start()][::-1]
            named = True
        elif depth == 1 and kind == _COMMA:
            end = token.end()
    return members


def _name(backwards: bytes) -> str:
    try:
        return msgspec.json.decode(backwards[::-1], type=str)
    except msgspec.DecodeError:
        return ""
