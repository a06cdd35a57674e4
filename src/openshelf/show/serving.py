"""Serving in virtual time to look at: a curve over pool sizes as SVG, and the steps of engines for ui.perfetto.dev."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openshelf.space import format_size

if TYPE_CHECKING:
    from openshelf.twin.serve import Point, Served

_MOST_STEPS = 50_000
_WIDTH, _HEIGHT, _EDGE = 640, 300, 56


def pool_curve_svg(points: Sequence[Point]) -> str:
    """Hit rate and mean time to the first token, each over its own largest, by pool size."""
    good = [point for point in points if point.served.done.any()]
    lines = {
        "hit rate": ("#1f77b4", [point.hit_rate for point in good], "{:.0%}"),
        "mean TTFT": ("#d62728", [float(point.served.ttft_s.mean()) for point in good], "{:.3g} s"),
    }
    step = (_WIDTH - 2 * _EDGE) / max(1, len(good) - 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="11">'
    ]
    for row, (name, (colour, values, form)) in enumerate(lines.items()):
        most = max([*values, 1e-12])
        places = [
            (_EDGE + step * at, _HEIGHT - _EDGE - (_HEIGHT - 2 * _EDGE) * value / most)
            for at, value in enumerate(values)
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{line}"/>')
        parts.append(f'<text x="{_EDGE}" y="{16 + 14 * row}" fill="{colour}">{name} (simulated)</text>')
        parts += [
            f'<text x="{x:.1f}" y="{y - 5:.1f}" fill="{colour}" text-anchor="middle">{form.format(value)}</text>'
            for (x, y), value in zip(places, values, strict=True)
        ]
    for at, point in enumerate(good):
        size = format_size(point.pool_bytes) if point.pool_bytes else "no pool"
        parts.append(f'<text x="{_EDGE + step * at:.1f}" y="{_HEIGHT - 30}" text-anchor="middle">{size}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def serving_trace(served: Served, most: int = _MOST_STEPS) -> dict[str, Any]:
    """Chrome's trace events: a track for each replica, a slice for each step."""
    events: list[dict[str, Any]] = []
    for number, each in enumerate(served.replicas):
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": f"replica {number}"}})
        steps = zip(each["start_s"], each["end_s"], each["step_tokens"], each["step_decodes"], strict=True)
        for start, end, tokens, decodes in steps:
            if len(events) >= most:
                break
            name = "decode" if tokens == decodes else "prompts and decodes" if decodes else "prompts"
            events.append(
                {
                    "ph": "X",
                    "name": name,
                    "pid": number,
                    "tid": 0,
                    "ts": float(start) * 1e6,
                    "dur": float(end - start) * 1e6,
                    "args": {"tokens": int(tokens), "decodes": int(decodes)},
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_serving_trace(served: Served, path: Path) -> None:
    """The steps in a file; compressed, if its name ends in .gz."""
    data = json.dumps(serving_trace(served), separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
