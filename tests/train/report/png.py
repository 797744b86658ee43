"""Reads the pixels of a PNG as Chromium writes it: 8 bits, RGB or RGBA, not interlaced."""

import pathlib
import struct
import zlib


def _paeth(a, b, c):
    p = a + b - c
    pa, pb, pc = abs(p - a), abs(p - b), abs(p - c)
    return a if pa <= pb and pa <= pc else b if pb <= pc else c


def _unfiltered(kind, line, above, size):
    """Filters of the PNG specification, section 9.2. `size`: bytes of a pixel."""
    if kind == 2:
        return bytearray((x + y) & 255 for x, y in zip(line, above))
    for i in range(len(line)) if kind else ():
        left = line[i - size] if i >= size else 0
        corner = above[i - size] if i >= size else 0
        guess = (left, 0, (left + above[i]) >> 1, _paeth(left, above[i], corner))[kind - 1]
        line[i] = (line[i] + guess) & 255
    return line


class Picture:
    def __init__(self, path):
        data = pathlib.Path(path).read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n", path
        packed, at = b"", 8
        while at < len(data):
            length, kind = struct.unpack(">I4s", data[at : at + 8])
            if kind == b"IHDR":
                self.width, self.height, depth, color, _, _, interlaced = struct.unpack(">IIBBBBB", data[at + 8 : at + 21])
                assert depth == 8 and color in (2, 6) and interlaced == 0
                self.size = 3 if color == 2 else 4
            if kind == b"IDAT":
                packed += data[at + 8 : at + 8 + length]
            at += 12 + length
        raw, stride = zlib.decompress(packed), self.width * self.size
        self.rows, above = [], bytearray(stride)
        for row in range(self.height):
            begin = row * (stride + 1)
            above = _unfiltered(raw[begin], bytearray(raw[begin + 1 : begin + 1 + stride]), above, self.size)
            self.rows.append(above)

    def pixel(self, x, y):
        return tuple(self.rows[y][x * self.size : x * self.size + 3])
