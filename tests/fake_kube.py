"""An API server in this process, over real HTTP: any resource, revisions, conflicts, watches, bindings, faults.

    async with FakeKube() as fake, KubeClient(fake.url) as kube:
        fake.put("/api/v1/nodes", {"metadata": {"name": "n1"}})
        fake.faults.add("update", "nodeallocations", lose_answer())

Stored objects are not checked: there is no schema, and every resource exists unless `absent` names it.
"""

import asyncio
import base64
import copy
import re
import ssl
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, Self

import jsonpatch
import orjson
from aiohttp import web

Raw = dict[str, Any]

_PATH: Final = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+))?"
)
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_REASONS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class Refused(Exception):  # noqa: N818 not ours: what the server says
    """A failure as the answer."""

    def __init__(self, code: int, message: str, reason: str = "", retry_after: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": message,
            "reason": reason or _REASONS.get(code, ""),
            "code": code,
        }
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}


@dataclass(frozen=True)
class Where:
    """The parts of a path."""

    group: str
    plural: str
    namespace: str | None
    name: str | None
    sub: str | None

    @classmethod
    def of(cls, path: str) -> Self:
        found = _PATH.fullmatch(path)
        if not found:
            raise Refused(404, "the server could not find the requested resource")
        return cls(found["group"] or "", found["plural"], found["namespace"], found["name"], found["sub"])

    @property
    def kind(self) -> tuple[str, str]:
        return self.group, self.plural

    @property
    def resource(self) -> str:
        """As in RBAC rules: `pods`, `pods/binding`."""
        return f"{self.plural}/{self.sub}" if self.sub else self.plural


@dataclass(kw_only=True)
class Fault:
    """The fault of one request; a plain `Fault()` lets it pass. Parts combine, in this order.

    Attributes:
        gate: the request waits here, before anything is performed, until the event is set.
        drop: the connection is closed; nothing is performed.
        status: this code is answered; nothing is performed.
        answer_gate: the request is performed; its answer waits until the event is set.
        lose_answer: the request is performed; the connection is closed instead of an answer.
        reached: set when the request arrives (before `gate`).
        performed: set when the request is performed (before `answer_gate`).
    """

    gate: asyncio.Event | None = None
    drop: bool = False
    status: int | None = None
    message: str = "a fault of the test"
    reason: str = ""
    retry_after: int | None = None
    answer_gate: asyncio.Event | None = None
    lose_answer: bool = False
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    performed: asyncio.Event = field(default_factory=asyncio.Event)


def answer(status: int, message: str = "a fault of the test", *, retry_after: int | None = None) -> Fault:
    return Fault(status=status, message=message, retry_after=retry_after)


def drop() -> Fault:
    return Fault(drop=True)


def lose_answer() -> Fault:
    return Fault(lose_answer=True)


def hold() -> Fault:
    """A request that waits before it is performed: wait for `.reached`, then set `.gate`."""
    return Fault(gate=asyncio.Event())


def hold_answer() -> Fault:
    """A request that is performed and whose answer waits: wait for `.performed`, then set `.answer_gate`."""
    return Fault(answer_gate=asyncio.Event())


class Faults:
    """Queues of faults by verb (get, list, watch, create, update, patch, delete) and resource (`pods/binding`)."""

    def __init__(self) -> None:
        self._once: dict[tuple[str, str], deque[Fault]] = defaultdict(deque)
        self._always: dict[tuple[str, str], Fault] = {}

    def add(self, verb: str, resource: str, *faults: Fault) -> None:
        """Add faults, each for one of the next requests, in order."""
        self._once[verb, resource].extend(faults)

    def always(self, verb: str, resource: str, fault: Fault | None) -> None:
        """Set a fault for every request without a fault of its own; None ends it."""
        self._always.pop((verb, resource), None)
        if fault:
            self._always[verb, resource] = fault

    def take(self, verb: str, resource: str) -> Fault:
        queue = self._once[verb, resource]
        return queue.popleft() if queue else self._always.get((verb, resource)) or Fault()


@dataclass(frozen=True)
class Request:
    """A request, for tests to inspect."""

    verb: str
    resource: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Change:
    """One write: the object before and after it; neither is changed later."""

    revision: int
    kind: tuple[str, str]
    before: Raw | None
    after: Raw | None


