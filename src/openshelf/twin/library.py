"""A fabric's library between ranks and wires: regimes that flows are run in, and what the library itself would do.

The twin runs an algorithm once in every regime that could be the fastest: its launch comes first, each step over known
wires costs the regime's step instead of the protocol's start, and bytes go at the regime's rate there. `library` asks
the law instead of flows: one regime inside a domain (ranks that reach each other over the same wires), and among
several domains reduce-scatter inside, all-reduce between, all-gather inside, all in a pipeline, so that the slower of
inside and between sets the pace.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from openshelf.errors import BadInput
from openshelf.fabric import TRUST, Fabric, Ids, Library, LibraryRegime, Semantics, Source, work
from openshelf.twin.collective import Collective
from openshelf.twin.costs import Costs

_IN_QUESTION = 2
"""So many regimes are run, the fastest by the law of one domain."""
_LACKS = {True: "a bare network", False: "this fabric"}
_SAME = 1e-3
_PAIRS = ("all_to_all", "send_recv")
_SHAPES = {"in_switch": ("in_switch",)}


@dataclass(frozen=True)
class Spoken:
    """One regime, for one collective: seconds before its first step, and what flows cost in it."""

    name: str
    launch_s: float
    costs: Costs
    source: Source
    peer_s: float = 0.0
    """What each further peer that a rank sends to adds to a step."""
    in_switch: bool = False


def fastest_regime(
    fabric: Fabric | None,
    kind: str,
    algorithm: str,
    who: Ids,
    nbytes: float,
    run_in: Callable[[Spoken, float], Collective | None],
) -> Collective | None:
    """A collective as `run_in` runs it, in the regime where it is fastest; None if there is no library for it.

    `run_in` is told of which time on nobody wants to know.
    """
    best: Collective | None = None
    for each in regimes(fabric, kind, algorithm, len(who), nbytes):
        made = run_in(each, (best.seconds if best else math.inf) - each.launch_s)
        if made:
            launched = _launched(made, each)
            best = launched if best is None or launched.seconds < best.seconds else best
    return best


def nearer(flows: Collective, law: Collective) -> Collective:
    """The faster of a collective by flows and by the library's law, which then loads links as the flows do."""
    if law.seconds >= flows.seconds * (1 - _SAME):
        return flows
    part = flows.seconds / law.seconds
    load = tuple(replace(each, mean=each.mean * part, most=each.most * part) for each in flows.load)
    return replace(law, load=load)


def _launched(made: Collective, regime: Spoken) -> Collective:
    seconds = made.seconds + regime.launch_s
    part = made.seconds / seconds
    load = tuple(replace(each, mean=each.mean * part, most=each.most * part) for each in made.load)
    source = next((each for each in reversed(TRUST) if each in (made.source, regime.source)), regime.source)
    return replace(made, seconds=seconds, load=load, source=source, regime=regime.name)


def regimes(fabric: Fabric | None, kind: str, algorithm: str, ranks: int, nbytes: float) -> list[Spoken]:
    """The regimes to run a collective in; none where the fabric has no library for it."""
    if fabric is None or fabric.library is None:
        return []
    shapes = _SHAPES.get(algorithm, ("exchange", "peers") if kind in _PAIRS else ("ring",))
    every = [each for each in fabric.library.regimes if work(each.shape, kind, ranks)]
    able = [each for each in every if each.shape in shapes]
    if "in_switch" in algorithm and every and (not able or algorithm != "in_switch"):
        raise BadInput(
            f"library {fabric.library.name!r} does no {kind} by {algorithm!r}: it has "
            f"{', '.join(each.name for each in every)}; it reduces in switches with a regime of shape in_switch, among "
            "ranks of one domain"
        )
    wires = [each.name for each in fabric.wires]
    guess = {}
    for each in able:
        law = each.law(wires)
        guess[each.name] = (law and law.seconds(kind, ranks, nbytes, fabric.library.sharing)) or 0.0
    first = sorted(able, key=lambda each: guess[each.name])[:_IN_QUESTION]
    return [_spoken(fabric, fabric.library, each, kind, ranks, nbytes) for each in first]


