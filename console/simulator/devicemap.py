"""The device map of an offline cluster: the page of `webhook.devicemap` as one file, or served on this machine."""

import argparse
import asyncio
import contextlib
import os
import re
import signal
import sys
import webbrowser
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

from console.simulator import words
from console.simulator.account import Account
from console.simulator.cluster import PodFate, Result
from koordgate.serving import serve
from webhook.devicemap.access import LoopbackGuard
from webhook.devicemap.document import VERSION, node_entry, types_entry
from webhook.devicemap.feed import MapFeed, waiting_entry
from webhook.devicemap.server import MapServer, single

Raw = dict[str, Any]

_HOST: Final = "127.0.0.1"
_CLIENTS: Final = 16
_LAST_PORT: Final = 65535
_DIGITS: Final = re.compile("[0-9]{1,5}")
_PLACED: Final = (PodFate.BOUND, PodFate.STANDING)


class MapError(OSError):
    """The map cannot be written or served; the message says where and why."""


def write(path: Path, results: Sequence[Result], account: Account) -> None:
    """Write the map as one file.

    Raises:
        MapError: the file cannot be written.
    """
    try:
        path.write_text(single(document(results, account)), encoding="utf-8")
    except OSError as error:
        message = f"--map {path}: cannot be written ({error.strerror}); name a file in an existing folder"
        raise MapError(message) from error


def document(results: Sequence[Result], account: Account) -> Raw:
    """Everything that the page shows: all nodes, and the Pods that got none."""
    return {
        "version": VERSION,
        "epoch": "",
        "revision": 0,
        "at": 0,
        "types": types_entry(account.types),
        "nodes": [node_entry(account.report(name)) for name in account.nodes],
        "waiting": _waiting(results),
    }


def _waiting(results: Sequence[Result]) -> Raw:
    """The Pods that got no node, and why."""
    pods = [_entry(result) for result in results if result.state not in _PLACED]
    return {"pods": pods, "total": len(pods)}


def _entry(result: Result) -> Raw:
    namespace, _, name = words.name_of(result.given or result.pod).partition("/")
    uid = str(result.pod["metadata"].get("uid", ""))
    return waiting_entry(uid, namespace, name, str(result.state), result.reasons)


@contextlib.asynccontextmanager
async def serving(results: Sequence[Result], account: Account, port: int) -> AsyncIterator[str]:
    """Serve the map on loopback to everybody on this machine, and yield its URL.

    Args:
        results: the outcome for each Pod.
        account: who holds what.
        port: TCP port; 0 for any free one.

    Raises:
        MapError: the port cannot be used.
    """
    waiting = _waiting(results)

    async def waiting_now() -> Raw:
        return waiting

    feed = MapFeed(account.view, account.types, waiting_now, lambda: 0)
    app = MapServer(feed, LoopbackGuard(), _CLIENTS).app()
    async with contextlib.AsyncExitStack() as stack:
        try:
            taken = await stack.enter_async_context(serve(app, _HOST, port))
        except OSError as error:
            message = f"--map-port {port}: cannot be used ({error.strerror}); name a free port, or 0 for any"
            raise MapError(message) from error
        yield f"http://{_HOST}:{taken}/"


def watched() -> bool:
    """Whether a person sits at the terminal who can end what is served."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def browse(url: str) -> bool:
    """Open a page in a browser with windows; returns whether that was tried. One in the terminal would take it over."""
    windows = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return windows and webbrowser.open(url)


async def until_interrupted() -> None:
    """Wait for Ctrl-C, or for the signal that ends a process."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    ending = (signal.SIGINT, signal.SIGTERM)
    for number in ending:
        loop.add_signal_handler(number, ended.set)
    try:
        await ended.wait()
    finally:
        for number in ending:
            loop.remove_signal_handler(number)


def tcp_port(text: str) -> int:
    """Read a port from the command line."""
    if _DIGITS.fullmatch(text) and int(text) <= _LAST_PORT:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r}: state a TCP port, 0 to {_LAST_PORT}; 0 takes a free one")
