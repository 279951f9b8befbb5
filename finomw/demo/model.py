"""A language model that is none: deterministic, quick, and honest about its tokens.

A token is a run of letters, digits and underscores, or one other visible character, with the
blanks before it. So a text never has more tokens than characters, which is what ``hold:`` in
``fino.yaml`` relies on. An answer comes token by token and takes its time, like a real one.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import re
from collections.abc import AsyncIterator
from typing import Final

SECONDS_PER_TOKEN: Final = 0.003
MAX_TOKENS_DEFAULT: Final = 256
"""How long an answer may get where the request does not say; ``fino.yaml`` has it too."""
DIMENSIONS: Final = 8
CREATED: Final = 1_767_225_600
"""When every answer was made, in seconds: a model that is the same each time has no clock."""

_TOKEN: Final = re.compile(r"\s*(?:\w+|[^\w\s])")
_TEXT: Final = (
    " Each call sets money aside before it starts, is charged what it used when it ends,"
    " and leaves its entries in the ledger; the rest goes back."
)


def tokens(text: str) -> list[str]:
    """Cut a text into its tokens."""
    return _TOKEN.findall(text)


async def answer(question: str, max_tokens: int) -> AsyncIterator[tuple[str, str | None]]:
    """Yield each token of an answer; with the last one why it is the last: stop or length."""
    wanted = 24 + hashlib.sha256(question.encode()).digest()[0] % 40
    count = min(wanted, max_tokens)
    for number, token in enumerate(itertools.islice(itertools.cycle(tokens(_TEXT)), count), 1):
        await asyncio.sleep(SECONDS_PER_TOKEN)
        finish = None if number < count else "stop" if count == wanted else "length"
        yield token, finish


def embed(text: str) -> list[float]:
    """Return a vector that depends on nothing but the text; each number is from -1 to 1."""
    digest = hashlib.sha256(text.encode()).digest()
    return [byte / 127.5 - 1 for byte in digest[:DIMENSIONS]]
