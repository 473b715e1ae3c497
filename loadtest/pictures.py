"""Pictures for models that see: real PNG files, drawn here and never kept on disk.

Owns the drawing and the file's format. Must never draw at random: the n-th picture is the same on every machine.
"""

import base64
import struct
import zlib

WIDTH, HEIGHT = 320, 200
_PAPER, _INK = b"\xf4\xf4\xf4", b"\x22\x22\x22"
_INKS = (b"\x2b\x5d\x8a", b"\xc8\x4b\x31", b"\x3e\x7c\x4f")
_LINE_HEIGHT, _LETTER_HEIGHT, _BAR_LINES, _MARGIN, _GAP = 10, 6, 2, 12, 4


def as_url(number: int) -> str:
    """The picture of that number as a `data:` address, as a body carries it."""
    return f"data:image/png;base64,{base64.b64encode(picture(number)).decode()}"


def picture(number: int) -> bytes:
    """A window with a coloured bar and lines of blocks, as a page of text looks from afar."""
    lines = HEIGHT // _LINE_HEIGHT
    bar = _row(_INKS[number % len(_INKS)] * WIDTH) * (_BAR_LINES * _LINE_HEIGHT)
    blank = _row(_PAPER * WIDTH) * (_LINE_HEIGHT - _LETTER_HEIGHT)
    text = (_row(_words(line, number)) * _LETTER_HEIGHT + blank for line in range(_BAR_LINES, lines))
    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)  # 8 bits each of red, green and blue
    parts = (("IHDR", head), ("IDAT", zlib.compress(bar + b"".join(text))), ("IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name.encode(), data) for name, data in parts)


def _words(line: int, number: int) -> bytes:
    """The pixels of one line: words and gaps between two margins."""
    pixels, room = _PAPER * _MARGIN, WIDTH - 2 * _MARGIN
    for place in range(room):
        letters = 4 + (line * 7 + number + place * 5) % 23
        if len(pixels) // 3 + letters >= WIDTH - _MARGIN:
            break
        pixels += _INK * letters + _PAPER * _GAP
    return pixels.ljust(3 * WIDTH, _PAPER[:1])[: 3 * WIDTH]


def _row(pixels: bytes) -> bytes:
    """One row as the format has it: unfiltered."""
    return b"\x00" + pixels


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