def _spoken(fabric: Fabric, library: Library, regime: LibraryRegime, kind: str, ranks: int, nbytes: float) -> Spoken:
    asked = work(regime.shape, kind, ranks)
    assert asked
    own_s = asked.own * nbytes / regime.own_bytes_per_s.value if regime.own_bytes_per_s else 0.0
    peers_s = 0.0
    if kind in _PAIRS:  # all peers are begun one after the other, and then served at the same time
        peers_s = asked.steps * max(each.step_s.value for each in regime.crossings)
    crowd = (ranks / 2) ** library.sharing
    if regime.shape == "in_switch":
        crowd *= 1 + 1 / ranks

    def costs(size: int, source: int, target: int) -> Semantics:
        base = fabric.semantics(size, source, target)
        wires = fabric.crossed(source, target)
        crossing = regime.on(wires)
        if crossing is None:
            return base
        path = fabric.network.path(source, target)
        path_s = float(fabric.network.latency_s[path].sum())
        step_s = 0.0 if peers_s else max(each.step_s.value for each in regime.crossings if each.wire in wires)
        rate = crossing.bandwidth_bytes_per_s.value / crowd
        known = all(any(each.wire == wire for each in regime.crossings) for wire in wires)
        start_s = max(0.0, step_s - path_s) if known else base.overhead_s + step_s
        said = replace(base, name=regime.name, overhead_s=start_s)
        if known:
            said = replace(said, fragment_s=0.0, fragment_bytes=0, copies=0.0)
        # What links can carry, which is less than their wires could where a switch's port is the narrower.
        widths = fabric.network.capacity_bytes_per_s[path]
        kinds = [fabric.network.links.get(fabric.network.resource_role(each)) for each in path.tolist()]
        own = min(widths[i] for i, kind in enumerate(kinds) if kind and kind.name == crossing.wire)
        if regime.shape != "peers" and own <= widths.min():
            share = min(1.0 if known else base.efficiency, rate / own)
            return replace(said, efficiency=share, rate_cap_bytes_per_s=np.inf if known else base.rate_cap_bytes_per_s)
        return replace(said, rate_cap_bytes_per_s=min(base.rate_cap_bytes_per_s, rate / base.efficiency))

    further = [each.step_s.value for one in library.regimes if one.shape == "peers" for each in one.crossings]
    peer_s = 0.0 if kind in _PAIRS else max(further, default=0.0)
    launch_s = regime.launch_s.value + own_s + peers_s
    return Spoken(regime.name, launch_s, costs, regime.source, peer_s, regime.shape == "in_switch")


@dataclass(frozen=True)
class Domain:
    """How many ranks share the innermost wires, these wires, and those beyond from the first rank to the farthest.

    Where ranks are in several domains, `sizes` is how many of them are in each; `ranks` is the most.
    """

    ranks: int
    inside: tuple[str, ...]
    beyond: tuple[str, ...]
    first: int
    farthest: int
    sizes: tuple[int, ...] = ()


