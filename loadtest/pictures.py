"""Pictures for models that see: real PNG files, drawn here and never kept on disk.

Owns the drawing and the file's format. Must never draw at random: the n-th picture is the same on every machine.
"""

import base64
import struct
import zlib

WIDTH, HEIGHT = 320, 200
_COLOURS = ((0xF4, 0xF4, 0xF0), (0x2B, 0x5D, 0x8A), (0xC8, 0x4B, 0x31), (0x3E, 0x7C, 0x4F), (0x22, 0x22, 0x22))
_LINE_HEIGHT, _MARGIN = 10, 12


def as_url(number: int) -> str:
    """The picture of that number as a `data:` address, as a body carries it."""
    return f"data:image/png;base64,{base64.b64encode(picture(number)).decode()}"


def picture(number: int) -> bytes:
    """A window with a coloured bar and lines of blocks, as a page of text looks from afar."""
    rows = b"".join(b"\x00" + b"".join(_pixel(x, y, number) for x in range(WIDTH)) for y in range(HEIGHT))
    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)  # 8 bits each of red, green and blue
    parts = (_chunk(b"IHDR", head), _chunk(b"IDAT", zlib.compress(rows)), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _pixel(x: int, y: int, number: int) -> bytes:
    paper, *inks, ink = _COLOURS
    if y < 2 * _LINE_HEIGHT:
        return bytes(inks[number % len(inks)])
    line, is_gap = divmod(y, _LINE_HEIGHT)[0], y % _LINE_HEIGHT > _LINE_HEIGHT // 2
    word = (x // (5 + (line * 7 + number) % 11) + line + number) % 4
    is_text = not is_gap and _MARGIN < x < WIDTH - _MARGIN and word
    return bytes(ink if is_text else paper)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
