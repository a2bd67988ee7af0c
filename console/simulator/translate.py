"""`koordgate translate`: what manifests become, or how another product's dialect says it."""

import argparse
import asyncio
import copy
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from allocator.request.express import express
from allocator.request.original import read_asks
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.dialects import PEERS, Dialect
from allocator.vocabulary.names import (
    ASKED_LIMIT_PREFIX,
    DEVICE_ORDER,
    DIALECT,
    KOORDINATOR_DOMAIN,
    KUBERNETES_DOMAIN,
    NVIDIA_GPU,
    ORIGINAL_REQUEST,
    RESOURCE_MAPS,
    TYPE_GPU,
    is_quota_resource,
)
from allocator.wire.allocatehint import HINT_ANNOTATIONS
from console import terminal
from console.simulator import manifests, words
from console.simulator.cluster import OfflineCluster
from console.simulator.documents import InputError, settings_of, stated_among
from console.simulator.manifests import Way, must_have_pods, place_of, pods_in, with_pods, wrong_shape
from console.simulator.objects import add_files, read_all
from koordgate.cli import Command
from webhook import settings
from webhook.settings import DialectSettings, WebhookSettings

Raw = dict[str, Any]
_OURS: Final = (*HINT_ANNOTATIONS, DEVICE_ORDER)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A Pod in another dialect.

    `missing` says why it cannot be written so; the Pod is then as given.
    """

    pod: Raw
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def rewrite(pod: Raw, dialect: Dialect, types: DeviceTypes) -> Rewritten:
    """Write what a Pod asks of a dialect's type in that dialect; the rest of the Pod stays as it is."""
    reading = read_asks(pod, types, implied=False)
    if reading.problems:
        return Rewritten(pod, tuple(map(str, reading.problems)))
    kind = types.by_name[dialect.type]
    request = reading.request
    if not any(one.ask.type == kind for one in request.containers):
        return Rewritten(pod)
    apps = pod["spec"].get("containers") or ()
    first = str(apps[0].get("name", "")) if apps else ""
    made = express(request, dialect, kind, first, one_device=kind.name in reading.one_device)
    if made.missing:
        return Rewritten(pod, tuple(made.missing))
    done = copy.deepcopy(pod)
    for container in _containers(done):
        _replace(container, made.resources.get(container["name"], {}), kind.name, types)
    metadata = done["metadata"]
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    gone = {ORIGINAL_REQUEST, DIALECT, *types.known.annotations, *types.known.selections}
    gone.update(one.container for one in types.known.dialects if one.container)
    gone.update(key for key in annotations if key.startswith(ASKED_LIMIT_PREFIX) or types.known.form_of(key))
    kept = {key: text for key, text in annotations.items() if key not in gone} | made.annotations
    metadata["annotations"] = kept
    if not kept:
        del metadata["annotations"]
    notes = [f"{dialect.title} does not read the annotation {key}" for key in _OURS if dialect.title and key in kept]
    return Rewritten(done, notes=tuple(notes))


def _containers(pod: Mapping[str, Any]) -> Iterable[Raw]:
    spec = pod["spec"]
    return (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))


def _replace(container: Raw, amounts: Mapping[str, str], kind: str, types: DeviceTypes) -> None:
    """Write a container's amounts of one type in place of those that it has."""
    resources = container.get("resources") or {}
    known = types.known.resources
    for key in RESOURCE_MAPS:
        if key not in resources and (key == "requests" or not amounts):
            continue
        present = resources.get(key) or {}
        others = {
            name: text
            for name, text in present.items()
            if not is_quota_resource(name) and (name not in known or known[name].type.name != kind)
        }
        resources[key] = {**others, **amounts}
        if not resources[key]:
            del resources[key]
    if resources or "resources" in container:
        container["resources"] = resources


_REFUSED: Final = 1
_OWN: Final = {"koordinator": KOORDINATOR_DOMAIN, "kubernetes": KUBERNETES_DOMAIN, "nvidia": NVIDIA_GPU}
TARGETS: Final = (*_OWN, *(one.name for one in PEERS))


@dataclass(frozen=True, slots=True)
class Translated:
    """What became of one object.

    `object` is None if it is refused, or cannot be written in the dialect; `refusals` say why.
    """

    about: str
    object: Raw | None
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


async def outcomes(
    objects: Iterable[tuple[str, Raw, str]], cluster: OfflineCluster, target: Dialect | None
) -> list[Translated]:
    """Find what becomes of each object.

    Raises:
        InputError: something cannot be used.
    """
    return [await _outcome(where, obj, kind, cluster, target) for where, obj, kind in objects]


