"""A fabric's topology as a picture: one panel for each kind of connection, however many there are of it. SVG, by hand.

A panel shows the pattern (a star around a switch, leaves under spines, a ring, a full mesh) with a few nodes, and says
how many there really are, over which wire, and how far. An explicit graph of a moderate size is drawn whole.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openshelf.fabric import Fabric

PANEL, HEIGHT, TOP, RADIUS = 250, 330, 64, 70  # pixels
MOST = 8  # nodes in a pattern
MOST_IN_A_GRAPH = 60
COLOURS = {"memory": "#54a24b", "message": "#f58518"}

Point = tuple[float, float]


def fabric_svg(fabric: Fabric) -> str:
    """The picture, as text."""
    roles = list(fabric.network.cables)
    data: Any = fabric.topology.parameters if fabric.topology else None
    graph = data if fabric.topology and fabric.topology.generator == "graph" else None
    drawn = graph if graph and len(graph.endpoints) + len(graph.switches) <= MOST_IN_A_GRAPH else None
    panels = (["whole"] if drawn else []) + roles
    width = max(2, len(panels)) * PANEL + 20
    network = fabric.network
    ends = f"{network.ranks} {fabric.endpoint or 'endpoints'}"
    more = f" and {network.memories} {fabric.memory_endpoint or 'memory nodes'}" if network.memories else ""
    switches = ", ".join(f"{count} {kind.name}" for kind, count in network.switches.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(14, 22, f"{fabric.name}: {ends}{more}; switches: {switches or 'none'}", 14),
        _text(14, 42, "green: loads and stores; orange: messages. One pattern of each kind is drawn."),
    ]
    for number, role in enumerate(panels):
        left = 10 + number * PANEL
        if role == "whole":
            parts += _graph(drawn, left + PANEL / 2)
        else:
            parts += _panel(fabric, role, left)
    return "\n".join([*parts, "</svg>", ""])


def _panel(fabric: Fabric, role: str, left: float) -> list[str]:
    network = fabric.network
    wire = next(each for each in fabric.wires if each.name == network.links[role].name)
    protocol = fabric.known_protocols[wire.protocol]
    colour = COLOURS["memory" if hasattr(protocol, "line_bytes") else "message"]
    far = f"{wire.length_m.value:g} m of {wire.medium}" if wire.length_m and wire.medium else "length not given"
    lines = [
        f"{role}: {network.cables[role]:,.0f} x {wire.name}",
        f"{wire.total_bytes_per_s / 1e9:g} GB/s a direction ({wire.bandwidth_bytes_per_s.source})",
        f"{wire.protocol}",
        f"{far}, {network.links[role].latency_s * 1e9:.3g} ns",
    ]
    below = TOP + 2 * RADIUS + 50
    return [
        f'<rect x="{left}" y="{TOP - 8}" width="{PANEL - 10}" height="{HEIGHT - TOP - 4}" fill="none" stroke="#ddd"/>',
        *_pattern(role, left + PANEL / 2 - 5, TOP + RADIUS + 14, colour),
        *(_text(left + 10, below + 18 * i, line) for i, line in enumerate(lines)),
    ]


def _pattern(role: str, x: float, y: float, colour: str) -> list[str]:
    kind = role.rstrip("0123456789")
    around = _circle(x, y, MOST)
    if kind in ("mesh", "local", "global", "long"):
        lines = [(a, b) for i, a in enumerate(around) for b in around[:i]]
    elif kind in ("ring", "torus"):
        lines = [(around[i], around[i - 1]) for i in range(MOST)]
    elif "-" in kind and not kind.startswith("host"):
        upper = [(x + (i - 1.5) * 36, y - RADIUS + 20) for i in range(4)]
        lower = [(x + (i - 2.5) * 34, y + RADIUS - 20) for i in range(6)]
        return [*_lines([(a, b) for a in lower for b in upper], colour), *_nodes(lower, True), *_nodes(upper, True)]
    else:
        return [*_lines([(a, (x, y)) for a in around], colour), *_nodes(around, False), *_nodes([(x, y)], True)]
    return [*_lines(lines, colour), *_nodes(around, False)]


def _graph(data: Any, x: float) -> list[str]:
    names = [*data.endpoints, *(each.name for each in data.switches)]
    at = dict(zip(names, _circle(x, TOP + RADIUS + 30, len(names), RADIUS + 20), strict=True))
    lines = _lines([(at[edge.a], at[edge.b]) for edge in data.edges], "#888888")
    nodes = [each for name in names for each in _nodes([at[name]], name not in data.endpoints)]
    labels = [_text(at[name][0] + 7, at[name][1] - 7, name, 10) for name in names]
    return [*lines, *nodes, *labels]


def _circle(x: float, y: float, count: int, radius: float = RADIUS) -> list[Point]:
    turns = [2 * math.pi * i / count for i in range(count)]
    return [(round(x + radius * math.sin(turn), 1), round(y - radius * math.cos(turn), 1)) for turn in turns]


def _lines(ends: list[tuple[Point, Point]], colour: str) -> list[str]:
    return [f'<line x1="{a[0]}" y1="{a[1]}" x2="{b[0]}" y2="{b[1]}" stroke="{colour}"/>' for a, b in ends]


def _nodes(points: list[Point], switches: bool) -> list[str]:
    if switches:
        return [f'<rect x="{x - 8}" y="{y - 6}" width="16" height="12" fill="#4c78a8"/>' for x, y in points]
    return [f'<circle cx="{x}" cy="{y}" r="6" fill="#222222"/>' for x, y in points]


def _text(x: float, y: float, text: str, size: int = 12) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="#222222">{escape(text)}</text>'
