"""The routes of the server: handle requests, and answer them whole or as a stream."""

# No lazy annotations here: FastAPI reads the signatures of the routes.

import asyncio
import base64
import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import field
from typing import Any, Final

import numpy as np
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse, Response, StreamingResponse

from tilewright import __version__
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import TilewrightError
from tilewright.llm.answer import Answer
from tilewright.llm.encoder import Embedder
from tilewright.llm.sampling import Sampling
from tilewright.llm.serve import protocol
from tilewright.llm.serve.engine import Engine, TextPiece
from tilewright.llm.serve.guard import Guard
from tilewright.llm.serve.protocol import Fields, Reply, RequestRefused

COMPLETION_TOKENS: Final = 16  # OpenAI's default for prompts
_SEEDS: Final = 1 << 64


class ClientGone(Exception):
    """The client no longer waits for the answer."""


@dataclass
class Service:
    """One model: an engine of a decoder, or an encoder.

    tokens: the most tokens of an answer. key: the key that clients must send. hosts: accepted names
    in the Host header, against DNS rebinding by web pages; None for all.
    """

    name: str
    engine: Engine | None = None
    embedder: Embedder | None = None
    tokens: int = 1024
    key: str | None = None
    hosts: list[str] | None = None
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    def check(self, model: str) -> None:
        """Raise RequestRefused unless a request names this model."""
        if model != self.name:
            said = f"there is no model {model!r:.80}; {self.name!r} is served"
            raise RequestRefused(404, said, "model", "model_not_found")

    def generating(self) -> Engine:
        if self.engine is None:
            said = f"{self.name!r} gives vectors, no text: use /v1/embeddings"
            raise RequestRefused(400, said, "model")
        return self.engine

    def embedding(self) -> Embedder:
        if self.embedder is None:
            raise RequestRefused(
                400, f"{self.name!r} generates text, not vectors", "model"
            )
        return self.embedder


def application(service: Service) -> FastAPI:
    """The server of a model, whose engine ends with it."""

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        yield
        if service.engine is not None:
            await run_in_threadpool(service.engine.close)

    app = FastAPI(title=f"tilewright: {service.name}", lifespan=running)
    _add_routes(app, service)
    # The last one added is the first to see a request.
    app.add_middleware(Guard, key=service.key)
    if service.hosts is not None:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=service.hosts)
    for kind, handle in _HANDLERS.items():
        app.add_exception_handler(kind, handle)
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> Fields:
        counts = {} if service.engine is None else service.engine.counts
        return {"status": "ok", "version": __version__, **counts}

    @app.get("/v1/models")
    async def models() -> Fields:
        return {"object": "list", "data": [_model(service.name)]}

    @app.get("/v1/models/{name}")
    async def model(name: str) -> Fields:
        service.check(name)
        return _model(name)

    @app.post("/v1/completions")
    async def completions(
        body: protocol.CompletionRequest, request: Request
    ) -> Response:
        prompt = body.only

        def ids(batch: Engine) -> list[int]:
            return batch.model.encode(prompt)

        default = min(COMPLETION_TOKENS, service.tokens)
        reply = Reply(protocol.COMPLETION, service.name)
        return await _answered(service, request, body, reply, ids, default)

    @app.post("/v1/chat/completions")
    async def chat(body: protocol.ChatRequest, request: Request) -> Response:
        def ids(batch: Engine) -> list[int]:
            tokenizer = batch.model.tokenizer
            text = tokenizer.chat([m.plain() for m in body.messages])
            # The template has the special tokens in its text.
            return batch.model.encode(tokenizer.encode(text, special=False))

        reply = Reply(protocol.CHAT, service.name)
        return await _answered(service, request, body, reply, ids, service.tokens)

    @app.post("/v1/embeddings")
    async def embeddings(body: protocol.EmbeddingRequest, request: Request) -> Fields:
        body.settled()
        service.check(body.model)
        return await _embedded(service, body, request)


def _model(name: str) -> Fields:
    return {"id": name, "object": "model", "created": 0, "owned_by": "tilewright"}