def domain(fabric: Fabric, ranks: Ids | None = None) -> Domain:
    """The domain of the most of some ranks, or of all."""
    who = np.arange(fabric.network.ranks) if ranks is None else ranks
    groups = _groups(fabric, who)
    most = max(groups, key=len)
    others = who[who != most[0]]
    bits, hops = _crossed(fabric, int(most[0]), others)
    sizes = tuple(len(each) for each in groups)
    if len(most) == 1:  # no two of them share a domain: what they share is what joins the nearest
        most = np.concatenate([most, others[bits == bits[0]]])
        groups, sizes = [most], (len(most),) * -(-len(who) // len(most))
    if len(groups) > 1:
        outside = ~np.isin(others, most)
        others, hops = others[outside], hops[outside]
    far = int(others[int(np.argmax(hops))])
    inside = tuple(dict.fromkeys(fabric.crossed(int(most[0]), int(most[1]))))
    beyond = tuple(dict.fromkeys(fabric.crossed(int(most[0]), far)))
    return Domain(len(most), inside, beyond, int(most[0]), far, sizes)


def _groups(fabric: Fabric, who: Ids) -> list[Ids]:
    """The ranks in each domain: those that reach one another as the fabric's first two do."""
    inner, _ = _crossed(fabric, 0, np.array([1]))
    rest, made = who, []
    while len(rest):
        bits, _ = _crossed(fabric, int(rest[0]), rest[1:])
        same = np.concatenate([[True], bits == inner[0]])
        made.append(rest[same])
        rest = rest[~same]
    return made


def _crossed(fabric: Fabric, src: int, dst: Ids) -> tuple[Ids, Ids]:
    """Which roles are crossed from a rank to others, as bits, and how many links."""
    if not len(dst):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    at, path = fabric.network.paths(np.full(len(dst), src), dst)
    word = np.left_shift(1, fabric.network.role[path].astype(np.int64))
    return np.asarray(np.bitwise_or.reduceat(word, at[:-1])), np.diff(at)


def by_library(fabric: Fabric | None, kind: str, who: Ids, nbytes: float) -> Collective:
    """What a fabric's library does, by its law; raises BadInput where it says nothing of it."""
    if fabric is None or fabric.library is None:
        raise BadInput(
            f"{_LACKS[fabric is None]} has no library; write one with `openshelf fabric fit --output`, and include it "
            "in a fabric"
        )
    made = known_to_library(fabric, kind, who, nbytes)
    if made is None:
        found = domain(fabric, who)
        raise BadInput(
            f"library {fabric.library.name!r} says nothing of {kind} among {len(who)} ranks in domains of "
            f"{found.ranks}, over {', '.join(found.beyond)}"
        )
    return made


def known_to_library(fabric: Fabric | None, kind: str, who: Ids, nbytes: float) -> Collective | None:
    """The same; None where the library says nothing of it."""
    if fabric is None or fabric.library is None:
        return None
    library, found, ranks = fabric.library, domain(fabric, who), len(who)
    if found.ranks == ranks:
        inside = library.law(found.inside)
        tried = [
            (seconds, each.name)
            for each in inside.regimes
            if (seconds := each.seconds(kind, ranks, nbytes, inside.sharing)) is not None
        ]
    else:
        tried = [
            (over_s, each.name)
            for each in library.regimes
            if (over_s := _over_domains(fabric, each, found, kind, ranks, nbytes)) is not None
        ]
    if not tried:
        return None
    seconds, name = min(tried)
    source = next(each.source for each in library.regimes if each.name == name)
    how = "by the library's law" + ("" if found.ranks == ranks else ": inside domains and between them, in a pipeline")
    return Collective(kind, "library", ranks, nbytes, seconds, how, 0, (), source, regime=name)


def exchange_of(
    fabric: Fabric | None, phase: str, tokens: int, units: int, topk: int, experts: int, token_bytes: float
) -> float:
    """See `Twin.exchange`."""
    if fabric is None or fabric.library is None:
        raise BadInput(f"{_LACKS[fabric is None]} has no library, which would know {phase!r}")
    if not (tokens > 0 and units > 1 and 0 < topk <= experts and token_bytes >= 0):
        raise BadInput(
            f"{tokens} tokens of {token_bytes} bytes to {topk} of {experts} experts over {units} units; expected at "
            "least 1 token, 2 units, and not more experts for a token than there are"
        )
    return fabric.library.phase(phase).seconds(tokens, units, topk, experts, token_bytes)


def _over_domains(
    fabric: Fabric, regime: LibraryRegime, found: Domain, kind: str, ranks: int, nbytes: float
) -> float | None:
    """A ring among domains has as many rails as the smallest of them has ranks."""
    inside = regime.law(found.inside)
    asked = work(regime.shape, kind, ranks)
    if inside is None or asked is None or regime.shape not in ("ring", "exchange"):
        return None
    domains, rails = len(found.sizes), min(found.sizes)
    step_s, s_per_byte = _between(fabric, regime, found)
    if regime.shape == "exchange":
        near, far = (found.ranks - 1) / ranks * nbytes, (ranks - rails) / ranks * nbytes
        moved_s = max(near * inside.s_per_byte, far * s_per_byte)
        return inside.launch_s + asked.steps * inside.step_s + moved_s + nbytes / ranks * inside.own_s_per_byte
    within, between = work("ring", kind, found.ranks), work("ring", kind, domains)
    assert within
    assert between
    near_s = nbytes * (within.moved * inside.s_per_byte + within.own * inside.own_s_per_byte)
    # Between domains: (steps, times the bytes) round a ring; up and down a tree; up to the switches and down.
    ways = [(between.steps, between.moved)]
    if kind == "all_reduce":
        ways.append((2 * math.ceil(math.log2(domains)), 2.0))
        ways += [(2, 1.0)] if _adds_up(fabric) else []
    far_s = min(steps * step_s + max(near_s, far * nbytes / rails * s_per_byte) for steps, far in ways)
    return inside.launch_s + within.steps * inside.step_s + far_s


def _between(fabric: Fabric, regime: LibraryRegime, found: Domain) -> tuple[float, float]:
    """A step between domains, and seconds a byte: as fitted for these wires, else as their protocols have it."""
    outer = [wire for wire in found.beyond if wire not in found.inside]
    crossing = regime.on(outer)
    if crossing:
        return crossing.step_s.value, 1 / crossing.bandwidth_bytes_per_s.value
    path = fabric.network.path(found.first, found.farthest)
    said = fabric.semantics(1 << 20, found.first, found.farthest)
    width = float(fabric.network.capacity_bytes_per_s[path].min())
    rate = min(width, said.rate_cap_bytes_per_s) * said.efficiency
    return said.overhead_s + float(fabric.network.latency_s[path].sum()), 1 / rate


def reduces_inside(fabric: Fabric) -> bool:
    """Whether the switches inside a domain add up."""
    return bool(fabric.network.reducing[:1] == (True,))


def _adds_up(fabric: Fabric) -> bool:
    """Whether the switches between domains do."""
    outer = fabric.network.reducing[1:]
    return bool(outer) and all(outer)
