"""How the offline API server and scheduler call the webhook: the same JSON, in this process or over HTTPS."""

import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Protocol

import aiohttp
import msgspec
import orjson

from webhook import review
from webhook.app import listen, make_app, make_extender
from webhook.assembly import Parts
from webhook.settings import Certificate
from webhook.tls.certs import MemorySource

MUTATE_POD: Final = "/mutate-pod"
VALIDATE_POD: Final = "/validate-pod"
WARN_POD: Final = "/warn-pod"
SHADOW_POD: Final = "/shadow-pod"
MUTATE_BINDING: Final = "/mutate-binding"
VALIDATE_BINDING: Final = "/validate-binding"
FILTER: Final = "/scheduler/filter"
PRIORITIZE: Final = "/scheduler/prioritize"
PREEMPT: Final = "/scheduler/preempt"
_HOST: Final = "127.0.0.1"
_NO_DEADLINE_S: Final = 86_400.0


class Api(Protocol):
    """Calls the webhook."""

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Post a JSON body to one of the paths above, and return the decoded answer."""


class InProcess:
    """Calls the handlers directly, through the server's codec."""

    def __init__(self, parts: Parts) -> None:
        self._deadline = _NO_DEADLINE_S  # what becomes of a Pod must not depend on how busy the machine is
        self._pods = {
            MUTATE_POD: parts.pods.mutate,
            VALIDATE_POD: parts.pods.validate,
            WARN_POD: parts.pods.warn,
            SHADOW_POD: parts.shadow.pod,
        }
        self._bindings = {MUTATE_BINDING: parts.bindings.mutate, VALIDATE_BINDING: parts.bindings.validate}
        extender = parts.extender
        self._scheduler = {FILTER: extender.filter, PRIORITIZE: extender.prioritize, PREEMPT: extender.preempt}

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Answer as the server would."""
        if path in self._scheduler:
            # Thousands of names are the same in JSON, and keep their hashes.
            names = body.get("NodeNames")
            sent = orjson.loads(orjson.dumps({**body, "NodeNames": None}))
            return self._scheduler[path]({**sent, "NodeNames": names})
        sent = orjson.dumps(body)
        question = review.decode(sent)
        if path in self._pods:
            answer = self._pods[path](question)
        else:
            answer = await self._bindings[path](question, self._deadline)
        return orjson.loads(review.encode(question.uid, answer))


class Https:
    """Sends requests to a server.

    `calls` is the number of requests sent.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, extender: str) -> None:
        self._session = session
        self.url = url
        self.extender = extender
        self.calls = 0

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Post the body, and read the answer with any status, since the body of a failure explains it."""
        self.calls += 1
        headers = {"Content-Type": "application/json"}
        url = self.extender if path in {FILTER, PRIORITIZE, PREEMPT} else self.url
        async with self._session.post(url + path, data=orjson.dumps(body), headers=headers) as answer:
            return orjson.loads(await answer.read())


@contextlib.asynccontextmanager
async def serving(parts: Parts) -> AsyncIterator[Https]:
    """Serve a replica on loopback with a self-made certificate, and yield a client that trusts only this certificate.

    The scheduler here is not a process of its own; the extender therefore requires no client certificate.
    """
    source = MemorySource(Certificate(dns_names=("localhost",), ip_addresses=(_HOST,)))
    await source.start()
    serve = msgspec.structs.replace(parts.settings.serve, host=_HOST, port=0)
    async with (
        listen(make_app(parts, list), serve, source.context) as port,
        listen(make_extender(parts), serve, source.context) as extender,
    ):
        trusting = ssl.create_default_context(cadata=source.ca_bundle.decode())
        connector = aiohttp.TCPConnector(ssl=trusting)
        async with aiohttp.ClientSession(connector=connector) as session:
            yield Https(session, f"https://{_HOST}:{port}", f"https://{_HOST}:{extender}")
