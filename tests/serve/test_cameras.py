"""What robots' cameras see: shown on the page, checked before, and kept nowhere."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path

import pytest
from bdpi_robot import Refused, Robot
from PIL import Image
from serving import png, running
from websockets.sync.client import connect

from bdpi.serve.pictures import LONGEST, check_picture


def jpeg(width: int, height: int, **how: object) -> bytes:
    file = io.BytesIO()
    Image.effect_noise((width, height), 50).save(file, "JPEG", **how)  # type: ignore[arg-type]
    return file.getvalue()


def gif() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, "GIF")
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (png(64, 48), "png"),
        (png(1024, 1), "png"),
        (jpeg(64, 48), "jpeg"),
        (jpeg(320, 240, progressive=True), "jpeg"),
        (jpeg(64, 48, comment=b"x" * 5000), "jpeg"),
    ],
)
def test_small_pictures_are_taken_as_they_are(content: bytes, kind: str) -> None:
    shown = check_picture(base64.b64encode(content).decode())
    start, text = shown.split(",")
    assert start == f"data:image/{kind};base64"
    assert base64.b64decode(text) == content


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "neither"),
        (b"<svg onload='alert(1)'/>", "neither"),
        (gif(), "neither"),
        (png(8, 8)[:20], "neither"),
        (jpeg(8, 8)[:30], "neither"),
        (b"\xff\xd8" + b"\xff" * 80_000, "neither"),
        (b"\xff\xd8" + b"\xff\xe0\0\0" * 20_000, "neither"),
        (png(1025, 8), "1025 x 8 pixels"),
        (png(30_000, 8), "30000 x 8 pixels"),
        (jpeg(8, 5000), "8 x 5000 pixels"),
        (png(8, 8).replace((8).to_bytes(4, "big"), bytes(4), 1), "0 x 8 pixels"),
    ],
)
def test_others_are_refused(content: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        check_picture(base64.b64encode(content).decode())


@pytest.mark.parametrize("text", ["no base64", 'iVBOR"><script>', "é"])
def test_a_picture_comes_in_base64(text: str) -> None:
    with pytest.raises(ValueError, match="in base64"):
        check_picture(text)


def test_the_page_gets_each_picture_once_and_no_file_does(tmp_path: Path) -> None:
    first, second = png(40, 30), jpeg(40, 30)
    with running(tmp_path) as server, connect(f"ws://127.0.0.1:{server.port}/v1/live") as live:
        robot = Robot(port=server.port)
        robot.begin()
        robot.act([0, 0], picture=first)

        def shown() -> list[str]:
            """In the next pictures of the page."""
            states = [json.loads(live.recv(timeout=180)) for _ in range(5)]
            return [each["picture"] for state in states for each in state["robots"] if "picture" in each]

        assert [base64.b64decode(each.split(",")[1]) for each in shown()] == [first]
        assert shown() == []
        robot.step(0, 1.0, [0, 0], picture=second)
        robot.step(0, 1.0, [0, 0])  # without: the last one stays
        assert [base64.b64decode(each.split(",")[1]) for each in shown()] == [second]
        assert base64.b64decode(server.send("/v1/state")[1]["robots"][0]["picture"].split(",")[1]) == second
        for wrong in (b"GIF89a", bytes(LONGEST)):
            with pytest.raises(Refused, match="422: picture"):
                robot.act([0, 0], picture=wrong)
        assert "data:image/png" not in robot.act([0, 0])
    for file in server.out.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert not any(each in content for each in (first, second, base64.b64encode(first)[:40]))