@dataclass(eq=False)
class Watcher:
    """An open watch: what it selects, and what it must still send (None ends it, an exception breaks it)."""

    where: Where
    selected: Callable[[Raw], bool]
    bookmarks: bool
    queue: asyncio.Queue[Raw | Exception | None] = field(default_factory=asyncio.Queue)

    def offer(self, change: Change) -> None:
        if change.kind != self.where.kind:
            return
        was = change.before is not None and self.selected(change.before)
        now = change.after is not None and self.selected(change.after)
        if now:
            self.queue.put_nowait({"type": "MODIFIED" if was else "ADDED", "object": change.after})
        elif was:
            # The last state, at the revision of its end.
            last = copy.deepcopy(change.before or {})
            last["metadata"]["resourceVersion"] = str(change.revision)
            self.queue.put_nowait({"type": "DELETED", "object": last})


class FakeKube:
    """The server. Its methods that are not coroutines act immediately and bypass all faults.

    Attributes:
        url: its address, once entered; the port stays the same after `stop` and `start`.
        faults: the faults of requests.
        requests: all requests that arrived.
        absent: plurals of resources that do not exist.
        writes_left: after so many writes every connection is closed, as if the only client had ended; None: never.
        answer_lost: whether the answer to the last of these writes is lost.
        discovery: documents of `/apis/GROUP` and `/apis/GROUP/VERSION`; see `serve`.
        token: where set, requests must carry it.
        users: token -> user, as TokenReviews name it; other tokens are unknown.
        may: what users may get besides resources: (name, path).
        watchers: the open watches.
        revision: the revision of the last write.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.url = ""
        self._tls = tls
        self.faults = Faults()
        self.requests: list[Request] = []
        self.absent: set[str] = set()
        self.writes_left: int | None = None
        self.answer_lost = False
        self.discovery: dict[str, Raw] = {}
        self.token: str | None = None
        self.users: dict[str, Raw] = {}
        self.may: set[tuple[str, str]] = set()
        self.watchers: list[Watcher] = []
        self.revision = 100
        self._compacted = 0
        self._objects: dict[tuple[str, str], dict[tuple[str, str], Raw]] = defaultdict(dict)
        self._log: list[Change] = []
        self._lists: dict[str, tuple[int, list[Raw]]] = {}  # continue token -> revision and the rest of the list
        self._port = 0
        self._runner: web.AppRunner | None = None
        self._tick = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._tls)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """Refuses connections from now on; stored objects stay."""
        self.break_watches()
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    # --- what a test inspects and changes, without HTTP

    def objects(self, path: str) -> list[Raw]:
        """The objects of a collection, by namespace and name."""
        where = Where.of(path)
        found = sorted(self._objects[where.kind].items())
        return [copy.deepcopy(obj) for (space, _), obj in found if where.namespace in {None, space}]

    def get(self, path: str) -> Raw:
        """One object."""
        return copy.deepcopy(self._find(Where.of(path)))

    def put(self, collection: str, obj: Raw) -> Raw:
        """Creates or replaces an object, regardless of its revision."""
        where = Where.of(collection)
        obj = copy.deepcopy(obj)
        key = (where.namespace or obj["metadata"].get("namespace") or "", obj["metadata"]["name"])
        obj["metadata"].pop("resourceVersion", None)
        disown_labels(obj, self._objects[where.kind].get(key))
        return copy.deepcopy(self._store(where, key, obj))

    def serve(self, group: str, **versions: list[str]) -> None:
        """Lets discovery name the resources of an API group by version; without any, the group is not served."""
        for path in [path for path in self.discovery if f"{path}/".startswith(f"/apis/{group}/")]:
            del self.discovery[path]
        if versions:
            self.discovery[f"/apis/{group}"] = {"versions": [{"version": version} for version in versions]}
        for version, plurals in versions.items():
            self.discovery[f"/apis/{group}/{version}"] = {"resources": [{"name": plural} for plural in plurals]}

    def remove(self, path: str) -> None:
        """Deletes an object."""
        where = Where.of(path)
        self._find(where)
        self._store(where, (where.namespace or "", where.name or ""), None)

    def compact(self) -> None:
        """Forgets all revisions except the present one: older watches and continue tokens get 410."""
        self._compacted = self.revision
        self._lists.clear()

    def bookmark(self) -> None:
        """Sends the present revision to all watches that requested bookmarks."""
        for watcher in self.watchers:
            if watcher.bookmarks:
                obj = {"metadata": {"resourceVersion": str(self.revision)}}
                watcher.queue.put_nowait({"type": "BOOKMARK", "object": obj})

    def expire_watches(self) -> None:
        """Ends each open watch with an ERROR event (410)."""
        for watcher in self.watchers:
            watcher.queue.put_nowait({"type": "ERROR", "object": Refused(410, "too old resource version").status})
            watcher.queue.put_nowait(None)

    def end_watches(self) -> None:
        """Ends each watch, as after its timeoutSeconds."""
        for watcher in self.watchers:
            watcher.queue.put_nowait(None)

    def break_watches(self) -> None:
        """Breaks the connection of each watch."""
        for watcher in self.watchers:
            watcher.queue.put_nowait(ConnectionResetError())

    async def until(self, condition: Callable[[], object], *, within: float = 10) -> None:
        """Waits until a condition holds; requests to this server make it true."""
        async with asyncio.timeout(within):
            while not condition():
                self._tick.clear()
                await self._tick.wait()

    def seen(self, verb: str, resource: str) -> list[Request]:
        """The requests of a kind so far."""
        return [request for request in self.requests if (request.verb, request.resource) == (verb, resource)]

    # --- HTTP

    async def _handle(self, http: web.Request) -> web.StreamResponse:
        try:
            if http.path in self.discovery:
                return await self._discover(http)
            where = Where.of(http.path)
            verb = _VERBS.get(http.method) or (
                "get" if where.name else "watch" if http.query.get("watch") in {"1", "true"} else "list"
            )
            body = await http.read()
            self.requests.append(Request(verb, where.resource, http.path, dict(http.query), dict(http.headers), body))
            self._tick.set()
            fault = self._end(verb) or self.faults.take(verb, where.resource)
            return await self._with_fault(http, where, verb, body, fault)
        except Refused as refused:
            return _json(refused.status, refused.code, refused.headers)
        finally:
            self._tick.set()

    async def _discover(self, http: web.Request) -> web.Response:
        self.requests.append(Request("discover", "", http.path, dict(http.query), dict(http.headers), b""))
        fault = self.faults.take("discover", "")
        if fault.status:
            raise Refused(fault.status, fault.message)
        return _json(self.discovery[http.path], 200)

    def _end(self, verb: str) -> Fault | None:
        """The fault of a request after the last write that is left, or of that write."""
        if self.writes_left is None:
            return None
        if not self.writes_left:
            return drop()
        if verb in _VERBS.values():
            self.writes_left -= 1
            if not self.writes_left and self.answer_lost:
                return lose_answer()
        return None

    async def _with_fault(
        self, http: web.Request, where: Where, verb: str, body: bytes, fault: Fault
    ) -> web.StreamResponse:
        fault.reached.set()
        if fault.gate:
            await fault.gate.wait()
        if fault.drop:
            return _hang_up(http)
        if fault.status:
            raise Refused(fault.status, fault.message, fault.reason, fault.retry_after)
        if self.token and http.headers.get("Authorization") != f"Bearer {self.token}":
            raise Refused(401, "Unauthorized")
        if where.plural in self.absent:
            raise Refused(404, "the server could not find the requested resource")
        if verb == "watch":
            return await self._watch(http, where)
        result = self._perform(verb, where, http, orjson.loads(body) if body else None)
        fault.performed.set()
        self._tick.set()
        if fault.answer_gate:
            await fault.answer_gate.wait()
        return _hang_up(http) if fault.lose_answer else _json(result, 201 if verb == "create" else 200)

    def _perform(self, verb: str, where: Where, http: web.Request, body: Any) -> Raw:
        dry = http.query.get("dryRun") == "All"
        match verb:
            case "get":
                return self._find(where)
            case "list":
                return self._list(where, http.query)
            case "create":
                return self._create(where, body, dry=dry)
            case "update":
                stored = self._replace(where, body, dry=dry)
                partial = "as=PartialObjectMetadata" in http.headers.get("Accept", "")
                return {"metadata": stored["metadata"]} if partial else stored
            case "patch":
                return self._patch(where, body, http.content_type, http.query.get("fieldManager", ""), dry=dry)
            case _:
                return self._delete(where, body, dry=dry)

    # --- verbs

    def _find(self, where: Where) -> Raw:
        try:
            return self._objects[where.kind][where.namespace or "", where.name or ""]
        except KeyError:
            raise Refused(404, f'{where.plural} "{where.name}" not found') from None

    def _list(self, where: Where, query: Mapping[str, str]) -> Raw:
        token = query.get("continue")
        if token:
            if token not in self._lists:
                raise Refused(410, "The provided continue parameter is too old")
            revision, rest = self._lists[token]
        else:
            selected = _selector(where, query)
            every = (obj for _, obj in sorted(self._objects[where.kind].items()))
            revision, rest = self.revision, [obj for obj in every if selected(obj)]
        about: Raw = {"resourceVersion": str(revision)}
        limit = int(query.get("limit") or 0) or len(rest)
        if rest[limit:]:
            about["continue"] = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()
            about["remainingItemCount"] = len(rest[limit:])
            self._lists[about["continue"]] = (revision, rest[limit:])
        return {"kind": "List", "metadata": about, "items": rest[:limit]}

    def _create(self, where: Where, obj: Raw, *, dry: bool) -> Raw:
        if where.sub == "binding" or where.resource == "bindings":
            return self._bind(where, obj, dry=dry)
        if where.sub == "eviction":
            return self._delete(replace(where, sub=None), obj.get("deleteOptions"), dry=dry)
        if where.plural == "tokenreviews":
            user = self.users.get(obj["spec"]["token"])
            return {**obj, "status": {"authenticated": True, "user": user} if user else {"error": "unknown"}}
        if where.plural == "subjectaccessreviews":
            asked = obj["spec"]["nonResourceAttributes"]
            allowed = asked["verb"] == "get" and (obj["spec"]["user"], asked["path"]) in self.may
            return {**obj, "status": {"allowed": allowed}}
        about = obj.setdefault("metadata", {})
        if where.namespace:
            about["namespace"] = where.namespace
        if "name" not in about and about.get("generateName"):
            made = (about["generateName"] + uuid.uuid4().hex[:5] for _ in range(8))  # as often as the API server tries
            about["name"] = next(
                name for name in made if (where.namespace or "", name) not in self._objects[where.kind]
            )
        if not about.get("name"):
            raise Refused(422, "metadata.name: Required value: name or generateName is required")
        if about.pop("resourceVersion", None):
            raise Refused(400, "resourceVersion should not be set on objects to be created")
        about.pop("uid", None)
        key = (where.namespace or "", about["name"])
        if key in self._objects[where.kind]:
            raise Refused(409, f'{where.plural} "{about["name"]}" already exists', "AlreadyExists")
        return self._store(where, key, obj, dry=dry)

    def _replace(self, where: Where, obj: Raw, *, dry: bool) -> Raw:
        old = self._find(where)
        about = obj["metadata"]
        if "." in where.group and not where.group.endswith("k8s.io") and not about.get("resourceVersion"):
            raise Refused(
                422, "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update"
            )  # a CRD's
        for precondition in ("resourceVersion", "uid"):
            if about.get(precondition) not in {None, "", old["metadata"][precondition]}:
                raise Refused(
                    409,
                    f'Operation cannot be fulfilled on {where.plural} "{where.name}": the object has been modified; '
                    f"please apply your changes to the latest version ({precondition})",
                )
        if where.sub == "status":
            obj = {**copy.deepcopy(old), "metadata": obj["metadata"], "status": obj.get("status", {})}
        return self._store(where, (where.namespace or "", where.name or ""), obj, dry=dry)

    def _patch(self, where: Where, patch: Any, content_type: str, manager: str, *, dry: bool) -> Raw:
        key = (where.namespace or "", where.name or "")
        if content_type == "application/apply-patch+yaml" and key not in self._objects[where.kind]:
            return self._create(where, patch, dry=dry)
        old = self._find(where)
        if content_type == "application/json-patch+json":
            # To the API server what is not there is null.
            patch = [one for one in patch if not (one["op"] == "test" and one["value"] is None and _lacks(old, one))]
            try:
                new = jsonpatch.apply_patch(copy.deepcopy(old), patch)
            except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
                raise Refused(422, f"the server rejected our request due to an error in our request: {error}") from None
        else:
            new = merged(old, patch)
            if content_type == "application/apply-patch+yaml" and where.plural == "nodes":
                own_labels(new, old, manager, (patch.get("metadata") or {}).get("labels") or {})
        return self._replace(where, new, dry=dry)

    def _delete(self, where: Where, options: Raw | None, *, dry: bool) -> Raw:
        old = self._find(where)
        for precondition, wanted in ((options or {}).get("preconditions") or {}).items():
            if wanted != old["metadata"][precondition]:
                raise Refused(409, f"Precondition failed: {precondition} in precondition: {wanted}")
        if not dry:
            kept = old["metadata"].get("finalizers")  # it stays, and is ending, until nobody keeps it
            ending = {**old, "metadata": {**old["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
            self._store(where, (where.namespace or "", where.name or ""), ending if kept else None)
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def _bind(self, where: Where, binding: Raw, *, dry: bool) -> Raw:
        """pods/binding: nodeName and annotations in one write, with uid and resourceVersion as preconditions."""
        about = binding.get("metadata") or {}
        pods = Where("", "pods", where.namespace, where.name or about.get("name"), None)
        pod = copy.deepcopy(self._find(pods))
        for precondition in ("uid", "resourceVersion"):
            if about.get(precondition) not in {None, "", pod["metadata"][precondition]}:
                raise Refused(409, f'Operation cannot be fulfilled on pods/binding "{pods.name}": {precondition}')
        if (pod.get("spec") or {}).get("nodeName"):
            raise Refused(409, f'pod {pods.name} is already assigned to node "{pod["spec"]["nodeName"]}"')
        pod.setdefault("spec", {})["nodeName"] = binding["target"]["name"]
        if about.get("annotations"):
            pod["metadata"].setdefault("annotations", {}).update(about["annotations"])
        self._store(pods, (pods.namespace or "", pods.name or ""), pod, dry=dry)
        return {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}

    def _store(self, where: Where, key: tuple[str, str], obj: Raw | None, *, dry: bool = False) -> Raw:
        """The only place where anything changes; None deletes."""
        objects = self._objects[where.kind]
        before = objects.get(key)
        if obj is not None:
            obj = _settled(obj, key, before)
            if dry or obj == before:  # the API server also creates no revision for a write that changes nothing
                return obj
            obj["metadata"]["resourceVersion"] = str(self.revision + 1)
        self.revision += 1
        if obj is None:
            del objects[key]
        else:
            objects[key] = obj
        change = Change(self.revision, where.kind, before, obj)
        self._log.append(change)
        for watcher in self.watchers:
            watcher.offer(change)
        self._tick.set()
        return obj or {}

    # --- watch

    async def _watch(self, http: web.Request, where: Where) -> web.StreamResponse:
        since = http.query.get("resourceVersion") or "0"
        if since != "0" and int(since) < self._compacted:
            raise Refused(410, f"too old resource version: {since} ({self._compacted})")
        watcher = Watcher(where, _selector(where, http.query), http.query.get("allowWatchBookmarks") in {"1", "true"})
        if since == "0":
            for obj in self._objects[where.kind].values():
                watcher.offer(Change(self.revision, where.kind, None, obj))
        else:
            for change in self._log:
                if change.revision > int(since):
                    watcher.offer(change)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        self.watchers.append(watcher)
        try:
            await response.prepare(http)
            self._tick.set()
            async with asyncio.timeout(float(http.query.get("timeoutSeconds") or 0) or 300):
                while event := await watcher.queue.get():
                    if isinstance(event, Exception):
                        return _hang_up(http)
                    await response.write(orjson.dumps(event) + b"\n")
        except (TimeoutError, ConnectionError):  # its time is over, or the client closed the connection
            pass
        finally:
            self.watchers.remove(watcher)
        return response


def _lacks(obj: Raw, operation: Raw) -> bool:
    return jsonpatch.JsonPointer(operation["path"]).resolve(obj, None) is None


def merged(old: Any, patch: Any) -> Any:
    """JSON Merge Patch, RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return copy.deepcopy(result)


