"""The HTTPS server: routes, limits, deadlines, and the edge at which every error becomes an answer."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import orjson
from aiohttp import web

from webhook import review
from webhook.assembly import Parts
from webhook.metrics import WebhookMetrics
from webhook.scheduling.extender import BadExtenderArgsError
from webhook.settings import ServeSettings

_LOG: Final = logging.getLogger(__name__)
_MARGIN_S: Final = 0.25  # an answer must be under way before the API server stops waiting
_LEAST_S: Final = 0.2
_JSON: Final = "application/json"

Sync = Callable[[review.Request], review.Response]
Async = Callable[[review.Request, float], Awaitable[review.Response]]
Handler = Callable[[web.Request], Awaitable[web.Response]]
Stranger = Callable[[web.Request], str]


class Draining:
    """Whether the process is on its way out: still answering, but asking its callers to go elsewhere."""

    def __init__(self) -> None:
        self.begun = False


class _Patience:
    """How long a caller waits, from now on: for its body to be read and its question to be answered together."""

    __slots__ = ("seconds", "until")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.until = asyncio.get_running_loop().time() + seconds

    @property
    def left(self) -> float:
        return max(self.until - asyncio.get_running_loop().time(), 0.0)


class Edge:
    """Turns HTTP into calls of handlers, and whatever they do into answers.

    Args:
        serve: limits.
        metrics: of this process.
        draining: set once the process is to end.
    """

    def __init__(self, serve: ServeSettings, metrics: WebhookMetrics, draining: Draining) -> None:
        self._deadline = serve.deadline_seconds
        self._metrics = metrics
        self._draining = draining

    def pod_review(self, path: str, handler: Sync) -> Handler:
        """Serve a review that is answered from memory at once."""

        async def answer(request: review.Request, _deadline: float) -> review.Response:
            return handler(request)

        return self.binding_review(path, answer)

    def binding_review(self, path: str, handler: Async) -> Handler:
        """Serve a review that may wait for the API server."""
        count = {outcome: self._metrics.requests.labels(path, outcome).inc for outcome in _OUTCOMES}
        observe = self._metrics.seconds.labels(path).observe

        async def serve(http: web.Request) -> web.Response:
            began = time.perf_counter()
            patience = self._patience(http)
            try:
                _want_json(http)
                question = review.decode(await self._body(http, patience))
            except review.BadReviewError as error:
                count["bad"]()
                return self._respond(orjson.dumps({"error": str(error)}), HTTPStatus.BAD_REQUEST)
            except web.HTTPException:
                count["bad"]()
                raise
            response = await self._answer(path, handler, question, patience)
            status = response.code if response.code >= HTTPStatus.INTERNAL_SERVER_ERROR else HTTPStatus.OK
            count[_outcome(response)]()
            observe(time.perf_counter() - began)
            return self._respond(review.encode(question.uid, response), status)

        return serve

    async def _answer(
        self, path: str, handler: Async, question: review.Request, patience: _Patience
    ) -> review.Response:
        try:
            async with asyncio.timeout_at(patience.until):
                return await handler(question, patience.left)
        except TimeoutError:
            return review.errored(f"no decision in {patience.seconds:.1f} s; try again", HTTPStatus.GATEWAY_TIMEOUT)
        except Exception:  # noqa: BLE001 the request edge: a bug is one answer, not the end of the process
            self._bug(path, question.uid)
            message = f"a bug in koordgate (review {question.uid}); its log holds the trace, please report it"
            return review.errored(message, HTTPStatus.INTERNAL_SERVER_ERROR)

    def extender(self, path: str, handler: Callable[[Mapping[str, Any]], object], stranger: Stranger) -> Handler:
        """Serve a call of kube-scheduler, to nobody else."""
        count = {outcome: self._metrics.requests.labels(path, outcome).inc for outcome in _OUTCOMES}
        observe = self._metrics.seconds.labels(path).observe

        async def serve(http: web.Request) -> web.Response:
            began = time.perf_counter()
            reason = stranger(http)
            if reason:
                count["denied"]()
                return self._respond(orjson.dumps({"Error": reason}), HTTPStatus.FORBIDDEN)
            try:
                answer = handler(orjson.loads(await self._body(http, self._patience(http))))
                if isinstance(answer, Awaitable):
                    answer = await answer
            except (BadExtenderArgsError, orjson.JSONDecodeError) as error:
                count["bad"]()
                return self._respond(orjson.dumps({"Error": str(error)}), HTTPStatus.BAD_REQUEST)
            except web.HTTPException:
                count["bad"]()
                raise
            except Exception:  # noqa: BLE001 as above
                count["errored"]()
                self._bug(path, "")
                message = "a bug in koordgate; its log holds the trace, please report it"
                return self._respond(orjson.dumps({"Error": message}), HTTPStatus.INTERNAL_SERVER_ERROR)
            count["allowed"]()
            observe(time.perf_counter() - began)
            return self._respond(orjson.dumps(answer), HTTPStatus.OK)

        return serve

    def _patience(self, http: web.Request) -> _Patience:
        """The API server says how long it waits in the `timeout` parameter, as `5s`; its time runs already."""
        told = http.query.get("timeout", "").removesuffix("s")
        waits = float(told) - _MARGIN_S if told.replace(".", "", 1).isdecimal() and told.isascii() else self._deadline
        return _Patience(max(min(self._deadline, waits), _LEAST_S))

    async def _body(self, http: web.Request, patience: _Patience) -> bytes:
        """Read a body in time; larger than the limit is a 413 of aiohttp's own."""
        try:
            if http.content.is_eof():
                return await http.read()  # all of it came with the headers: nothing to wait for
            async with asyncio.timeout_at(patience.until):
                return await http.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text=f"the body did not arrive in {patience.seconds:.1f} s") from None
        except web.RequestPayloadError as error:
            raise web.HTTPBadRequest(text=f"the body cannot be read: {error}") from None

    def _bug(self, path: str, uid: str) -> None:
        self._metrics.bugs.labels(path).inc()
        _LOG.exception("a handler failed", extra={"path": path, "review": uid})

    def _respond(self, body: bytes, status: HTTPStatus) -> web.Response:
        response = web.Response(body=body, status=status, content_type=_JSON)
        if self._draining.begun:
            response.force_close()
        return response


