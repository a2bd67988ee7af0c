"""Names of marks."""

from webhook.ledger.store import new_mark


def test_a_mark_is_of_64_bits_of_chance() -> None:
    marks = {new_mark() for _ in range(100)}
    assert {len(bytes.fromhex(mark)) for mark in marks} == {8}
    assert len(marks) == 100
