"""Vectors of texts: brought to length 1, packed for a cache, remembered, compared."""

from __future__ import annotations

import base64
import binascii
import math
import operator
import sys
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

try:
    import numpy  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    numpy = None  # type: ignore[assignment,unused-ignore]  # the same results without it, only slower

VECTOR_BYTES = 48 * 2**20  # 32,000 vectors of 384 numbers, 8,000 of 1,536


def unit_vector(numbers: Sequence[float]) -> array[float]:
    """Bring a vector to length 1, so that a product of two is their cosine; zeros stay zeros."""
    length = math.hypot(*numbers)
    return array("f", (number / length for number in numbers) if length else numbers)


def packed_vector(vector: array[float]) -> str:
    """Write a vector as base64 of its 32-bit numbers, the lowest byte first."""
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode("ascii")


def unpacked_vector(text: str) -> array[float] | None:
    """Read what `packed_vector` wrote; None if it is something else."""
    vector = array("f")
    try:
        vector.frombytes(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return None
    if sys.byteorder == "big":
        vector.byteswap()
    return vector if vector and math.isfinite(sum(vector)) else None


def cosines(asked: array[float], vectors: Sequence[array[float]]) -> list[float]:
    """Give the cosine of each vector with `asked`, all of length 1, to six digits."""
    if numpy is None:
        return plain_cosines(asked, vectors)
    if not vectors:
        return []
    rows = numpy.frombuffer(b"".join(vector.tobytes() for vector in vectors), "f4").reshape(len(vectors), -1)
    products = rows.astype("f8") @ numpy.frombuffer(asked.tobytes(), "f4").astype("f8")
    return [round(product, 6) for product in products.tolist()]


def plain_cosines(asked: array[float], vectors: Sequence[array[float]]) -> list[float]:
    """Do what `cosines` does without numpy."""
    return [round(sum(map(operator.mul, asked, vector)), 6) for vector in vectors]


class VectorMemory:
    """Remembers vectors by key, up to `most_bytes`; what was not asked for longest goes first.

    Threads and event loops may share it.
    """

    def __init__(self, most_bytes: int = VECTOR_BYTES) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._vectors: OrderedDict[str, array[float]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> array[float] | None:
        """Give a vector, None if there is none."""
        with self._lock:
            vector = self._vectors.get(key)
            if vector is not None:
                self._vectors.move_to_end(key)
            return vector

    def all_of(self, keys: Iterable[str]) -> dict[str, array[float]]:
        """Give the vectors there are, by key."""
        return {key: vector for key in keys if (vector := self.get(key)) is not None}

    def put(self, key: str, vector: array[float]) -> None:
        """Remember a vector."""
        with self._lock:
            self._bytes += _vector_bytes(vector) - _vector_bytes(self._vectors.get(key))
            self._vectors[key] = vector
            self._vectors.move_to_end(key)
            while self._bytes > self._most_bytes:
                self._bytes -= _vector_bytes(self._vectors.popitem(last=False)[1])


def _vector_bytes(vector: array[float] | None) -> int:
    return 0 if vector is None else len(vector) * vector.itemsize
