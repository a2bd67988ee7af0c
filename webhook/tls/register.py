"""Publishes the CA bundle into our two webhook configurations, so that the API server trusts us.

All replicas publish. A replica that does not know a new CA yet must not restore the old bundle. Each replica therefore
reads the configurations, *then* reads the source, and writes on condition that the configuration is still at the
revision that was read. Since the source always changes before a configuration, a write never replaces a newer bundle.
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Conflict, Forbidden, Invalid, KubeError, NotFound
from koordgate.kube.resource import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Resource
from webhook.settings import Identity
from webhook.tls import pki
from webhook.tls.certs import Source
from webhook.tls.pki import CertificateError
from webhook.tls.timing import REAL, Timing

CHECK_S: Final = 60.0
_ATTEMPTS: Final = 5
_INJECTED: Final = "cert-manager.io/inject-"
_LOG: Final = logging.getLogger(__name__)


class Registration:
    """Keeps the CA bundle of a source published."""

    def __init__(self, client: KubeClient, identity: Identity, source: Source, timing: Timing = REAL) -> None:
        # whether both configurations have carried the bundle once. It stays true when a later check fails: a webhook
        # that is trusted keeps serving while the API server has trouble.
        self.published = False
        self.problems: tuple[str, ...] = ("not tried yet",)  # why the last check failed, a clause each
        self._client = client
        self._identity = identity
        self._source = source
        self._timing = timing

    async def run(self) -> None:
        """Publish, then check once a minute, on each change of the source, and sooner after a failure."""
        await self._timing.repeat(self.check, CHECK_S, self._rest)

    async def check(self) -> bool:
        """Publish the bundle unless it is published, and return whether it is now."""
        self._source.changed.clear()
        problems = await publish(self._client, self._identity, self._source, self._timing.earliest)
        if problems != self.problems:
            for problem in problems:
                _LOG.warning("CA not published: %s", problem)
        if not problems and self.problems:
            _LOG.info("the CA is published")
        self.problems = problems
        self.published = self.published or not problems
        return not problems

    async def _rest(self, seconds: float) -> None:
        """Wait for a number of seconds, or until the source changes."""
        waits = (
            asyncio.ensure_future(self._timing.sleep(seconds)),
            asyncio.ensure_future(self._source.changed.wait()),
        )
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


async def publish(client: KubeClient, identity: Identity, source: Source, now: datetime) -> tuple[str, ...]:
    """Write the source's bundle into both webhook configurations; notify the source when both carry it.

    Returns why the bundle is not published, a clause each; empty if it is.
    """
    targets = (_Target(MUTATING_WEBHOOKS, identity.mutating), _Target(VALIDATING_WEBHOOKS, identity.validating))
    lost = ""
    for _ in range(_ATTEMPTS):
        try:
            found = [await _or_reason(client.get(target.path), target, "get") for target in targets]
            bundle = await source.refresh()
            wanted = _Wanted(bundle, None if source.authoritative else now)
            brought = [await _bring(client, *each, wanted) for each in zip(targets, found, strict=True)]
        except (Conflict, Invalid) as error:  # Invalid: a `test` operation of the patch failed
            lost = f"the webhook configurations could not be written in {_ATTEMPTS} attempts; the last error: {error}"
            continue
        except (KubeError, CertificateError) as error:
            return (f"there is no CA to publish: {error}",)
        problems = tuple(problem for problem in brought if problem)
        if not problems:
            source.published(bundle)
        return problems
    return (lost,)


@dataclass(frozen=True, slots=True)
class _Target:
    """One webhook configuration."""

    resource: Resource
    name: str

    @property
    def path(self) -> str:
        return self.resource.path(self.name)

    def __str__(self) -> str:
        return f"{self.resource.plural}/{self.name}"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The CAs that a webhook should carry."""

    bundle: bytes
    # certificates that others published stay if they are valid at this moment; None removes all of them
    keep_at: datetime | None

    def beside(self, carried: str) -> str:
        """The `caBundle`, as base64, that should replace this one."""
        bundle = self.bundle
        if self.keep_at is not None:  # sorted, so that replicas with different bundles write the same
            bundle = b"".join(sorted({*pki.certificates_in(bundle), *self._valid(carried)}))
        return base64.b64encode(bundle).decode()

    def any_in(self, carried: str) -> bool:
        """Whether a CA of the bundle is in this `caBundle`."""
        return not set(pki.certificates_in(self.bundle)).isdisjoint(self._valid(carried))

    def _valid(self, carried: str) -> tuple[bytes, ...]:
        try:
            pem = base64.b64decode(carried)
        except (binascii.Error, ValueError):
            return ()
        return pki.still_trusted(pem, self.keep_at) if self.keep_at else ()


async def _or_reason(asked: Awaitable[dict[str, Any]], target: _Target, verb: str) -> dict[str, Any] | str:
    """An answer, or why there is none; a lost race is raised, so that the caller retries."""
    try:
        return await asked
    except (Conflict, Invalid):
        raise
    except NotFound:
        return f"{target} does not exist (yet): install the chart, or correct identity.mutating and identity.validating"
    except Forbidden as error:
        rule = (
            f'{{apiGroups: ["{target.resource.group}"], resources: ["{target.resource.plural}"], '
            f'resourceNames: ["{target.name}"], verbs: ["get", "patch"]}}'
        )
        return (
            f"{target}: no right to {verb} it; add to the ClusterRole of {error.user or 'our user'}: {rule} ({error})"
        )
    except KubeError as error:
        return f"{target}: {error}"


async def _bring(client: KubeClient, target: _Target, config: dict[str, Any] | str, wanted: _Wanted) -> str:
    """Write what is wanted into one configuration, if it does not carry it yet.

    `config`: the configuration, or why it could not be read. Returns why it does not carry the bundle; "" if it does.
    """
    if isinstance(config, str):
        return config
    changes: list[dict[str, Any]] = []
    for index, webhook in enumerate(config.get("webhooks") or ()):
        carried = webhook["clientConfig"].get("caBundle") or ""
        if carried != wanted.beside(carried):
            changes += _change(index, webhook["name"], wanted.beside(carried))
    if not changes:
        return ""
    injected = any(key.startswith(_INJECTED) for key in config["metadata"].get("annotations") or ())
    if injected and wanted.keep_at is not None:
        return _injected(target, config, wanted)
    unchanged = {"op": "test", "path": "/metadata/resourceVersion", "value": config["metadata"]["resourceVersion"]}
    answer = await _or_reason(client.patch(target.path, [unchanged, *changes], "json"), target, "patch")
    if isinstance(answer, str):
        return answer
    _LOG.info("%s: CA published", target)
    return ""


def _change(index: int, name: str, ca_bundle: str) -> list[dict[str, Any]]:
    """The patch operations for one webhook, by its index, on condition that it still has that index."""
    return [
        {"op": "test", "path": f"/webhooks/{index}/name", "value": name},
        {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": ca_bundle},
    ]


def _injected(target: _Target, config: dict[str, Any], wanted: _Wanted) -> str:
    """What is wrong with a configuration that cert-manager's cainjector writes; we must not write it too."""
    for webhook in config["webhooks"]:
        if not wanted.any_in(webhook["clientConfig"].get("caBundle") or ""):
            return f"{target}: cert-manager's cainjector has not published the CA of {webhook['name']} (yet)"
    return ""
