"""The tour's chapter on fabrics."""

from __future__ import annotations

import io
import json

from rich.console import Console

from openshelf.show.tour import fabric_chapter


def test_the_chapter_models_five_fabrics_and_says_so() -> None:
    out = io.StringIO()
    found = json.loads(json.dumps(fabric_chapter(Console(file=out, width=200))))
    assert len(found["modelled"]) == 5
    assert found["modelled"]["scalepool"]["seconds"]["64"] < found["modelled"]["dgx-h100-ib"]["seconds"]["64"]
    assert all(seconds > 0 for seconds in found["copied_s"].values())
    assert any("extrapolated" in text for text in found["beyond"])
    assert "modelled" in out.getvalue()
    assert "measured" in out.getvalue()
