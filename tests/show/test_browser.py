"""Pictures in a real browser: every label is inside the picture, and none is over another."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

from openshelf.fabric import Fabric, same_wires
from openshelf.show.fabric import fabric_svg
from openshelf.show.plan import plan_svg
from openshelf.show.same_wires import same_wires_svg
from tests.show.test_plan import chain

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: make test-browser installs it")

SCRIPT = """
const picture = document.querySelector("svg").getBoundingClientRect();
const labels = [...document.querySelectorAll("svg text")].filter(one => one.textContent.trim())
  .map(one => ({text: one.textContent, box: one.getBoundingClientRect()}));
const before = (a, b) => a.right <= b.left + 1 || a.bottom <= b.top + 3;
const apart = (a, b) => before(a, b) || before(b, a);
const wrong = [];
labels.forEach(({text, box}, at) => {
  if (!box.width || box.left < picture.left || box.right > picture.right || box.top < picture.top
      || box.bottom > picture.bottom) wrong.push([text, "is not inside"]);
  labels.slice(at + 1).forEach(other => apart(box, other.box) || wrong.push([text, "is over", other.text]));
});
document.querySelector("#found").textContent = JSON.stringify({labels: labels.length, wrong});
"""


def seen(svg: str, folder: Path) -> dict[str, object]:
    """What the script finds in a page with this picture."""
    page = folder / "page.html"
    page.write_text(f"<!doctype html><meta charset=utf-8>{svg}<p id=found></p><script>{SCRIPT}</script>")
    assert BROWSER
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run([*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120)
    found = re.search(r'<p id="found">(.*?)</p>', done.stdout)
    assert found, f"{done.stdout[-500:]}\n{done.stderr[-500:]}"
    told: dict[str, object] = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    return told


def test_a_plan_is_drawn_readably(tmp_path: Path) -> None:
    told = seen(plan_svg(chain(12)), tmp_path)
    assert told["wrong"] == []
    assert int(str(told["labels"])) > 10


@pytest.mark.parametrize("name", ["scalepool", "cloudmatrix384", "ub-mesh-pod", "gb200-nvl72", "dgx-h100-ib"])
def test_a_fabric_is_drawn_readably(name: str, tmp_path: Path) -> None:
    told = seen(fabric_svg(Fabric.load(name)), tmp_path)
    assert told["wrong"] == []


def test_loads_against_messages_are_drawn_readably(tmp_path: Path) -> None:
    assert seen(same_wires_svg(same_wires(), "on the same wires"), tmp_path)["wrong"] == []


def test_labels_over_each_other_are_found(tmp_path: Path) -> None:
    label = '<text x="10" y="{}">a label</text>'
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="100" height="60">{}</svg>'
    assert seen(svg.format(label.format(20) + label.format(24)), tmp_path)["wrong"] != []
    assert seen(svg.format(label.format(20) + label.format(45)), tmp_path)["wrong"] == []
    assert seen(svg.format(label.format(90)), tmp_path)["wrong"] != []
