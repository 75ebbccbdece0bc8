"""Tokens as text of one line, for pipes and files: some ten times faster to read than numbers in decimals."""

import binascii
import operator
from array import array
from collections.abc import Sequence


def as_tokens(value: Sequence[int]) -> list[int]:
    """Return a list of plain ints, also of NumPy's.

    Raises:
        TypeError: There is something else in it.
    """
    return list(map(operator.index, value))


def pack(tokens: Sequence[int]) -> bytes:
    """Return base64 of the numbers in this machine's byte order, with the type of `array.array` ahead.

    Raises:
        OverflowError: A number has more than 64 bits.
    """
    try:
        numbers = array("i", tokens)
    except OverflowError:
        numbers = array("q", tokens)
    return numbers.typecode.encode() + binascii.b2a_base64(numbers.tobytes(), newline=False)


def unpack(packed: bytes) -> list[int]:
    """Return the tokens of `pack`."""
    numbers = array(packed[:1].decode())
    numbers.frombytes(binascii.a2b_base64(packed[1:]))
    return numbers.tolist()
