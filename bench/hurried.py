"""A replica whose waits for its certificates are shorter than in a cluster; it looks at its Secrets each 0.6 s.

`python hurried.py serve webhook --config FILE`
"""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path
from typing import Final

from koordgate.kube.client import KubeClient
from webhook import settings
from webhook.command import Replica
from webhook.tls.timing import Timing

_FASTER: Final = 100.0
_SETTLE: Final = timedelta(seconds=2)


async def serve(config: Path) -> None:
    """Serve as one replica in this process."""
    async with KubeClient.autodetect(limit=32) as kube:
        timing = Timing(
            sleep=lambda seconds: asyncio.sleep(seconds / _FASTER), settle=_SETTLE, offset=lambda: kube.server_offset
        )
        await Replica(settings.load(config), kube, timing).run(asyncio.Event())


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[sys.argv.index("--config") + 1])))
