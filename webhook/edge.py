"""Limits and deadlines of requests, the memory of bodies, and how every error becomes an answer.

A small body is always read. A large one is read when there is room for all of it, in the order of arrival; the room is
given back when the request is answered, because what was parsed takes memory for as long. Whoever sends many large
bodies slowly therefore keeps others with large ones waiting, and nobody with a small one. A body must state its size:
API servers and kube-scheduler do, and one in chunks could have trailers, which no bound counts.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from http import HTTPStatus
from typing import Any, Final

import orjson
from aiohttp import hdrs, web

from koordgate import log
from koordgate.failure import failure
from webhook import calls, review, shapes
from webhook.metrics import WebhookMetrics
from webhook.scheduling.extender import BadExtenderArgsError
from webhook.settings import ServeSettings
from webhook.tracing import NO_SPAN, NOTHING, OFF, Span, Tracing

SMALL: Final = 64 * 2**10
"""Bytes of a body that is always read: most Pods take some 5 to 20 KiB, both versions of an update twice that."""

_MAX_WAITING: Final = 64
_MAX_WAIT_S: Final = 1.0
_AGAIN_S: Final = "1"
_CLAIM: Final = web.RequestKey("claim", int)


class Bodies:
    """Reads request bodies within a bound.

    `limit`: bytes of the largest body. `most`: bytes of all bodies above `SMALL` that are in memory at once; at least
    `limit`.
    """

    def __init__(self, limit: int, most: int) -> None:
        self.held = 0  # bytes that are reserved now
        self._limit = limit
        self._most = most
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def read(self, http: web.Request, until: float) -> bytes:
        """Read the body of a request; `done` must be called with it afterwards.

        `until`: when it must be there, on the event loop's clock. Raises TimeoutError: it is not there by then;
        web.RequestPayloadError: it cannot be read; web.HTTPLengthRequired: it comes in chunks;
        web.HTTPRequestEntityTooLarge: it is above the limit; web.HTTPServiceUnavailable: there is no room for it now.
        """
        stated = http.content_length
        size = stated or 0
        if stated is None and http.can_read_body:
            raise web.HTTPLengthRequired(text="a request must state its Content-Length")
        if size > self._limit:
            raise web.HTTPRequestEntityTooLarge(self._limit)
        content = http.content
        if size <= SMALL and content.is_eof():  # all of it came with the head, so there is nothing to wait for
            return await content.readany()
        async with asyncio.timeout_at(until):
            if size > SMALL:
                await self._claim(http, size, until)
            body = bytearray()
            while chunk := await content.readany():
                body += chunk
            return bytes(body)

    def done(self, http: web.Request) -> None:
        """Give back what was reserved for a request, if anything was."""
        if (http.content_length or 0) > SMALL and (claim := http.get(_CLAIM, 0)):
            del http[_CLAIM]
            self.held -= claim
            self._admit()

    async def _claim(self, http: web.Request, size: int, until: float) -> None:
        if self._waiting or self.held + size > self._most:
            await self._wait(size, until)
        else:
            self.held += size
        http[_CLAIM] = size

    async def _wait(self, size: int, until: float) -> None:
        loop = asyncio.get_running_loop()
        if len(self._waiting) >= _MAX_WAITING:
            raise _no_room()
        entry = size, loop.create_future()
        self._waiting.append(entry)
        try:
            async with asyncio.timeout_at(min(until, loop.time() + _MAX_WAIT_S)):
                await entry[1]
        except BaseException as error:
            if entry[1].done() and not entry[1].cancelled():
                self.held -= size  # it was admitted in the moment in which it gave up
            with suppress(ValueError):
                self._waiting.remove(entry)
            self._admit()
            if isinstance(error, TimeoutError):
                raise _no_room() from None
            raise

    def _admit(self) -> None:
        """Let those in that wait, in order, while there is room."""
        while self._waiting:
            size, future = self._waiting[0]
            if future.cancelled():
                self._waiting.popleft()
            elif self.held + size <= self._most:
                self._waiting.popleft()
                self.held += size
                future.set_result(None)
            else:
                return


def _no_room() -> web.HTTPServiceUnavailable:
    return web.HTTPServiceUnavailable(
        text="too many large requests are under way; try again", headers={"Retry-After": _AGAIN_S}
    )


_LOG: Final = logging.getLogger(__name__)
_MARGIN_S: Final = 0.25  # an answer must be on its way before the API server stops waiting
_LEAST_S: Final = 0.2  # that a handler always gets, even if the API server waits for less
_JSON: Final = "application/json"
_QUIET_S: Final = 1.0  # after the log reports a review that was not answered: in an outage there are many alike

Sync = Callable[[review.Request], review.Response]
Async = Callable[[review.Request, float], Awaitable[review.Response]]
Handler = Callable[[web.Request], Awaitable[web.Response]]
CallerCheck = Callable[[web.Request], str]
"""Why the caller of a request is refused; "" if it is not."""


class Draining:
    """Whether the process is about to end: it still answers, but closes each connection after the answer."""

    def __init__(self) -> None:
        self.begun = False


class _Patience:
    """How long a caller waits from now on for its body to be read and its question to be answered."""

    __slots__ = ("seconds", "until")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.until = asyncio.get_running_loop().time() + seconds

    @property
    def left(self) -> float:
        return max(self.until - asyncio.get_running_loop().time(), 0.0)


_Answer = Callable[[review.Request, _Patience], Awaitable[review.Response]]


class Edge:
    """Turns HTTP requests into calls of handlers, and their results and errors into answers.

    `draining`: `begun` is set once the process is to end. `why_refused`: says why a caller is refused; "" if
    it is not.
    """

    def __init__(
        self,
        serve: ServeSettings,
        metrics: WebhookMetrics,
        draining: Draining,
        why_refused: CallerCheck = lambda _http: "",
        *,
        tracing: Tracing = OFF,
    ) -> None:
        self._why_refused = why_refused
        self._tracing = tracing
        self._bodies = Bodies(serve.body_limit_bytes, serve.bodies_bytes)
        self._deadline = serve.deadline_seconds
        self._metrics = metrics
        self._draining = draining
        self._quiet_until = -math.inf

    def pod_review(self, path: str, handler: Sync, *, stops: bool = True) -> Handler:
        """Serve a review whose handler answers from memory, without waiting; `stops` as below."""

        async def answer(request: review.Request, _patience: _Patience) -> review.Response:
            return handler(request)

        return self._review(path, answer, shapes.PodShape, stops=stops)

    def binding_review(
        self, path: str, handler: Async, shape: shapes.Shape = shapes.BindingShape, *, stops: bool = True
    ) -> Handler:
        """Serve a review whose handler may wait for the API server.

        `stops`: whether a refusal is sent. Where it is False, whatever is refused is allowed.
        """

        async def answer(request: review.Request, patience: _Patience) -> review.Response:
            async with asyncio.timeout_at(patience.until):
                return await handler(request, patience.left)

        return self._review(path, answer, shape, stops=stops)

    def _review(self, path: str, answer: _Answer, shape: shapes.Shape, *, stops: bool) -> Handler:
        count = {outcome: self._metrics.requests.labels(path, outcome).inc for outcome in _OUTCOMES}
        observe = self._metrics.seconds.labels(path).observe

        async def serve(http: web.Request) -> web.Response:
            began = time.perf_counter()
            patience = self._patience(http)
            if reason := self._why_refused(http):
                count["denied"]()
                self._metrics.refusals.labels(path, review.RefusalReason.CALLER).inc()
                return self._fail(HTTPStatus.FORBIDDEN, reason)
            try:
                _want_json(http)
                question = review.decode(await self._body(http, patience))
            except review.BadReviewError as error:
                count["bad"]()
                return self._fail(HTTPStatus.BAD_REQUEST, str(error))
            except web.HTTPException as error:
                count["bad"]()
                error.text = failure(HTTPStatus(error.status), error.text or error.reason).decode()
                error.content_type = _JSON
                raise
            members = calls.of_review(path, question)
            with log.about(**members), self._span(http, path, members) as span:
                response = await self._answer(path, answer, question, patience, shape)
                if not (stops or response.allowed) and response.code < HTTPStatus.INTERNAL_SERVER_ERROR:
                    response = review.allowed()
                response = calls.audited(question, response)
                outcome = _outcome(response)
                count[outcome]()
                if response.why is not None:
                    self._metrics.refusals.labels(path, response.why).inc()
                seconds = time.perf_counter() - began
                observe(seconds, calls.exemplar())
                _note(span, outcome, response)
                if response.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                    self._tell(response.message)
                    return self._fail(response.code, response.message)
                calls.tell(question, response, outcome, seconds)
                return self._respond(review.encode(question.uid, response), HTTPStatus.OK)

        return self._giving_back(serve)

    async def _answer(
        self, path: str, answer: _Answer, question: review.Request, patience: _Patience, shape: shapes.Shape
    ) -> review.Response:
        try:
            return await answer(question, patience)
        except TimeoutError:
            return review.errored(
                f"no decision in {patience.seconds:.1f} s; try again",
                review.RefusalReason.LATE,
                HTTPStatus.GATEWAY_TIMEOUT,
            )
        except Exception:  # noqa: BLE001 a bug costs one answer, not the process
            for obj in filter(None, (question.object, question.old_object)):
                if wrong := shapes.misshapen(obj, shape):
                    return review.denied(
                        f"no API server sends such an object: {wrong}",
                        review.RefusalReason.MALFORMED,
                        HTTPStatus.BAD_REQUEST,
                    )
            self._bug(path)
            message = f"a bug in koordgate (review {question.uid}); the traceback is in its log, please report it"
            return review.errored(message, review.RefusalReason.BUG, HTTPStatus.INTERNAL_SERVER_ERROR)

    def extender(self, path: str, handler: Callable[[Mapping[str, Any]], object], why_refused: CallerCheck) -> Handler:
        """Serve a call of kube-scheduler, and refuse all other callers.

        `why_refused`: why the caller is refused; "" if it is not.
        """
        count = {outcome: self._metrics.requests.labels(path, outcome).inc for outcome in _OUTCOMES}
        observe = self._metrics.seconds.labels(path).observe

        async def serve(http: web.Request) -> web.Response:
            began = time.perf_counter()
            reason = why_refused(http)
            if reason:
                count["denied"]()
                return self._respond(orjson.dumps({"Error": reason}), HTTPStatus.FORBIDDEN)
            try:
                args = orjson.loads(await self._body(http, self._patience(http)))
            except orjson.JSONDecodeError as error:
                count["bad"]()
                return self._respond(orjson.dumps({"Error": str(error)}), HTTPStatus.BAD_REQUEST)
            except web.HTTPException:
                count["bad"]()
                raise
            members = calls.of_extender(path, args)
            with log.about(**members), self._span(http, path, members) as span:
                try:
                    answer = handler(args)
                    if isinstance(answer, Awaitable):
                        answer = await answer
                except BadExtenderArgsError as error:
                    count["bad"]()
                    return self._respond(orjson.dumps({"Error": str(error)}), HTTPStatus.BAD_REQUEST)
                except Exception:  # noqa: BLE001 as above
                    count["errored"]()
                    self._bug(path)
                    message = "a bug in koordgate; the traceback is in its log, please report it"
                    span.fail(message)
                    return self._respond(orjson.dumps({"Error": message}), HTTPStatus.INTERNAL_SERVER_ERROR)
                count["allowed"]()
                seconds = time.perf_counter() - began
                observe(seconds, calls.exemplar())
                calls.tell_scheduler(answer, seconds)
                return self._respond(orjson.dumps(answer), HTTPStatus.OK)

        return self._giving_back(serve)

    def _span(self, http: web.Request, path: str, members: calls.Members) -> AbstractContextManager[Span]:
        """Record a call as a span, and tie log lines and exemplars to its trace, until it is answered."""
        return NOTHING if self._tracing is OFF else self._traced(http, path, members)

    @contextmanager
    def _traced(self, http: web.Request, path: str, members: calls.Members) -> Iterator[Span]:
        caller = http.headers.get("traceparent", "")
        with (
            self._tracing.called(path, caller, calls.attributes(members)) as span,
            log.about(trace_id=span.trace_id),
        ):
            yield span

    def _giving_back(self, serve: Handler) -> Handler:
        """Hold the memory of a request's body until it is answered."""

        async def bounded(http: web.Request) -> web.Response:
            try:
                return await serve(http)
            finally:
                self._bodies.done(http)

        return bounded

    def _patience(self, http: web.Request) -> _Patience:
        """The API server states in the parameter `timeout`, as in `5s`, how long it waits; its time runs already."""
        query = [one.partition("=") for one in http.query_string.split("&")]
        stated = next((value for name, _, value in query if name == "timeout"), "").removesuffix("s")
        is_number = stated.replace(".", "", 1).isdecimal() and stated.isascii()
        waits = float(stated) - _MARGIN_S if is_number else self._deadline
        return _Patience(max(min(self._deadline, waits), _LEAST_S))

    async def _body(self, http: web.Request, patience: _Patience) -> bytes:
        """Read a body in time, if there is memory for it."""
        try:
            return await self._bodies.read(http, patience.until)
        except TimeoutError:
            raise web.HTTPRequestTimeout(text=f"the body did not arrive in {patience.seconds:.1f} s") from None
        except web.RequestPayloadError as error:
            raise web.HTTPBadRequest(text=f"the body cannot be read: {error}") from None

    def _bug(self, path: str) -> None:
        self._metrics.bugs.labels(path).inc()
        _LOG.exception("a handler failed")

    def _tell(self, message: str) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._quiet_until:
            self._quiet_until = now + _QUIET_S
            _LOG.warning("a review was not answered: %s", message)

    def _fail(self, code: HTTPStatus, message: str) -> web.Response:
        return self._respond(failure(code, message), code)

    def _respond(self, body: bytes, status: HTTPStatus) -> web.Response:
        response = web.Response(body=body, status=status, content_type=_JSON)
        if self._draining.begun:
            response.force_close()
        return response


def _want_json(http: web.Request) -> None:
    stated = http.headers.get(hdrs.CONTENT_TYPE, "none")
    if stated.partition(";")[0].strip().lower() != _JSON:
        raise web.HTTPUnsupportedMediaType(
            text=f"an AdmissionReview must have Content-Type {_JSON}, not {stated[:100]}"
        )


_OUTCOMES: Final = ("allowed", "patched", "denied", "errored", "bad")


def _outcome(response: review.Response) -> str:
    if response.allowed:
        return "patched" if response.patch else "allowed"
    return "errored" if response.code >= HTTPStatus.INTERNAL_SERVER_ERROR else "denied"


def _note(span: Span, outcome: str, response: review.Response) -> None:
    if span is NO_SPAN:
        return
    span.note({"koordgate.outcome": outcome, **{f"koordgate.{key}": value for key, value in response.audit.items()}})
    if outcome == "errored":
        span.fail(response.message)
    elif not response.allowed:
        span.note({"koordgate.why": response.message})
