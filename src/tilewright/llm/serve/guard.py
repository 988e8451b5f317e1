"""Checks of a request before it is read: the key, and the size and time of its body."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from starlette.responses import JSONResponse

from tilewright.base.dataclass import dataclass
from tilewright.llm.serve.protocol import RequestRefused

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

OPEN: Final = "/health"  # needs no key
BODY_BYTES: Final = 1 << 20
BODY_SECONDS: Final = 30.0


@dataclass
class Guard:
    """An ASGI application around another one. key: that clients have to know, if there is one."""

    app: Callable[[Scope, Receive, Send], Awaitable[None]]
    key: str | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self._check(scope)
            body = await asyncio.wait_for(_body(receive), BODY_SECONDS)
        except TimeoutError:
            refused = RequestRefused(
                408, f"the body took more than {BODY_SECONDS:.0f} s"
            )
        except RequestRefused as error:
            refused = error
        else:
            await self.app(scope, _given(body, receive), send)
            return
        await JSONResponse(refused.body, refused.status)(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        given = headers.get(b"authorization", b"")
        if self.key is not None and scope["path"] != OPEN:
            wanted = b"Bearer " + self.key.encode()
            if not hmac.compare_digest(given, wanted):
                said = "the key is missing or wrong: send 'Authorization: Bearer KEY'"
                raise RequestRefused(401, said, code="invalid_api_key")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > BODY_BYTES:
            raise _too_large()


def _too_large() -> RequestRefused:
    return RequestRefused(413, f"a body has at most {BODY_BYTES:,} bytes")


async def _body(receive: Receive) -> bytes:
    """All of the body. Raises Refused as soon as it is too large."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > BODY_BYTES:
            raise _too_large()
        if not message.get("more_body", False):
            return bytes(body)


def _given(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body first."""
    left = [body]

    async def given() -> Message:
        if left:
            whole = left.pop()
            return {"type": "http.request", "body": whole, "more_body": False}
        return await receive()

    return given
