"""A small raw-JSON client of the API server.

It is deliberately not `koordgate.kube`: tests must not read what they assert by the code that they test.
"""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp

JsonObject = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML
_CALL_S = 120.0
# With Retry-After it means "not yet": custom resources are (re)initializing just after the API server has started.
_TOO_MANY = 429
_RETRY_S = 10.0
_LINE_BYTES = 2**24  # a watch event is one line, and an object may have 1.5 MiB and more


class ApiError(Exception):
    """The API server answered with a failure.

    Attributes:
        status: The HTTP status.
        reason: The machine-readable reason, such as NotFound.
        message: The API server's message.
    """

    def __init__(self, status: int, body: str) -> None:
        self.status = status
        self.reason, self.message = _status_of(body)
        super().__init__(f"{status} {self.reason}: {self.message}")


def _warning(header: str) -> str:
    """The text of a Warning header: `299 - "text"`."""
    return header.partition('"')[2].removesuffix('"').replace('\\"', '"').replace("\\\\", "\\")


def _decoded(answer: aiohttp.ClientResponse, text: str) -> JsonObject:
    if answer.status >= 400:  # noqa: PLR2004 - HTTP's first failure
        raise ApiError(answer.status, text)
    return json.loads(text) if answer.content_type == "application/json" else {"text": text}


def _status_of(body: str) -> tuple[str, str]:
    try:
        answer = json.loads(body)
    except ValueError:
        return "", body
    if not isinstance(answer, dict):
        return "", body
    return str(answer.get("reason", "")), str(answer.get("message", body))


class AdminClient:
    """Verbs on paths of the API; a context manager that belongs to one event loop.

    Attributes:
        warnings: that came with the latest answer.
    """

    def __init__(self, url: str, token: str, ca_file: Path | None) -> None:
        self._url = url
        self._token = token
        self._tls = ssl.create_default_context(cafile=ca_file)
        self._resources: dict[tuple[str, str], JsonObject] = {}
        self._open: aiohttp.ClientSession | None = None
        self.warnings: tuple[str, ...] = ()

    async def __aenter__(self) -> Self:
        self._open = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=0),
            headers={"Authorization": f"Bearer {self._token}", "Accept": "application/json"},
            timeout=aiohttp.ClientTimeout(total=_CALL_S),
            read_bufsize=_LINE_BYTES,
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._open is not None:
            await self._open.close()
            self._open = None

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._open is None:
            raise RuntimeError("AdminClient is used outside its `async with`")
        return self._open

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> JsonObject:
        """Send a request for one JSON object; repeat it while the server asks for that, as any client does.

        Args:
            method: The HTTP method.
            path: The path from the root, such as `/api/v1/namespaces/default/pods`.
            body: The body, sent as JSON.
            params: The query.
            content_type: The body's content type.

        Returns:
            The decoded answer; one that is not JSON (such as that of /readyz) as `{"text": ...}`.

        Raises:
            ApiError: The answer's status is 400 or more.
            aiohttp.ClientError: The API server was not reached.
        """
        data = None if body is None else json.dumps(body)
        headers = None if body is None else {"Content-Type": content_type}
        end = time.monotonic() + _RETRY_S
        while True:
            async with self._session.request(
                method, self._url + path, data=data, params=params, headers=headers
            ) as answer:
                text = await answer.text()
                self.warnings = tuple(map(_warning, answer.headers.getall("Warning", ())))
                later = answer.headers.get("Retry-After") if answer.status == _TOO_MANY else None
                if later is None or time.monotonic() >= end:
                    return _decoded(answer, text)
            await asyncio.sleep(float(later))  # as long as the server asks for

    async def get(self, path: str, **params: str) -> JsonObject:
        """Read one object."""
        return await self.request("GET", path, params=params)

    async def find(self, path: str) -> JsonObject | None:
        """Read one object; None if there is none."""
        try:
            return await self.get(path)
        except ApiError as error:
            if error.reason == "NotFound":
                return None
            raise

    async def items(self, path: str, **params: str) -> list[JsonObject]:
        """The items of a list."""
        found: list[JsonObject] = (await self.get(path, **params))["items"]
        return found

    async def create(self, path: str, body: JsonObject, **params: str) -> JsonObject:
        """Create an object, or a sub-resource such as a Binding or a TokenRequest."""
        return await self.request("POST", path, body, params=params)

    async def replace(self, path: str, body: JsonObject, **params: str) -> JsonObject:
        """Replace an object."""
        return await self.request("PUT", path, body, params=params)

    async def patch(self, path: str, body: Any, content_type: str = MERGE_PATCH, **params: str) -> JsonObject:
        """Patch an object; the default is a JSON merge patch."""
        return await self.request("PATCH", path, body, params=params, content_type=content_type)

    async def delete(self, path: str, body: JsonObject | None = None, **params: str) -> JsonObject:
        """Delete an object; `body` is a DeleteOptions."""
        return await self.request("DELETE", path, body, params=params)

    async def apply(self, body: JsonObject, *, namespace: str = "default", manager: str = "localplane") -> JsonObject:
        """Server-side apply of any object whose kind is served.

        Args:
            body: The object, with apiVersion and kind.
            namespace: Its namespace, if it is namespaced and names none.
            manager: The field manager.

        Returns:
            The object as it is stored.
        """
        path = await self.path_of(body, namespace=namespace)
        return await self.patch(path, body, APPLY_PATCH, fieldManager=manager, force="true")

    async def path_of(self, body: JsonObject, *, namespace: str = "default") -> str:
        """The path of an object, by the API server's own discovery."""
        resource = await self._resource(body["apiVersion"], body["kind"])
        metadata = body["metadata"]
        place = f"namespaces/{metadata.get('namespace', namespace)}/" if resource["namespaced"] else ""
        return f"{_group_path(body['apiVersion'])}/{place}{resource['name']}/{metadata['name']}"

    async def _resource(self, version: str, kind: str) -> JsonObject:
        if (version, kind) not in self._resources:
            for resource in (await self.get(_group_path(version)))["resources"]:
                if "/" not in resource["name"]:  # subresources have kinds too
                    self._resources[version, resource["kind"]] = resource
        try:
            return self._resources[version, kind]
        except KeyError:
            raise ApiError(404, f"no kind {kind} in {version}") from None

    async def watch(self, path: str, **params: str) -> AsyncIterator[JsonObject]:
        """The events of a watch, until the API server ends it.

        Args:
            path: The path of a collection.
            **params: The query: resourceVersion, fieldSelector, allowWatchBookmarks and so on.

        Yields:
            Each event: `{"type": ..., "object": ...}`.
        """
        async for line in self.watch_lines(path, **params):
            yield json.loads(line)

    async def watch_lines(self, path: str, **params: str) -> AsyncIterator[bytes]:
        """The events of a watch as they come, each a line of JSON, for a caller that only counts them."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CALL_S)
        query = {**params, "watch": "true"}
        async with self._session.get(self._url + path, params=query, timeout=timeout) as answer:
            if answer.status >= 400:  # noqa: PLR2004 - HTTP's first failure
                raise ApiError(answer.status, await answer.text())
            async for line in answer.content:
                yield line


def _group_path(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"
