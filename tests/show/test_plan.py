"""Pictures of a plan show what the plan says."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("torch")

from openshelf.offload import Lane, Op, Plan, Program, Rates, Storage, make_plan
from openshelf.show.plan import WIDTH, levels, plan_svg
from openshelf.show.trace import kind_of, plan_trace, write_trace

PAGE = 4096
SVG = "{http://www.w3.org/2000/svg}"


def chain(layers: int) -> Plan:
    """Layers whose weights do not all fit, and whose names have to be escaped."""
    weights = [Storage(number, f"<{number}>&w", 8 * PAGE, "weight", given=True) for number in range(layers)]
    made = [Storage(layers + number, f"x{number}", PAGE, "activation") for number in range(layers)]
    ops = [
        Op(number, "mm", (number, *([layers + number - 1] if number else [])), makes=(layers + number,),
           workspace=PAGE if number == 1 else 0, seconds=1e-3)
        for number in range(layers)
    ]  # fmt: skip
    lane = Lane(100e6, 1e-5)
    program = Program(tuple(ops), (*weights, *made))
    return make_plan(program, 20 * PAGE, Rates(lane, lane, lane, lane), time_limit=0.1, cache=False)


def test_the_arena_fills_as_the_steps_say() -> None:
    plan = chain(12)
    times = plan.timeline()
    used = most = 0
    for change in sorted(times.changes, key=lambda change: change.when):
        used += change.nbytes
        assert used >= 0
        most = max(most, used)
    assert most == times.peak <= plan.peak
    columns = levels(plan, times.changes, ["weight", "activation", "workspace"], times.seconds)
    assert len(columns) == WIDTH
    assert max(map(sum, columns)) == times.peak
    assert max(column[2] for column in columns) == PAGE


def test_picture_is_well_formed_and_has_every_lane() -> None:
    root = ElementTree.fromstring(plan_svg(chain(12)))
    texts = [one.text or "" for one in root.iter(f"{SVG}text")]
    assert {"compute", "wait", "flash read"} <= set(texts)
    assert "dram read" not in texts
    titles = [one.text or "" for one in root.iter(f"{SVG}title")]
    assert any(title.startswith("<3>&w") for title in titles)
    assert len(list(root.iter(f"{SVG}polygon"))) == 3


def test_picture_of_a_long_program_stays_small() -> None:
    assert len(plan_svg(chain(3000))) < 1_000_000


def test_trace_has_all_spans_in_their_rows(tmp_path: Path) -> None:
    plan = chain(12)
    times = plan.timeline()
    events = plan_trace(plan)["traceEvents"]
    rows = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    spans = [one for one in events if one["ph"] == "X"]
    assert [(rows[one["tid"]].replace(" ", "_"), one["name"]) for one in spans] == [
        (span.lane, span.name) for span in times.spans
    ]
    assert max(one["ts"] + one["dur"] for one in spans) == pytest.approx(times.seconds * 1e6)
    assert max(sum(one["args"].values()) for one in events if one["ph"] == "C") == times.peak
    for name in ("plan.json", "plan.json.gz"):
        write_trace(plan, tmp_path / name)
    text = (tmp_path / "plan.json").read_bytes()
    assert gzip.decompress((tmp_path / "plan.json.gz").read_bytes()) == text
    assert json.loads(text) == plan_trace(plan)
    assert kind_of(plan, None) == "workspace"
