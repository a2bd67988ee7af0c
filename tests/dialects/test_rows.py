"""What Pods in other products' dialects ask for: every row of every table, as admission reads and rewrites it."""

from importlib import import_module
from typing import Any

import pytest
from builders import GIB
from dialects.rows import ALWAYS, Row, types
from world import applied_again, asks

from allocator.request.original import read_asks
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.dialects import PEERS
from allocator.vocabulary.names import DIALECT, KOORD_SCHEDULER, KUBERNETES_DOMAIN, ORIGINAL_REQUEST
from webhook import patch
from webhook.admission.reapply import reapply
from webhook.admission.translate import Translation, TranslationPolicy, translate
from webhook.admission.validate import created

TABLES: dict[str, tuple[Row, ...]] = {
    name: import_module(f"dialects.{name.replace('-', '_')}").ROWS for name in (*ALWAYS, *(one.name for one in PEERS))
}
EVERY = [(name, row) for name, rows in TABLES.items() for row in rows]
ROWS = pytest.mark.parametrize(("dialect", "row"), EVERY, ids=[f"{name}: {row.name}" for name, row in EVERY])


def translated(dialect: str, row: Row) -> tuple[dict[str, Any], Translation]:
    obj = row.pod()
    policy = TranslationPolicy(KUBERNETES_DOMAIN, types(dialect, row.settings))
    return obj, translate(obj, policy, None)


@ROWS
def test_a_pod_asks_for_what_its_product_gives(dialect: str, row: Row) -> None:
    assert row.source
    obj, made = translated(dialect, row)
    told = "; ".join(map(str, made.problems))
    if row.refused:
        assert row.refused in told
        return
    assert told == ""
    reading = read_asks(obj, types(dialect, row.settings))
    assert {one.name: one.ask for one in reading.request.containers} == row.asks
    assert (dict(reading.request.memory_limits), dict(reading.request.memory_portions)) == (row.limit, row.portion)
    assert (reading.one_device != frozenset()) is row.one_card
    if row.warned:
        assert row.warned in "; ".join(made.warnings)
    else:
        assert made.warnings == ()


@ROWS
@pytest.mark.parametrize("memory", [None, 80 * GIB], ids=["unknown cards", "cards alike"])
def test_a_translated_pod_asks_for_the_same_even_if_the_dialect_is_turned_off(
    dialect: str, row: Row, memory: int | None
) -> None:
    obj = row.pod()
    if row.refused or not row.asks:
        return
    table = types(dialect, row.settings)
    policy = TranslationPolicy(KUBERNETES_DOMAIN, table)
    done = patch.apply(obj, translate(obj, policy, memory).operations)
    for container in done["spec"]["containers"]:
        for amounts in container.get("resources", {}).values():
            others = {name for name in amounts if not name.startswith(KUBERNETES_DOMAIN)} - {"cpu"}
            assert not others or (dialect == "npu" and all(name.startswith("huawei.com/npu") for name in others))
    assert created(asks(done), KOORD_SCHEDULER, table) == []
    assert translate(done, policy, memory).operations == ()
    wanted = read_asks(obj, table).request
    for later in (table, table if dialect == "npu" else BUILT_IN):
        reading = read_asks(done, later)
        assert reading.problems == ()
        assert [(one.name, one.ask) for one in reading.request.containers] == [
            (one.name, one.ask) for one in wanted.containers
        ]
        assert reading.request.wishes == wanted.wishes
        assert reading.request.memory_limits == wanted.memory_limits
        assert reading.request.memory_portions == wanted.memory_portions
    if dialect not in ALWAYS:
        assert ORIGINAL_REQUEST in done["metadata"]["annotations"]


@ROWS
def test_a_manifest_that_is_applied_again_leaves_the_pod_as_it_is(dialect: str, row: Row) -> None:
    obj, made = translated(dialect, row)
    if made.problems or not row.asks:
        return
    stored = patch.apply(obj, made.operations)
    for later in (types(dialect, row.settings), types("npu") if dialect == "npu" else BUILT_IN):
        again = applied_again(stored, obj)
        answer = reapply(stored, again, TranslationPolicy(KUBERNETES_DOMAIN, later))
        assert answer.problems == []
        assert patch.apply(again, answer.operations) == stored


@ROWS
def test_a_pod_of_another_dialect_states_which_and_its_unit(dialect: str, row: Row) -> None:
    obj, made = translated(dialect, row)
    if made.problems or not row.asks:
        return
    done = patch.apply(obj, made.operations)
    used = [one for one in made.reading.dialects if one.title]
    stated = done["metadata"].get("annotations", {}).get(DIALECT, "")
    assert stated.partition(";")[0] == (dialect if used else "")
    if "memoryUnit" in row.settings:
        assert stated.endswith(f"memory unit {row.settings['memoryUnit']}")


def test_each_table_has_enough_rows_of_different_names() -> None:
    for name, rows in TABLES.items():
        names = [row.name for row in rows]
        assert len(names) == len(set(names)) >= 12, name
        assert any(row.refused for row in rows), name
    assert len(EVERY) >= 350
