"""The benchmark of certificates, in short: CAs change under load, on a real API server with three replicas."""

import asyncio

from rotations import rotate


async def test_changes_of_the_ca_lose_no_request() -> None:
    said: list[str] = []
    async with asyncio.timeout(300):
        load = await rotate(2, said.append)
    assert load.failed == [], said
    assert load.asked > 0
