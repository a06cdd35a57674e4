"""The picture of the first page is what its program draws."""

from __future__ import annotations

from xml.etree import ElementTree

from docs.picture import GROUND, HEIGHT, WIDTH, draw

from tests.docs.pages import ROOT

SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_is_up_to_date() -> None:
    assert (ROOT / "docs" / "picture.svg").read_text() == draw(), "python docs/picture.py"


def test_the_picture_has_a_ground_and_nothing_beyond_it() -> None:
    picture = ElementTree.fromstring(draw())
    ground = next(picture.iter(f"{SVG}rect"))
    assert (ground.get("fill"), ground.get("width"), ground.get("height")) == (GROUND, str(WIDTH), str(HEIGHT))
    for box in picture.iter(f"{SVG}rect"):
        assert float(box.get("x", "0")) + float(box.get("width", "0")) <= WIDTH
        assert float(box.get("y", "0")) + float(box.get("height", "0")) <= HEIGHT
    for words in picture.iter(f"{SVG}text"):
        assert 0 < float(words.get("x", "0")) < WIDTH
        assert 0 < float(words.get("y", "0")) < HEIGHT
