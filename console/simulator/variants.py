"""What `--compare` and `--preference` set side by side: other settings, preferences, and other nodes."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from allocator.vocabulary.preference import Preference
from console.simulator.documents import InputError, read_documents
from console.simulator.inputs import read_cluster
from console.simulator.objects import Objects
from koordgate.settings import SettingsError
from webhook import settings
from webhook.settings import WebhookSettings, types_of

GIVEN: Final = "as given"
_MOST: Final = 16
_LONGEST: Final = 24
_OF_NODES: Final = ("Node", "Device", "NodeResourceTopology", "ResourceSlice")


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the runs that are compared.

    Attributes:
        settings: of the webhook.
        nodes: what describes the nodes in place of the input's; None for the input's own.
    """

    settings: WebhookSettings
    nodes: Objects | None = None

    def objects(self, given: Objects) -> Objects:
        """The input, with this variant's nodes."""
        if self.nodes is None:
            return replace(given, notes=list(given.notes))
        # Pods that run are bound to nodes that are not there in this variant.
        names = {node["metadata"]["name"] for node in self.nodes.nodes}
        pods = [pod for pod in given.pods if not pod["spec"].get("nodeName") or pod["spec"]["nodeName"] in names]
        kept = {id(pod) for pod in pods}
        return replace(
            given,
            nodes=self.nodes.nodes,
            devices=self.nodes.devices,
            topologies=self.nodes.topologies,
            claims=[*(one for one in given.claims if one["kind"] not in _OF_NODES), *self.nodes.claims],
            pods=pods,
            sources=[one for one in given.sources if one.kind != "Pod" or id(one.object) in kept],
            notes=[*given.notes, *self.nodes.notes],
        )


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Add the options of what is compared."""
    group = parser.add_argument_group(
        "comparison", "run the same Pods in several ways, and show placement, fragmentation and refusals side by side"
    )
    group.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="another way: FILE has settings of the webhook, or Nodes (with their Device objects) in place of "
        "those of -f; may be given more than once",
    )
    group.add_argument(
        "--preference",
        action="append",
        choices=[str(one) for one in Preference],
        help="how nodes are compared; given more than once, each is shown (default: scheduler.preference of --config)",
    )


def variants(
    arguments: argparse.Namespace, configured: WebhookSettings, memory: Mapping[str, int] | None = None
) -> dict[str, Variant]:
    """What is to be run, by name; one alone where nothing is compared.

    Args:
        arguments: `compare` and `preference`.
        configured: the settings of --config, or the defaults.
        memory: bytes of a card by model, where the user states it.

    Raises:
        InputError: something cannot be used.
        SettingsError: likewise.
    """
    preferences: Sequence[str] = list(dict.fromkeys(arguments.preference or ()))
    found = {name: Variant(preferring(configured, name)) for name in preferences}
    if not found:
        found[GIVEN] = Variant(configured)
    for text in arguments.compare:
        name, equals, path = text.partition("=")
        name = name.strip()
        if not equals or not name or not path or len(name) > _LONGEST or not name.isprintable():
            raise InputError(f"--compare {text!r}: write NAME=FILE, with a name of at most {_LONGEST} characters")
        if name in found:
            raise InputError(f"--compare {text!r}: {name} is another way's name already; take another")
        found[name] = _read(path, configured, memory)
    if len(found) > _MOST:
        raise InputError(f"{len(found)} ways to compare; give {_MOST} at most")
    return found


def preferring(configured: WebhookSettings, name: str) -> WebhookSettings:
    """The same settings with another preference."""
    scheduler = msgspec.structs.replace(configured.scheduler, preference=Preference(name))
    return msgspec.structs.replace(configured, scheduler=scheduler)


def _read(path: str, configured: WebhookSettings, memory: Mapping[str, int] | None) -> Variant:
    """Read settings, or nodes: every Kubernetes object has a kind, and settings have none."""
    documents = [document for _, document in read_documents(path) if document is not None]
    if any(isinstance(one, dict) and "kind" in one for one in documents):
        nodes = read_cluster([path], memory, types_of(configured))
        if not nodes.nodes:
            raise InputError(f"--compare {path}: has no Node; give Nodes, or settings of the webhook")
        return Variant(configured, nodes)
    try:
        read = settings.load(Path(path))
    except SettingsError as error:
        raise InputError(f"--compare {error}") from error
    if not read.adopt.peers:
        read = msgspec.structs.replace(read, adopt=configured.adopt)
    return Variant(read)
