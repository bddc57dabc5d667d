"""Pictures of robots' cameras, for the page: small JPEG and PNG, in base64. They are looked at, never decoded here."""

from __future__ import annotations

import base64
import binascii
import struct

LONGEST = 120_000  # characters
_LARGEST_SIDE = 1024  # pixels: a small file may unfold into gigabytes in the browser
_MOST_SEGMENTS = 100  # of a JPEG, before its size
_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"


def check_picture(text: str) -> str:
    """The picture as the address that a page shows it by.

    :param text: in base64
    :raises ValueError: for anything but a JPEG or PNG of at most 1024 by 1024 pixels
    """
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a picture is a JPEG or PNG in base64") from None
    kind, size = ("png", _size_of_png(content)) if content.startswith(_PNG) else ("jpeg", _size_of_jpeg(content))
    if size is None:
        raise ValueError("a picture is a JPEG or PNG in base64, and this is neither")
    if not all(1 <= side <= _LARGEST_SIDE for side in size):
        raise ValueError(
            f"the picture has {size[0]} x {size[1]} pixels: send at most {_LARGEST_SIDE} x {_LARGEST_SIDE}"
        )
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _size_of_png(content: bytes) -> tuple[int, int] | None:
    """Width and height, which come first."""
    return struct.unpack(">II", content[16:24]) if content[12:16] == b"IHDR" and len(content) >= 24 else None  # type: ignore[return-value]


def _size_of_jpeg(content: bytes) -> tuple[int, int] | None:
    """Width and height, in the segment that begins the frame."""
    at = 2
    for _ in range(_MOST_SEGMENTS):
        if not content.startswith(_JPEG) or at + 9 > len(content) or content[at] != 0xFF:
            break
        marker, length = content[at + 1], int.from_bytes(content[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", content[at + 5 : at + 9])
            return width, height
        at += 2 + length
    return None
