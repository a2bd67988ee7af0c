"""BoundedCache: the bound is on weight, and the least recently used entries go first."""

from hypothesis import given
from hypothesis import strategies as st

from webhook.boundedcache import BoundedCache


def test_one_heavy_entry_takes_the_place_of_many_light_ones() -> None:
    gone: list[tuple[str, int]] = []
    cache: BoundedCache[str, int] = BoundedCache(10, lambda key, value: gone.append((key, value)))
    for number, key in enumerate("abc"):
        cache.put(key, number, 3)
    cache.put("heavy", 9, 7)
    assert gone == [("a", 0), ("b", 1)]
    assert (len(cache), cache.weight) == (2, 10)


def test_a_key_that_is_put_again_has_the_new_value_and_weight_only() -> None:
    gone: list[str] = []
    cache: BoundedCache[str, int] = BoundedCache(10, lambda key, _value: gone.append(key))
    cache.put("a", 1, 9)
    cache.put("a", 2, 10)
    assert (cache.get("a"), cache.weight, gone) == (2, 10, [])
    cache.put("a", 3, 11)
    assert (cache.get("a"), cache.weight) == (None, 0)  # the old value is removed


def test_clearing_forgets_everything_and_calls_nobody() -> None:
    gone: list[str] = []
    cache: BoundedCache[str, int] = BoundedCache(10, lambda key, _value: gone.append(key))
    cache.put("a", 1, 5)
    cache.clear()
    assert (len(cache), cache.weight, cache.get("a"), gone) == (0, 0, None, [])


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
