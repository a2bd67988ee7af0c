"""BoundedCache: the bound is on weight, and the least recently used entries go first."""

from hypothesis import given
from hypothesis import strategies as st

from webhook.boundedcache import BoundedCache


def test_clearing_forgets_everything() -> None:
    cache: BoundedCache[str, int] = BoundedCache(10)
    cache.put("a", 1, 5)
    cache.clear()
    assert (len(cache), cache.weight, cache.get("a")) == (0, 0, None)


@given(
    st.integers(0, 20),
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.one_of(st.none(), st.integers(0, 25))), max_size=60),
)
def test_it_keeps_the_most_recently_used_that_fit_as_a_list_would(
    most: int, operations: list[tuple[str, int | None]]
) -> None:
    """Compared with a list of (key, value, weight), the most recently used last."""
    cache: BoundedCache[str, int] = BoundedCache(most)
    model: list[tuple[str, int, int]] = []
    for value, (key, weight) in enumerate(operations):
        if weight is None:
            found = next((entry for entry in model if entry[0] == key), None)
            assert cache.get(key) == (found and found[1])
            if found:
                model.remove(found)
                model.append(found)
            continue
        cache.put(key, value, weight)
        model = [entry for entry in model if entry[0] != key]
        if weight <= most:
            while sum(entry[2] for entry in model) + weight > most:
                model.pop(0)
            model.append((key, value, weight))
        assert cache.weight == sum(entry[2] for entry in model) <= most
        assert len(cache) == len(model)
