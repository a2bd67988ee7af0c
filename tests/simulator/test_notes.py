"""Notes on standard error: those that say the same are one, and of many the first are told."""

import pytest

from console.notes import gathered, tell_notes


def test_notes_that_say_the_same_of_objects_of_a_kind_are_one_in_the_order_of_the_first() -> None:
    notes = [
        "Node a: odd",
        "there is no ConfigMap",
        *(f"Device n{at}: spec: bad" for at in range(5)),
        "Node b: odd",
        "Node b: odd",
        "Pod team/x: odd",
        "NodeResourceTopology a: odd",
        "NodeResourceTopology b: odd",
    ]
    assert gathered(notes) == [
        "Nodes a, b: odd",
        "there is no ConfigMap",
        "Devices n0, n1, n2 and 2 more: spec: bad",
        "Pod team/x: odd",
        "NodeResourceTopologies a, b: odd",
    ]


@pytest.mark.parametrize(("notes", "last"), [(12, "n11"), (13, "n12"), (14, "2 more notes; -o json has all")])
def test_twelve_notes_are_told_and_the_others_counted(
    notes: int, last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = [f"n{at}" for at in range(notes)]
    tell_notes("koordgate x", said, more="-o json has all")
    assert capsys.readouterr().err.splitlines()[-1] == f"koordgate x: {last}"
    tell_notes("koordgate x", said, everything=True)
    assert capsys.readouterr().err == "".join(f"koordgate x: {one}\n" for one in said)
