import pytest
from uneven import add_uneven_nodes
from world import World


@pytest.fixture
def uneven(world: World) -> World:
    """Nodes on which the search for some Pods is as long as it can be."""
    add_uneven_nodes(world)
    return world
