"""`python -m localplane.playground`: koordgate on a real control plane, with tenants, to try commands on."""

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from allocator.vocabulary.delivery import NodeRuntime
from allocator.wire.noderuntime import NODE_RUNTIME, write_runtime
from console.data import data_folder
from console.simulator.objects import read
from localplane.admin import JsonObject
from localplane.binaries import Binaries, BuildError, cache_folder, find_or_build, missing, say
from localplane.democluster import PROGRAMS, PlaneCluster, PlaneError, real_cluster
from localplane.plane import ADMIN
from localplane.versions import chosen
from localplane.waiting import until
from webhook import settings

# The administrator plays HAMi's scheduler.
VALUES: Final[dict[str, Any]] = {
    "dialects": {"hami": {"enabled": True}},
    "adopt": {"peers": ["hami"], "writers": [ADMIN]},
}


class Tenant(NamedTuple):
    """A namespace, the recipe that is applied in it ("" for none), and what there is to see."""

    namespace: str
    recipe: str
    what: str


# The whole cards of one node first: what comes later goes elsewhere.
TENANTS: Final = (
    Tenant("train", "nvlink-training", "four whole cards that NVLink connects; the Pod `next` waits"),
    Tenant("speech", "pinned-cpus-and-gpu", "a card and CPUs of its own for each of two replicas"),
    Tenant("chat", "shared-inference", "four replicas share one card"),
    Tenant("team-a", "quotas", "a quota of two cards; the Job's second Pod would be the third"),
    Tenant("legacy", "", "a Pod of HAMi on a card that koordgate counts; koordgate observes"),
)
TRY: Final = (
    ("kubectl get pods --all-namespaces --output wide", "what is where"),
    ("koordgate top", "every card in a line, and who holds it"),
    ("koordgate explain next --namespace train", "why a Pod waits, and what would help"),
    ("koordgate doctor", "whether the installation works"),
    ("koordgate adopt check", "what is left of the other product"),
)
_DEVICES: Final = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
_NEEDS: Final = """\
The playground is a Kubernetes control plane of {version} on this machine, with
koordgate installed. It has no container runtime: Pods are placed and are said
to run, and no container does. It takes 2 GiB of memory and starts in about a
minute. Ctrl-C ends it, and nothing is left.
"""
_FIRST: Final = """\
The first time, {programs} are built from source, into {folder}:
  time     5 to 20 minutes, by the number of processors
  disk     6 GiB, of which 5 GiB are Go's caches (go clean -cache -modcache empties these)
  memory   4 GiB
  needs    Go 1.26 or newer, which is fetched as a Python package if there is
           none; the Go module proxy; no C compiler
"""


def programs() -> Binaries:
    """Find or build what the playground runs, after saying what that takes.

    Raises:
        BuildError: as of `find_or_build`.
    """
    names = (*PROGRAMS, *(() if shutil.which("kubectl") else ("kubectl",)))
    sys.stdout.write(_NEEDS.format(version=chosen()))
    if lacking := missing(names):
        sys.stdout.write(_FIRST.format(programs=", ".join(lacking), folder=cache_folder()))
    sys.stdout.flush()
    return find_or_build(names)


async def move_in(cluster: PlaneCluster) -> None:
    """Create the tenants on a loaded cluster, and wait until all that fits is placed."""
    examples = data_folder("examples")
    own = list(yaml.safe_load_all((examples / "playground.yaml").read_text()))
    say("creating the tenants")
    for name in cluster.node_names:  # as a reporter tells of a node whose default runtime is NVIDIA's
        told = {NODE_RUNTIME: write_runtime(NodeRuntime(default_shows=True))}
        await cluster.admin.patch(f"{_DEVICES}/{name}", {"metadata": {"annotations": told}})
    for tenant in TENANTS:
        await cluster.plane.ensure_namespace(tenant.namespace)
        if tenant.recipe:
            recipe = (examples / "recipes" / tenant.recipe / "app.yaml").read_text()
            objects = list(yaml.safe_load_all(recipe))
            for item in objects:
                await cluster.admin.apply(item, namespace=tenant.namespace)
            for item in objects:
                await _at_work(cluster, item, tenant.namespace)
    for item in own:
        await cluster.admin.apply(item)


async def _at_work(cluster: PlaneCluster, item: JsonObject, namespace: str) -> None:
    path = await cluster.admin.path_of(item, namespace=namespace)

    async def ready() -> bool:
        found = await cluster.admin.get(path)
        status = found.get("status") or {}
        if item["kind"] == "Job":
            return bool(status.get("ready"))
        return bool(status.get("readyReplicas", 0) == found["spec"]["replicas"])

    if "template" in item.get("spec", {}):
        await until(ready, f"{path} is at work")


@contextlib.asynccontextmanager
async def playground() -> AsyncIterator[PlaneCluster]:
    """Run the example cluster with its tenants.

    Raises:
        PlaneError: something did not start, or did not answer.
    """
    examples = data_folder("examples")
    async with real_cluster(settings.load(examples / "config.yaml"), VALUES) as cluster:
        await cluster.load(read([str(examples / "cluster.yaml")]).cluster)
        await move_in(cluster)
        yield cluster


def guide(kubeconfig: Path, binaries: Binaries) -> Iterator[str]:
    """The lines that say how to use it."""
    yield "In another terminal:"
    yield f"  export KUBECONFIG={shlex.quote(str(kubeconfig))}"
    beside = [str(Path(sys.executable).parent)]
    if "kubectl" in binaries.paths:
        beside.append(str(binaries["kubectl"].parent))
    # The PATH of this terminal says nothing of the other one's.
    yield f'  export PATH={shlex.quote(os.pathsep.join(beside))}:"$PATH"'
    yield ""
    yield "Namespaces:"
    width = max(len(tenant.namespace) for tenant in TENANTS)
    yield from (f"  {tenant.namespace:{width}}  {tenant.what}" for tenant in TENANTS)
    yield ""
    yield "Try:"
    width = max(len(command) for command, _ in TRY)
    yield from (f"  {command:{width}}  # {what}" for command, what in TRY)
    yield ""
    yield "The first hour has more: docs/start/first-hour.md. Ctrl-C ends the playground."


async def play(binaries: Binaries) -> None:
    """Run the playground until cancelled.

    Raises:
        PlaneError: something did not start, or did not answer.
    """
    began = time.monotonic()
    async with playground() as cluster:
        say(f"ready after {time.monotonic() - began:.0f} s")
        sys.stdout.write("\n" + "".join(f"{line}\n" for line in guide(cluster.plane.admin_kubeconfig, binaries)))
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> int:
    """Run the playground until Ctrl-C or SIGTERM, which is how it is meant to end; returns the exit status."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        asyncio.run(play(programs()))
    except KeyboardInterrupt:
        sys.stdout.write("\nThe playground has ended; nothing is left of it.\n")
    except (BuildError, PlaneError) as error:
        sys.stderr.write(f"playground: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