def _want_json(http: web.Request) -> None:
    if http.content_type != _JSON:
        told = http.headers.get("Content-Type", "none")
        raise web.HTTPUnsupportedMediaType(text=f"an AdmissionReview is sent as Content-Type {_JSON}, not {told[:100]}")


_OUTCOMES: Final = ("allowed", "patched", "denied", "errored", "bad")


def _outcome(response: review.Response) -> str:
    if response.allowed:
        return "patched" if response.patch else "allowed"
    return "errored" if response.code >= HTTPStatus.INTERNAL_SERVER_ERROR else "denied"


def make_app(parts: Parts, unready: Callable[[], list[str]], draining: Draining | None = None) -> web.Application:
    """Make the application that API server, kubelet and Prometheus call.

    Args:
        parts: of the replica.
        unready: why the process is not ready, a sentence each; nothing when it is.
        draining: set once the process is to end.
    """
    metrics = parts.metrics
    edge = Edge(parts.settings.serve, metrics, draining or Draining())

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        reasons = unready()
        metrics.ready.set(not reasons)
        if reasons:
            return web.Response(text="".join(f"not ready: {reason}\n" for reason in reasons), status=503)
        return web.Response(text="ok\n")

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(body=metrics.exposition(), headers={"Content-Type": metrics.content_type})

    app = web.Application(client_max_size=parts.settings.serve.body_limit_bytes)
    app.router.add_post("/mutate-pod", edge.pod_review("/mutate-pod", parts.pods.mutate))
    app.router.add_post("/validate-pod", edge.pod_review("/validate-pod", parts.pods.validate))
    app.router.add_post("/mutate-binding", edge.binding_review("/mutate-binding", parts.bindings.mutate))
    app.router.add_post("/validate-binding", edge.binding_review("/validate-binding", parts.bindings.validate))
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", exposition)
    return app


def make_extender(
    parts: Parts, draining: Draining | None = None, stranger: Stranger = lambda _http: ""
) -> web.Application:
    """Make the application that the scheduler calls, for a port of its own.

    Args:
        parts: of the replica.
        draining: set once the process is to end.
        stranger: why the caller of a request is refused; empty where it is not.
    """
    edge = Edge(parts.settings.serve, parts.metrics, draining or Draining())
    app = web.Application(client_max_size=parts.settings.serve.body_limit_bytes)
    extender = parts.extender
    handlers = {"filter": extender.filter_patiently, "prioritize": extender.prioritize, "preempt": extender.preempt}
    for verb, handler in handlers.items():
        path = f"/scheduler/{verb}"
        app.router.add_post(path, edge.extender(path, handler, stranger))
    return app
