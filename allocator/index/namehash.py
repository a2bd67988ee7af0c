"""Hashes of thousands of names at once, from their bytes as one text; names are strings of any length."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from allocator.index.table import Ints

_WORD: Final = 8  # bytes
_END: Final = 10  # the byte behind each name
_KEY: Final = np.int64(hash("names of nodes")).view(np.uint64)  # by chance, as Python's hashes are
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF: Final = np.uint64(32)
_Words = NDArray[np.uint64]


def name_hashes(names: Sequence[str]) -> Ints | None:
    """The hash of each name, 64 bits; it depends on no other name.

    A name is read by words of 8 bytes, of which the last one ends where the name ends.
    Returns None if a name is shorter than a word or has a line break, or if there is none.
    """
    if not names:
        return None
    text = ("\n".join(names) + "\n").encode("utf-8", "surrogatepass")
    count, size = len(names), len(text) // len(names)
    if text.count(b"\n") != count:
        return None
    letters = np.frombuffer(text, np.uint8)
    if (letters[size - 1 :: size] == _END).all():  # there are no others: the last one ends the text
        return _equally_long(text, count, size) if size > _WORD else None
    ends = np.flatnonzero(letters == _END)
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts
    if lengths.min() < _WORD:
        return None
    words = np.ndarray((len(text) - _WORD,), np.uint64, text, strides=(1,))
    last = ends - _WORD
    hashes = _begun(words[last], lengths.astype(np.uint64))
    for at in range(0, int(lengths.max()) - _WORD, _WORD):
        more = starts + at < last
        hashes = np.where(more, _mixed(hashes, words[np.minimum(starts + at, last)]), hashes)
    return _finished(hashes)


def _equally_long(text: bytes, count: int, size: int) -> Ints:
    """The same for names that take `size` bytes each with the line break."""

    def words(offset: int) -> _Words:
        return np.ndarray((count,), np.uint64, text, offset, (size,))

    last = size - 1 - _WORD
    hashes = _begun(words(last), np.uint64(size - 1))
    for at in range(0, last, _WORD):
        hashes = _mixed(hashes, words(at))
    return _finished(hashes)


def _begun(words: _Words, lengths: _Words | np.uint64) -> _Words:
    hashes: _Words = (words ^ _KEY) * _ODD + lengths
    return hashes


def _mixed(hashes: _Words, words: _Words) -> _Words:
    mixed = hashes >> _HALF
    mixed ^= hashes
    mixed ^= words
    mixed *= _ODD
    return mixed


def _finished(hashes: _Words) -> Ints:
    finished = hashes >> _HALF
    finished ^= hashes
    finished *= _ODD
    finished ^= finished >> _HALF
    return finished.view(np.int64)