async def _outcome(where: str, obj: Raw, kind: str, cluster: OfflineCluster, target: Dialect | None) -> Translated:
    metadata = obj.get("metadata")
    name = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, dict) else ""
    namespace = str(metadata.get("namespace") or "default") if isinstance(metadata, dict) else "default"
    about = f"{where}: {kind} {namespace}/{name}"
    if strange := manifests.refused(obj, kind):
        raise InputError(f"{where}: {kind} {name}: {strange}; the API server would refuse it; correct it")
    pods = pods_in(obj, kind)
    if not pods and must_have_pods(obj, kind):
        raise InputError(f"{where}: {kind} {name} has no Pod spec where one must be; write it")
    refusals: list[str] = []
    warnings: list[str] = []
    done: dict[Way, Raw] = {}
    for way, pod in pods.items():
        wrong = wrong_shape("Pod", pod)
        if wrong and must_have_pods(obj, kind):
            raise InputError(f"{where}: {kind} {name}: {wrong}; the API server would refuse it; correct it")
        if wrong:  # its own controller may complete it
            warnings.append(f"{place_of(way)} is left as it is: {wrong}")
            continue
        if target is None:
            verdict = await cluster.review(pod)
            done[way], said = verdict.object, verdict.warnings
            refused = tuple(words.problems(verdict.refusal, pod)) if verdict.refusal else ()
        else:
            made: Rewritten = rewrite(pod, target, cluster.parts.types.within(namespace))
            done[way], said, refused = made.pod, made.notes, made.missing
        place = f"{place_of(way)}: " if len(pods) > 1 else ""
        warnings += (place + text for text in said)
        refusals += (place + text for text in refused)
    return Translated(about, None if refusals else with_pods(obj, done), tuple(refusals), tuple(warnings))


def target_of(name: str, configured: WebhookSettings) -> Dialect:
    """Find the dialect of a name, with the unit of memory of the settings.

    Raises:
        InputError: the unit is not known.
    """
    types = settings.types_of(msgspec.structs.replace(configured, dialects=_on(configured, name)))
    wanted = _OWN.get(name, name)
    found = next(one for one in types.known.spoken[TYPE_GPU] if one.name == wanted)
    if found.sized and not found.unit:
        raise InputError(
            f"--to {name}: its unit of memory has no default; state dialects.{name}.memoryUnit in --config"
        )
    return found


def _on(configured: WebhookSettings, name: str) -> dict[str, DialectSettings]:
    """The dialects of the settings, the named one on everywhere if its unit is known."""
    chosen = configured.dialects.get(name, DialectSettings())
    known = any(one.name == name and (chosen.memory_unit or one.unit or not one.sized) for one in PEERS)
    on = msgspec.structs.replace(chosen, enabled=True, namespaces=())
    return {**configured.dialects, **({name: on} if known else {})}


def _show(output: str, made: Iterable[Translated]) -> None:
    objects = [one.object for one in made if one.object is not None]
    if output == "json":
        items: Any = objects[0] if len(objects) == 1 else {"apiVersion": "v1", "kind": "List", "items": objects}
        terminal.write_data(items, "json")
    elif objects:
        sys.stdout.write(yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True, width=120))


def _remarks(made: Iterable[Translated]) -> Iterator[str]:
    for one in made:
        yield from (f"{one.about}: warning: {text}" for text in one.warnings)
        yield from (f"{one.about}: refused: {text}" for text in one.refusals)


def _run(arguments: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.ERROR)
    return terminal.guarded(arguments.called, lambda: _translate(arguments), InputError)


def _translate(arguments: argparse.Namespace) -> int:
    terminal.doing("reading the files")
    objects = list(read_all(arguments.files))
    configured = settings.load(arguments.config) if arguments.config else settings_of(stated_among(objects))
    target = None if arguments.to is None else target_of(arguments.to, configured)
    made = asyncio.run(outcomes(objects, OfflineCluster.in_process(configured), target))
    for remark in _remarks(made):
        terminal.tell(arguments.called, remark)
    _show(arguments.output, made)
    return _REFUSED if any(one.refusals for one in made) else 0


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_files(parser)
    parser.add_argument(
        "--to", choices=TARGETS, metavar="DIALECT", help=f"write requests for GPUs in one of {', '.join(TARGETS)}"
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings of the webhook, which turn dialects on (default: those of the installation whose ConfigMap is "
        "in the files; without it, every dialect is on, with its product's units)",
    )
    terminal.add_output(parser, table=False)


COMMAND: Final = Command(
    description="Show what admission makes of the Pods in manifests, and of the Pods that workloads there create: "
    "Deployments, Jobs, CronJobs and so on, and every other object that contains Pod templates, such as a Job of "
    "Volcano or a PyTorchJob. With --to, the manifests themselves are rewritten, in the names of another product; "
    "messages name what it cannot express. Objects without Pods are printed as they are.\n\n"
    "Warnings and refusals go to standard error. The exit status is 0 if everything is admitted or written, and 1 if "
    "something is not, which is then left out.",
    examples="examples:\n"
    "  koordgate translate -f deployment.yaml\n"
    "  koordgate translate -f hami.yaml --to koordinator > koordinator.yaml\n"
    "  koordgate translate -f pod.yaml --to hami -o json\n"
    "  kubectl get deployments -A -o json | koordgate translate -f -",
    arguments=_arguments,
    run=_run,
)
