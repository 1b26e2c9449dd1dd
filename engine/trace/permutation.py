"""A secret permutation of ``0 .. size - 1``, computed without a table."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

__all__ = ["Permutation"]

_ROUNDS: Final = 10


class Permutation:
    """A Feistel network over the next even number of bits, walked until the value is back in the range (format-preserving encryption by
    cycle walking: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). The domain has at most four times the size, so four
    steps are expected at most.

    Args:
        key: at most 64 bytes.
        size: at least 1; another size gives another permutation.
    """

    def __init__(self, key: bytes, size: int) -> None:
        self.size: Final = size
        self._half = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half) - 1
        self._rounds = [blake2b(b"%d of %d" % (at, size), key=key, digest_size=8, person=b"spanfold ids") for at in range(_ROUNDS)]
        self._known: dict[int, int] = {}

    def __call__(self, number: int) -> int:
        """Where a number goes. ValueError: outside of the range."""
        known = self._known.get(number)
        if known is None:
            known = self._known[number] = self._walk(number, forward=True)
        return known

    def inverse(self, number: int) -> int:
        """Where it came from. ValueError: outside of the range."""
        return self._walk(number, forward=False)

    def _walk(self, number: int, *, forward: bool) -> int:
        if not 0 <= number < self.size:
            raise ValueError(f"{number} is not in the range of {self.size}")
        while True:
            number = self._forward(number) if forward else self._backward(number)
            if number < self.size:
                return number

    def _forward(self, number: int) -> int:
        left, right = number >> self._half, number & self._mask
        for at in range(_ROUNDS):
            left, right = right, left ^ self._mixed(at, right)
        return left << self._half | right

    def _backward(self, number: int) -> int:
        left, right = number >> self._half, number & self._mask
        for at in reversed(range(_ROUNDS)):
            left, right = right ^ self._mixed(at, left), left
        return left << self._half | right

    def _mixed(self, at: int, value: int) -> int:
        hashed = self._rounds[at].copy()
        hashed.update(value.to_bytes(8, "little"))
        return int.from_bytes(hashed.digest(), "little") & self._mask
