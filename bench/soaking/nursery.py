"""Forks replicas that start at once: `python nursery.py SECONDS`, with a wall clock that is wrong by so many seconds.

It imports all that `koordgate serve webhook` needs, and then reads orders from standard input, a JSON object a line:
`argv` of koordgate, `env`, and the file `log`. Each is answered with the id of a process that carries it out, which has
a group, sockets and an event loop of its own, and can be killed like any other.

Every module reads the wall clock as `time.time()`, and the clock is wrong before any of them is imported. A nursery
for each replica has hashes of its own too.
"""

import gc
import json
import os
import signal
import sys
import time
import traceback
from importlib import import_module
from typing import Any, Final, NoReturn

_NEEDED: Final = ("koordgate.cli", "webhook.command", "koordgate.kube.kubeconfig", "kubernetes_asyncio.config")


def _serve() -> None:
    """Carry out orders until there are no more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks for the children's statuses
    gc.collect()
    gc.freeze()  # what all children share stays shared
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            _become(order)
        os.setpgid(child, child)
        print(child, flush=True)


def _become(order: dict[str, Any]) -> NoReturn:
    """Run koordgate in a forked child."""
    status = 1
    try:
        import_module("localplane.process").die_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
            os.dup2(file, number)
        os.environ.clear()
        os.environ.update(order["env"])
        status = import_module("koordgate.cli").main(order["argv"])
    except BaseException:  # noqa: BLE001 a child never goes on with its parent's work
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    right, off = time.time, float(sys.argv[1])
    time.time = lambda: right() + off
    for name in (*_NEEDED, "localplane.process"):
        import_module(name)
    _serve()