def own_labels(obj: Raw, old: Raw, manager: str, applied: Mapping[str, str]) -> None:
    """Server-side apply by force, as far as labels go: whom they belong to, and those that are applied no more."""
    disown_labels(obj, old)
    owned = _label_owners(obj)
    dropped = owned.pop(manager, set()) - applied.keys()
    kept: set[str] = set().union(*owned.values())
    for key in dropped - kept:
        obj["metadata"].get("labels", {}).pop(key, None)
    _write_owners(obj, {**owned, manager: set(applied)})


def disown_labels(obj: Raw, old: Raw | None) -> None:
    """A label that was changed belongs to nobody who had it before."""
    labels, before = obj["metadata"].get("labels") or {}, ((old or {}).get("metadata") or {}).get("labels") or {}
    changed = {key for key in {*labels, *before} if labels.get(key) != before.get(key)}
    owned = _label_owners(obj)
    if owned:
        _write_owners(obj, {manager: keys - changed for manager, keys in owned.items()})


def _label_owners(obj: Raw) -> dict[str, set[str]]:
    return {
        one["manager"]: {key.removeprefix("f:") for key in one["fieldsV1"]["f:metadata"]["f:labels"]}
        for one in obj["metadata"].get("managedFields") or ()
    }


def _write_owners(obj: Raw, owned: Mapping[str, set[str]]) -> None:
    obj["metadata"]["managedFields"] = [
        {"manager": manager, "fieldsV1": {"f:metadata": {"f:labels": {f"f:{key}": {} for key in sorted(keys)}}}}
        for manager, keys in sorted(owned.items())
    ]


