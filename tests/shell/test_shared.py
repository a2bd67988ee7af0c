"""`koordgate` has only modules that both processes use; a module for one of them is in that process's package."""

import grimp
import pytest

PROCESSES = ("webhook", "reporter")
UNSHARED = {
    "koordgate.__main__": "`python -m koordgate`: nobody imports it",
}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("koordgate", *PROCESSES)


def users(graph: grimp.ImportGraph, module: str) -> set[str]:
    """The processes that import a module, directly or through others; imports inside functions count."""
    return {one for one in PROCESSES if graph.chain_exists(importer=one, imported=module, as_packages=True)}


def test_both_processes_use_every_module(graph: grimp.ImportGraph) -> None:
    modules = {name for name in graph.modules if name.partition(".")[0] == "koordgate"}
    assert len(modules) > 10
    unshared = {name: users(graph, name) for name in modules if users(graph, name) != set(PROCESSES)}
    assert unshared.keys() == UNSHARED.keys(), unshared


def test_no_module_imports_a_process(graph: grimp.ImportGraph) -> None:
    for process in PROCESSES:
        assert not graph.chain_exists(importer="koordgate", imported=process, as_packages=True)