async def _answered(
    service: Service,
    request: Request,
    body: Any,
    reply: Reply,
    ids: Callable[[Engine], list[int]],
    default: int,
) -> Response:
    """The answer to a prompt. default: tokens at most, where the request does not say."""
    body.settled()
    service.check(body.model)
    batch = service.generating()
    most = body.most or default
    if most > service.tokens:
        said = f"max_tokens={most}: this server gives at most {service.tokens}"
        raise RequestRefused(400, said, "max_tokens")
    seed = secrets.randbits(64) if body.seed is None else body.seed % _SEEDS
    temperature = 1.0 if body.temperature is None else body.temperature
    sampling = Sampling(temperature, 0, body.top_p or 1.0, seed)

    def asked() -> Answer:
        return batch.model.answer(ids(batch), most, sampling, body.stops)

    # A long text takes a while to become ids: the others continue meanwhile.
    answer = await run_in_threadpool(asked)
    pieces = _pieces(batch, answer, request)
    # The first one tells whether there is an answer: its status can still be another.
    first = await anext(pieces)
    if not body.stream:
        return await _whole(reply, answer, first, pieces)
    counted = bool(body.stream_options and body.stream_options.include_usage)
    events = _events(reply, answer, first, pieces, counted)
    headers = {"Cache-Control": "no-cache"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


async def _pieces(
    batch: Engine, answer: Answer, request: Request
) -> AsyncIterator[TextPiece]:
    """The pieces of an answer as they come. Raises Gone when the client is, Refused for an error;
    after the last one, or when the client disconnects, the request is ended."""
    loop = asyncio.get_running_loop()
    found: asyncio.Queue[TextPiece | Exception] = asyncio.Queue()

    def tell(piece: TextPiece | Exception) -> None:
        with suppress(RuntimeError):  # the loop is closed: no one is waiting
            loop.call_soon_threadsafe(found.put_nowait, piece)

    asked = batch.submit(answer, tell)
    gone = asyncio.ensure_future(_gone(request))
    try:
        while True:
            piece = await _first_of(found, gone)
            if isinstance(piece, Exception):
                raise protocol.refusal_of(piece)
            yield piece
            if piece.reason is not None:
                return
    finally:
        gone.cancel()
        batch.cancel(asked)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _first_of(
    found: "asyncio.Queue[TextPiece | Exception]", gone: "asyncio.Future[None]"
) -> TextPiece | Exception:
    get = asyncio.ensure_future(found.get())
    both: set[asyncio.Future[Any]] = {get, gone}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            raise ClientGone
        return get.result()
    finally:
        get.cancel()


async def _whole(
    reply: Reply, answer: Answer, first: TextPiece, pieces: AsyncIterator[TextPiece]
) -> Response:
    found = [first, *[piece async for piece in pieces]]
    text = "".join(piece.text for piece in found)
    choice = reply.form.choice(text, found[-1].reason)
    counts = protocol.usage(len(answer.ids), len(found))
    return JSONResponse(reply.written(reply.form.whole, [choice], usage=counts))


async def _events(
    reply: Reply,
    answer: Answer,
    first: TextPiece,
    pieces: AsyncIterator[TextPiece],
    counted: bool,
) -> AsyncIterator[str]:
    """Server-sent events: the pieces, the usage if that is asked for, and the end."""
    form, count = reply.form, 0

    def written(piece: TextPiece) -> Iterator[str]:
        if piece.text or piece.reason or count == 1:
            choice = form.part(piece.text, piece.reason, count == 1)
            yield _event(reply.written(form.piece, [choice]))

    try:
        count += 1
        for event in written(first):
            yield event
        async for piece in pieces:
            count += 1
            for event in written(piece):
                yield event
    except ClientGone:
        return
    except RequestRefused as error:
        # The status is sent: what ends the stream is an event.
        yield _event(error.body)
        return
    if counted:
        counts = protocol.usage(len(answer.ids), count)
        yield _event(reply.written(form.piece, [], usage=counts))
    yield "data: [DONE]\n\n"


def _event(fields: Fields) -> str:
    return f"data: {json.dumps(fields)}\n\n"


async def _embedded(
    service: Service, body: protocol.EmbeddingRequest, request: Request
) -> Fields:
    embedder = service.embedding()
    texts = [body.input] if isinstance(body.input, str) else body.input
    ids = [await run_in_threadpool(embedder.ids, text) for text in texts]
    vectors = []
    for one in ids:
        # Text by text, so that a client with many does not stop the others.
        async with service._one_at_a_time:
            if await request.is_disconnected():
                raise ClientGone
            vectors.append(await run_in_threadpool(embedder.vector, one))
    data = [
        {"object": "embedding", "index": n, "embedding": _shown(v, body)}
        for n, v in enumerate(vectors)
    ]
    counts = protocol.usage(sum(map(len, ids)))
    return {"object": "list", "data": data, "model": service.name, "usage": counts}


def _shown(vector: Any, body: protocol.EmbeddingRequest) -> list[float] | str:
    wide = np.asarray(vector, "<f4")
    if body.encoding_format == "base64":
        return base64.b64encode(wide.tobytes()).decode()
    return [float(x) for x in wide]


def _respond(refused: RequestRefused) -> Response:
    headers = {"Retry-After": "1"} if refused.status == 503 else None
    return JSONResponse(refused.body, refused.status, headers=headers)


async def _refused(_: Request, error: Any) -> Response:
    return _respond(error)


async def _invalid(_: Request, error: Any) -> Response:
    """What FastAPI found wrong with the fields: of several ways to read one, the one that came
    furthest, rather than that it is not a string."""
    errors = error.errors()
    worst = max(errors, key=lambda e: (len(e["loc"]), e["type"] != "string_type"))
    # Names of types are not the client's.
    place = [str(p) for p in worst["loc"][1:] if "[" not in str(p) and p != "str"]
    if not place or worst["type"] == "json_invalid":
        return _respond(RequestRefused(400, worst["msg"]))
    return _respond(RequestRefused(400, f"{'.'.join(place)}: {worst['msg']}", place[0]))


async def _unknown(_: Request, error: Any) -> Response:
    return _respond(RequestRefused(error.status_code, str(error.detail)))


async def _failed(_: Request, error: Any) -> Response:
    return _respond(protocol.refusal_of(error))


async def _left(_: Request, error: Any) -> Response:
    return Response(status_code=499)  # the client is gone


_HANDLERS: Final[dict[Any, Any]] = {
    RequestRefused: _refused,
    ClientGone: _left,
    RequestValidationError: _invalid,
    HTTPException: _unknown,
    TilewrightError: _failed,
    Exception: _failed,
}
