"""Reading a live cluster: which one, kinds in pages with one bound, what could not be read in words; its settings."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from console import terminal
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Forbidden, Gone, Invalid, KubeError, NotFound
from koordgate.kube.resource import CONFIG_MAPS, MUTATING_WEBHOOKS, Resource
from koordgate.settings import SettingsError
from webhook import settings
from webhook.ledger.store import Record
from webhook.settings import Identity, WebhookSettings

Raw = dict[str, Any]

PAGE: Final = 250
MAX_OBJECTS: Final = 300_000  # of one kind

RELEASE: Final = "koordgate"
"""The name of the installation's ConfigMap and configuration objects."""

CONFIG_KEY: Final = "config.yaml"
"""The key of the ConfigMap that has the settings."""

NAMESPACE: Final = Identity().namespace
"""Where koordgate is installed unless a command says otherwise."""


def add_cluster(parser: argparse.ArgumentParser, *, settings: bool = True) -> None:
    """Add the options that say which cluster is read, and where koordgate is in it.

    `settings`: whether settings may be given in place of those of the installation.
    """
    group = parser.add_argument_group("cluster", "koordgate help kubeconfig says more")
    group.add_argument("--kubeconfig", type=Path, metavar="FILE", help="the kubeconfig (default: $KUBECONFIG)")
    group.add_argument("--context", metavar="NAME", help="its context (default: the current one)")
    group.add_argument(
        "--installed-in",
        type=terminal.namespace,
        default=NAMESPACE,
        metavar="NAMESPACE",
        help=f"where koordgate is installed (default: {NAMESPACE})",
    )
    if settings:
        group.add_argument(
            "--config", type=Path, metavar="FILE", help="the webhook's settings, in place of those there"
        )


def connect(arguments: argparse.Namespace, impersonate: str = "") -> KubeClient:
    """Make a client of the cluster that the options of `add_cluster` name; `impersonate`: the user to act as."""
    terminal.doing("asking the API server")
    return KubeClient.autodetect(arguments.kubeconfig, context=arguments.context, impersonate=impersonate)


class Records:
    """The ledger's records that were read (a `webhook.view.cluster.Held`)."""

    def __init__(self, found: dict[str, Record]) -> None:
        self.found = found

    def record(self, node: str) -> Record:
        """A node's record; one without holdings where there is none."""
        return self.found.get(node, Record(node))

    def nodes_of(self, uid: str) -> Sequence[str]:
        """The nodes on which a Pod holds something."""
        return [node for node, record in self.found.items() if uid in record.holdings]


@dataclass(frozen=True, slots=True)
class ReadList:
    """What was read of one kind."""

    items: tuple[Raw, ...] = ()  # the objects, as far as they were to be kept
    error: str = ""  # why they could not be read; "" if they could
    absent: bool = False  # the API server does not serve the kind
    cut: bool = False  # there are more objects than were read
    notes: tuple[str, ...] = ()  # what is left out, a sentence each
    failure: KubeError | None = None  # as `error`

    @property
    def names(self) -> frozenset[str]:
        """The names of the objects."""
        return frozenset(one["metadata"]["name"] for one in self.items)

    def named(self, name: str) -> Raw | None:
        """The object of a name; None if there is none."""
        return next((one for one in self.items if one["metadata"]["name"] == name), None)

    def noted(self, notes: list[str], *, needed: bool = False) -> tuple[Raw, ...]:
        """The objects; `notes` gets what is left out.

        Raises KubeError: the API server could not be reached, or refuses what is needed.
        """
        if self.failure is not None and (needed or not isinstance(self.failure, Forbidden)):
            raise self.failure
        notes += self.notes
        return self.items


async def listed(
    kube: KubeClient,
    resource: Resource,
    keep: Callable[[Raw], Raw | None] = lambda obj: obj,
    *,
    namespaces: Sequence[str | None] = (None,),
    params: Mapping[str, str] | None = None,
    most: int = 0,
) -> ReadList:
    """List the objects of a kind page by page; of each, what `keep` returns is kept, and nothing where that is None.

    `most`: the number of objects after which reading ends; 0 for that of all kinds.
    """
    most = most or MAX_OBJECTS
    items: list[Raw] = []
    notes: list[str] = []
    failure: KubeError | None = None
    count, absent, cut = 0, False, False
    for place in namespaces:
        before = len(items)
        terminal.doing(f"reading {resource.plural}")
        try:
            async for page, _ in kube.list_pages(resource.path(namespace=place), limit=PAGE, params=params):
                items += (kept for obj in page if (kept := keep(obj)) is not None)
                count += len(page)
                terminal.doing(f"reading {resource.plural}: {count:,}")
                if count >= most:
                    notes.append(f"{resource.plural}: there are more than {most}; the others are left out")
                    return ReadList(tuple(items), cut=True, notes=tuple(notes))
        except NotFound:
            absent = True
        except Gone:
            notes.append(f"{resource.plural}: they changed faster than they could be listed; some are left out")
            cut = True
        except KubeError as error:
            del items[before:]
            notes.append(f"{resource.plural} are left out: {error}")
            failure = failure or error
            if not isinstance(error, Forbidden):
                break
    return ReadList(tuple(items), failure.message if failure else "", absent, cut, tuple(notes), failure)


async def are_webhooks_installed(kube: KubeClient, notes: list[str]) -> bool | None:
    """Whether the webhooks of the installation are there; None, with a note, if the user may not read them."""
    try:
        await kube.get(MUTATING_WEBHOOKS.path(RELEASE))
    except NotFound:
        return False
    except Forbidden as error:
        notes.append(f"whether koordgate's webhooks are installed is not known: {error}")
        return None
    return True


async def installed_settings(
    kube: KubeClient, namespace: str, configured: WebhookSettings | None = None
) -> tuple[WebhookSettings | None, str]:
    """The settings of the installation in a namespace; or None, and from where they cannot be read, and why.

    `configured`: settings to be used instead. Raises KubeError: the API server refuses for another reason than rights,
    or cannot be reached.
    """
    if configured is not None:
        return configured, ""
    where = f"ConfigMap {namespace}/{RELEASE}"
    try:
        found = await kube.get(CONFIG_MAPS.path(RELEASE, namespace))
        return settings.parse((found.get("data") or {}).get(CONFIG_KEY) or "", where), ""
    except (NotFound, Forbidden, Invalid, SettingsError) as error:
        why = "there is none: koordgate is not installed there" if isinstance(error, NotFound) else error
        return None, f"the webhook's settings cannot be read from {where} ({why})"
