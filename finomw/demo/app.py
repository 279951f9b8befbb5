"""A small LLM gateway in the manner of OpenAI's, charged by finomw: the one line below.

Whatever speaks to OpenAI speaks to it. A stream always ends with a chunk that has the usage and no
choices, then ``[DONE]``, whether or not the request asked for it by ``stream_options``: what a
call used is read from there. Run it with ``uvicorn app:app``, beside its ``fino.yaml``.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any
from uuid import uuid4

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from finomw import FinoMiddleware
from finomw.demo import model

app = FastAPI(title="LLM gateway")
app.add_middleware(FinoMiddleware, config="fino.yaml")


class Message(BaseModel):
    """One message of a conversation."""

    role: str
    content: str


class ChatRequest(BaseModel):
    """A conversation to be continued; of OpenAI's other options none is used here."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    stream: bool = False


class EmbeddingsRequest(BaseModel):
    """Texts to be turned into vectors."""

    model: str
    input: str | list[str]


class SearchRequest(BaseModel):
    """Something to be looked for."""

    query: str


@app.post("/v1/chat/completions", response_model=None)
async def chat(request: ChatRequest) -> dict[str, Any] | StreamingResponse:
    """Answer a conversation, at once or as a stream of chunks."""
    head = {"id": f"chatcmpl-{uuid4().hex}", "created": model.CREATED, "model": request.model}
    question = request.messages[-1].content
    pieces = model.answer(question, request.max_tokens or model.MAX_TOKENS_DEFAULT)
    input_tokens = sum(len(model.tokens(message.content)) for message in request.messages)
    if request.stream:
        events = _events(head | {"object": "chat.completion.chunk"}, pieces, input_tokens)
        return StreamingResponse(events, media_type="text/event-stream")
    output = [piece async for piece in pieces]
    message = {"role": "assistant", "content": "".join(text for text, _ in output)}
    return head | {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": output[-1][1]}],
        "usage": _usage(input_tokens, len(output)),
    }


async def _events(
    head: dict[str, Any], pieces: AsyncIterator[tuple[str, str | None]], input_tokens: int
) -> AsyncIterator[str]:
    """Yield the events of a streamed answer: its tokens, the usage, the end marker."""
    output_tokens = 0
    async for text, finish in pieces:
        delta = {"content": text} if output_tokens else {"role": "assistant", "content": text}
        output_tokens += 1
        yield _event(head | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
    yield _event(head | {"choices": [], "usage": _usage(input_tokens, output_tokens)})
    yield "data: [DONE]\n\n"


def _event(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk)}\n\n"


def _usage(input_tokens: int, output_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": input_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
    }


@app.post("/v1/embeddings")
async def embeddings(request: EmbeddingsRequest) -> dict[str, Any]:
    """Turn texts into vectors."""
    texts = [request.input] if isinstance(request.input, str) else request.input
    count = sum(len(model.tokens(text)) for text in texts)
    return {
        "object": "list",
        "model": request.model,
        "data": [
            {"object": "embedding", "index": index, "embedding": model.embed(text)}
            for index, text in enumerate(texts)
        ],
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }


@app.post("/v1/search")
async def search(request: SearchRequest) -> dict[str, Any]:
    """Find documents; the price is the same whatever is found."""
    return {"query": request.query, "results": [{"title": f"About {request.query}", "rank": 1}]}


@app.get("/v1/models")
async def models() -> dict[str, Any]:
    """List what can be asked for."""
    names = ("demo-small", "demo-large", "demo-embed")
    return {
        "object": "list",
        "data": [{"id": name, "object": "model", "owned_by": "demo"} for name in names],
    }


@app.get("/health")
async def health() -> dict[str, str]:
    """Say that the gateway runs; costs nothing and needs no key."""
    return {"status": "ok"}
