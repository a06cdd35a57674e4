"""What was fitted, as a part of a fabric's file: a library, and a wire where the fabric has none of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from openshelf.errors import BadInput
from openshelf.fabric import yaml_reader
from openshelf.fabric.calibration.fitting import Calibration
from openshelf.fabric.calibration.tokens import TokenCalibration
from openshelf.fabric.fields import Checked
from openshelf.fabric.laws.fit import Constant
from openshelf.fabric.library import Crossing, Library, LibraryRegime, TokenPhase
from openshelf.fabric.model import Figure, Source
from openshelf.fabric.wiring.protocols import Framing, MessageProtocol, Protocols
from openshelf.fabric.wiring.wires import Wire

_NONE_S = 1e-12  # a figure is above 0


@dataclass(frozen=True)
class Fitted(Checked):
    """Parts of a fabric's file, for others to include."""

    name: str
    library: Library
    protocols: Protocols | None = None
    wires: tuple[Wire, ...] = ()

    def yaml(self) -> str:
        return yaml_reader.dump(self)


def fitted(
    calibrations: Sequence[Calibration],
    phases: Sequence[TokenCalibration] = (),
    wires: Mapping[str, str] | None = None,
) -> Fitted:
    """The library of one machine's calibrations, one `within` nodes and one `between` them at the most.

    `wires` names the fabric's wires that are meant by `within` and `between`. Where it does not, a wire and what a
    message over it costs are written too.
    """
    places = [each.where for each in calibrations]
    if len(set(places)) != len(places):
        names = ", ".join(each.name for each in calibrations)
        raise BadInput(f"a file has one library; rows of {names} came: choose by --machine and --library")
    named = dict(wires or {})
    own = [each for each in calibrations if each.where not in named]
    for each in own:
        named[each.where] = f"{each.machine}-{each.where}".replace(" ", "-").replace(",", "")
    regimes: dict[str, LibraryRegime] = {}
    for each in calibrations:
        for regime in _regimes(each, named[each.where]):
            before = regimes.get(regime.name)
            if before:
                regime = LibraryRegime(
                    before.name, before.shape, before.launch_s, (*before.crossings, *regime.crossings),
                    before.own_bytes_per_s,
                )  # fmt: skip
            regimes[regime.name] = regime
    first = calibrations[0] if calibrations else phases[0]
    about = [_about(each) for each in calibrations]
    about += [f"{each.name}: {each.rows} rows, sha256 {each.rows_sha256[:16]}" for each in phases]
    library = Library(
        f"{first.machine} {getattr(first, 'library', '')}".strip(),
        tuple(regimes.values()),
        tuple(_phase(each) for each in phases),
        max((each.law.sharing for each in calibrations), default=0.0),
        "; ".join(about),
    )
    messages = tuple(_message(each, named[each.where]) for each in own)
    return Fitted(
        "fitted",
        library,
        Protocols(message=tuple(protocol for protocol, _ in messages)) if messages else None,
        tuple(wire for _, wire in messages),
    )


def _about(each: Calibration) -> str:
    return f"{each.name}: {each.rows} rows of {', '.join(map(str, each.ranks))} ranks, sha256 {each.rows_sha256[:16]}"


def _regimes(each: Calibration, wire: str) -> list[LibraryRegime]:
    known = {(constant.regime, constant.part): constant for constant in each.constants}
    made = []
    for regime in each.law.regimes:
        if regime.name in each.law.unused:
            continue

        def figure(part: str, value: float, name: str = regime.name) -> Figure:
            return _figure(known.get((name, part)), value)

        crossing = Crossing(
            wire,
            figure("step_s", max(regime.step_s, _NONE_S)),
            figure("s_per_byte", 1 / max(regime.s_per_byte, 1e-18)),
        )
        own = figure("own_s_per_byte", 1 / regime.own_s_per_byte) if regime.own_s_per_byte > 1e-18 else None
        launch = figure("launch_s", max(regime.launch_s, _NONE_S))
        made.append(LibraryRegime(regime.name, regime.shape, launch, (crossing,), own))
    return made


def _figure(constant: Constant | None, value: float) -> Figure:
    if constant is None:
        return Figure(value, "measured", "none in this regime")
    if constant.determined:
        return Figure(float(f"{value:.4g}"), "measured", f"fitted, {constant.rows} rows")
    source: Source = "assumed"
    return Figure(float(f"{value:.4g}"), source, "the rows do not determine it")


def _phase(each: TokenCalibration) -> TokenPhase:
    def figure(part: str, value: float) -> Figure:
        if part in each.not_determined:
            return Figure(float(f"{value:.4g}"), "assumed", "the rows do not determine it")
        return Figure(float(f"{value:.4g}"), "measured", f"fitted, {each.rows} rows")

    phase = each.phase
    sent_to: Literal["units", "experts"] = "experts" if each.sent_to == "experts" else "units"
    sides: Literal["one", "two"] = "one" if each.one_sided else "two"
    return TokenPhase(
        each.name,
        figure("launch_s", phase.launch_s),
        figure("hop_s", phase.hop_s),
        figure("token_s", phase.token_s),
        figure("bandwidth", 1 / phase.s_per_byte),
        sent_to,
        sides,
    )


def _message(each: Calibration, name: str) -> tuple[MessageProtocol, Wire]:
    """A send as the law has it at a large size: its start in two halves, and its rate."""
    able = [regime for regime in each.law.regimes if regime.shape == "exchange" and regime.name not in each.law.unused]
    able += [regime for regime in each.law.regimes if regime.shape == "ring" and regime.name not in each.law.unused]
    best = min(able, key=lambda regime: (regime.shape != "exchange", regime.s_per_byte))
    note = f"{each.name}: {best.name}, rows of {each.smallest} to {each.largest} bytes"
    half = Figure(max(best.launch_s + best.step_s, _NONE_S) / 2, "measured", f"half of a send's start; {note}")
    protocol = MessageProtocol(
        f"nccl-{name}", Framing(1, 0), half, half, known_from_bytes=each.smallest, known_to_bytes=each.largest
    )
    rate = Figure(1 / best.s_per_byte, "measured", note)
    wire = Wire(name, protocol.name, rate, latency_s=Figure(_NONE_S, "measured", "in the protocol's start"))
    return protocol, wire
