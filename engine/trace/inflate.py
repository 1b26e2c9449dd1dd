"""Reading a compressed trace as a stream, to its very end if it was cut off.

The standard library's reader drops what it has of a line when the stream breaks off, and takes some cuts for damage; here the bytes that
can be had come out, and then it is said whether the stream was cut.
"""

from __future__ import annotations

import io
import zlib
from typing import BinaryIO, Final

__all__ = ["MARK", "WINDOW", "Inflated"]

WINDOW: Final = 16 + zlib.MAX_WBITS  # gzip members, not raw zlib streams
MARK: Final = b"\0\0\xff\xff"  # how a sync point ends
_BLOCK: Final = 1 << 16
_GZIP: Final = b"\x1f\x8b"


class Inflated(io.RawIOBase):
    """The content of the gzip members of a file, in constant memory.

    Attributes:
        cut: whether the file ended inside of a member, at no sync point.

    Raises (while reading):
        zlib.error: this is not gzip, or damaged.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.cut = False
        self._file = file
        self._inflate = zlib.decompressobj(wbits=WINDOW)
        self._left = b""
        self._tail = b""  # the last compressed bytes
        self._inside = False

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Fill the buffer as far as one step gets; 0 at the end."""
        while True:
            if self._inflate.eof:
                self._left = self._inflate.unused_data
                self._inflate = zlib.decompressobj(wbits=WINDOW)
                self._inside = False
            if not self._left:
                self._left = self._file.read(_BLOCK)
                self._tail = (self._tail + self._left)[-len(MARK) :]
            if not self._left:
                self.cut = self._inside and self._tail != MARK
                return 0
            if not self._inside and not _GZIP.startswith(self._left[: len(_GZIP)]):
                raise zlib.error("not gzip")
            self._inside = True
            out = self._inflate.decompress(self._left, len(buffer))
            self._left = self._inflate.unconsumed_tail
            if out:
                buffer[: len(out)] = out
                return len(out)
