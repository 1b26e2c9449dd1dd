"""Small worlds for the laws: targets as plain functions of the prefix, written without spanfold."""

import zlib


def choice(seed, vocabulary):
    """A function of the true prefix: its best id, as if at random."""

    def best(prefix):
        return (zlib.crc32(bytes(prefix), seed) * 2654435761 >> 7) % vocabulary

    return best


def scores(best, vocabulary):
    """The same as scores per id: the best id first, then the ones that follow it, cyclically. For the scripted runtime."""

    def function(prefix):
        top = best(prefix)
        return [-float((token - top) % vocabulary) for token in range(vocabulary)]

    return function


def masked_best(best, vocabulary):
    """The same as a choice under a mask. For the serial oracle."""

    def choose(prefix, masked):
        top = best(prefix)
        return next((top + step) % vocabulary for step in range(vocabulary) if (top + step) % vocabulary not in masked)

    return choose
