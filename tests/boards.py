"""How the devices of well-known machines are connected."""

import json
from collections.abc import Iterable, Mapping
from itertools import combinations

from allocator.topology.sets import Candidate
from allocator.vocabulary.device import SWITCH, Links, Place, link
from allocator.wire.deviceobject import read_links

# `nvidia-smi topo -m` of a DGX-1 with V100: six lanes per card in a hybrid cube mesh.
CUBE_MESH = {
    (0, 1): 1,
    (0, 2): 1,
    (0, 3): 2,
    (0, 4): 2,
    (1, 2): 2,
    (1, 3): 1,
    (1, 5): 2,
    (2, 3): 2,
    (2, 6): 1,
    (3, 7): 1,
    (4, 5): 1,
    (4, 6): 1,
    (4, 7): 2,
    (5, 6): 2,
    (5, 7): 1,
    (6, 7): 2,
}


def gpu(minor: int) -> str:
    return f"GPU-{minor:02d}"


def bridged(pairs: Mapping[tuple[int, int], int]) -> dict[tuple[str, str], int]:
    """Lanes between pairs of minors, as `read_links` returns them."""
    return {(gpu(a), gpu(b)): lanes for (a, b), lanes in pairs.items()}


def switched(count: int, lanes: int) -> dict[tuple[str, str], int]:
    """Lanes of a switched machine, read from an annotation."""
    ids = [gpu(minor) for minor in range(count)]
    found, problems = read_links(json.dumps({one: {SWITCH: lanes} for one in ids}), ids)
    assert not problems
    assert len(found) == len(list(combinations(ids, 2)))
    return found


def places(count: int, *, roots: int = 0, numas: int = 0) -> list[Place]:
    """Cards spread evenly over PCIe roots and NUMA nodes, one socket per NUMA node; 0 means not reported."""
    return [
        Place(
            gpu(minor),
            minor * numas // count if numas else None,
            f"pci0000:{minor * roots // count:02x}" if roots else None,
            minor * numas // count if numas else None,
        )
        for minor in range(count)
    ]


Board = tuple[list[Place], Links]


def board(where: list[Place], lanes: Mapping[tuple[str, str], int] | None = None) -> Board:
    return where, link(where, lanes)


BOARDS: dict[str, Board] = {
    "DGX A100: eight, switched": board(places(8, roots=4, numas=4), switched(8, 12)),
    "HGX H100: eight, switched, two NUMA nodes": board(places(8, roots=8, numas=2), switched(8, 18)),
    "switched, nothing else reported": board(places(8), switched(8, 18)),
    "nothing reported": board(places(8)),
    "eight PCIe cards on four roots": board(places(8, roots=4, numas=2)),
    "DGX-1V: hybrid cube mesh": board(places(8, roots=4, numas=2), bridged(CUBE_MESH)),
    "HGX-2: sixteen, switched": board(places(16, roots=8, numas=2), switched(16, 6)),
    "mixed: two bridged pairs and four cards": board(places(8, roots=8, numas=2), bridged({(0, 1): 4, (4, 5): 4})),
}


def candidates(name: str, free: Iterable[int] | None = None) -> list[Candidate]:
    """The cards of a board, or the free ones."""
    where, _ = BOARDS[name]
    chosen = range(len(where)) if free is None else free
    return [Candidate(where[minor].id, minor, (), where[minor].numa, where[minor].pcie) for minor in chosen]