def _settled(obj: Raw, key: tuple[str, str], before: Raw | None) -> Raw:
    """The object with the metadata that only the server sets."""
    obj = copy.deepcopy(obj)
    kept = before["metadata"] if before else {}
    obj["metadata"] |= {
        "name": key[1],
        "uid": kept.get("uid") or obj["metadata"].get("uid") or str(uuid.uuid4()),
        "creationTimestamp": kept.get("creationTimestamp") or "2026-01-01T00:00:00Z",
    }
    if kept:
        obj["metadata"]["resourceVersion"] = kept["resourceVersion"]
    if key[0]:
        obj["metadata"]["namespace"] = key[0]
    return obj


def _selector(where: Where, query: Mapping[str, str]) -> Callable[[Raw], bool]:
    """What a list or watch selects: namespace, fieldSelector (any dotted path), labelSelector (equality, presence)."""

    def label(obj: Raw, name: str) -> str | None:
        return (obj["metadata"].get("labels") or {}).get(name)

    def field_of(obj: Raw, path: str) -> str:
        found: Any = obj
        for part in path.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return str(found or "")

    def holds(obj: Raw, value: Callable[[Raw, str], str | None], term: str) -> bool:
        if "!=" in term:
            name, wanted = term.split("!=")
            return value(obj, name) != wanted
        if "=" in term:
            name, wanted = re.split("==?", term)
            return value(obj, name) == wanted
        return (value(obj, term.removeprefix("!")) is not None) is not term.startswith("!")

    terms: list[tuple[Callable[[Raw, str], str | None], str]] = []
    terms += [(field_of, term) for term in query.get("fieldSelector", "").split(",") if term]
    terms += [(label, term) for term in query.get("labelSelector", "").split(",") if term]

    def selected(obj: Raw) -> bool:
        there = where.namespace in {None, obj["metadata"].get("namespace")}
        return there and all(holds(obj, value, term) for value, term in terms)

    return selected


def _json(body: Raw, status: int, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, headers=headers, content_type="application/json")


def _hang_up(http: web.Request) -> web.Response:
    """Closes the connection of the request; the returned response is not sent."""
    if http.transport:
        http.transport.abort()
    return web.Response()
