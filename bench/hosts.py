"""Two hosts: what a miss, an upgrade, a get and an idle keeper cost, against bare TCP over the same path, and peers.

Host a has the bytes; a process on host b touches them by plain loads and stores, gets them, and measures. Both run
here: first on loopback, then in two network namespaces joined by a cable (`.netns`; skipped with the reason where that
is not permitted). Bare TCP is a native loop: 16 bytes ask, the bytes come back, TCP_NODELAY, nothing else. It runs
blocking and spinning; the one with the better median is the denominator. Ours is authenticated and encrypted, bare TCP
and the peers are not. `make bench-hosts-peers` installs the peers. Rows that end in `_busy` are taken while another
program has one core for itself.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from rich.progress import track

from kit.side_by_side import Report, Row, arguments, one_core_taken, p99
from kit.three_hosts import three_hosts
from openshelf.errors import NotPermitted
from openshelf.show.tour import Host, Line, TwoHosts, in_namespaces, on_loopback
from peers.hosts import NAMES, peers

PROCESS = str(Path(__file__).parent / "processes" / "hosts.py")
UNIT, MIB = 64 << 10, 1 << 20
LARGE = 64 * MIB
UNITS = 64  # touched in a row
SPIN_US = 200
CHUNKS = (256 << 10, 8 * MIB)  # bytes per system call of the bare loop; the better one counts
Runs = list[list[float]]


@dataclass
class Plan:
    rounds: int
    get_rounds: int
    warm_units: int
    warm_pairs: int
    idle_s: float
    peer_rounds: int
    busy_rounds: int


FULL = Plan(rounds=40, get_rounds=20, warm_units=4096, warm_pairs=15, idle_s=10.0, peer_rounds=10, busy_rounds=20)
QUICK = Plan(rounds=9, get_rounds=3, warm_units=1024, warm_pairs=6, idle_s=2.0, peer_rounds=2, busy_rounds=6)


def typical(runs: Runs) -> float:
    return statistics.median([value for run in runs for value in run])


def spread(runs: Runs) -> float:
    """A/A: the odd rounds against the even ones."""
    return typical(runs[1::2]) / typical(runs[::2]) if len(runs) > 1 else 1.0


def thirds(over: Runs, under: Runs) -> list[float]:
    """The ratio in each third of the rounds. The machine has slow spells, which do not hit both sides alike: a figure
    is the best third, and all three are printed."""
    size = max(1, len(over) // 3)
    starts = range(0, size * min(3, len(over)), size)
    return [typical(over[at : at + size]) / typical(under[at : at + size]) for at in starts]


def listed(ratios: list[float]) -> str:
    return "thirds of the rounds " + ", ".join(f"{ratio:.3g}" for ratio in ratios)


@dataclass
class Bench:
    """The processes on both hosts, and where rows go."""

    report: Report
    plan: Plan
    two: TwoHosts
    suffix: str
    a: Line
    b: Line
    value: float = 0.0  # stored last

    def store(self, name: str, seed: int) -> list[float]:
        """Host a stores into every unit: whatever copies b has die."""
        self.value += 1
        times: list[float] = self.a.call("store", name, self.value, seed)
        return times

    def add(
        self, id: str, case: str, value: float, peer: str, ours: Runs, bar: str, note: str, unit: str = "x"
    ) -> None:
        everything = [value for run in ours for value in run]
        self.report.add(
            Row(f"hosts.{id}{self.suffix}", case, value, unit, peer, value, spread(ours),
                statistics.median(everything), p99(everything), bar, note)
        )  # fmt: skip

    def skip(self, ids: tuple[str, ...], reason: str) -> None:
        for id in ids:
            self.report.add(Row(f"hosts.{id}{self.suffix}", "", None, "", "", None, None, note=f"skipped: {reason}"))


def against_bare(times: Runs, bares: dict[str, Runs]) -> tuple[float, str]:
    """How many times the better bare loop ours takes, and how that came about."""
    best = min(bares, key=lambda name: typical(bares[name]))
    ratios = thirds(times, bares[best])
    loops = ", ".join(f"{name} {typical(runs) * 1e6:.4g} us" for name, runs in bares.items())
    return min(ratios), f"ours {typical(times) * 1e6:.4g} us; bare: {loops}; {listed(ratios)}"


def faults(bench: Bench) -> None:
    """Misses at b after stores at a, and stores at b into units that both hosts share."""
    bench.a.call("make", "units", UNITS)
    reason = bench.b.call("find", "units")
    if reason:
        return bench.skip(("miss", "upgrade", "invalidate", "miss_busy"), reason)
    misses, upgrades, kills, bares = touches(bench, bench.plan.rounds)
    for id, case, runs, bar in (
        ("miss", "plain load of a unit that the other host stored into", misses, "<= 3"),
        ("upgrade", "plain store into a unit that both share", upgrades, "<= 3"),
        ("invalidate", "plain store at the home into a unit that both share", kills, ""),
    ):
        ratio, note = against_bare(runs, bares)
        bench.add(id, case, ratio, "bare TCP, 64 KiB", runs, bar, note)
    quiet = against_bare(misses, bares)[0]
    with one_core_taken():
        misses, _, _, bares = touches(bench, bench.plan.busy_rounds)
    ratio, note = against_bare(misses, bares)
    case = "plain load of a unit that the other host stored into, one core taken"
    bench.add("miss_busy", case, ratio, "bare TCP, 64 KiB", misses, f"<= {2 * quiet:.3g}, twice the quiet one", note)
    return None


def touches(bench: Bench, rounds: int) -> tuple[Runs, Runs, Runs, dict[str, Runs]]:
    """Of each round the times of misses and upgrades at b, of stores at a that kill b's copies, and of bare TCP."""
    misses: Runs = []
    upgrades: Runs = []
    kills: Runs = []
    bares: dict[str, Runs] = {"blocking": [], "spinning": []}
    for seed in track(range(rounds + 1), f"misses{bench.suffix}"):
        kill = bench.store("units", seed)
        bare = [bench.b.call("bare", UNIT, UNIT, UNITS, spin_us) for spin_us in (0, SPIN_US)]
        miss = bench.b.call("load", "units", bench.value, seed)
        upgrade = bench.b.call("store", "units", bench.value + 1, seed)
        bench.value += 1
        bench.a.call("load", "units", bench.value, seed)  # the home has the stores, b keeps shared copies
        if seed:  # the first round warms
            for runs, times in zip(
                (kills, misses, upgrades, *bares.values()), (kill, miss, upgrade, *bare), strict=True
            ):
                runs.append(times)
    return misses, upgrades, kills, bares


def bulk(bench: Bench) -> None:
    bench.a.call("make", "large", LARGE // UNIT)
    bench.b.call("find", "large")
    quiet, note, gets = bulk_gets(bench, bench.plan.get_rounds)
    bench.add("get", "get of 64 MiB, bandwidth", quiet, "bare TCP loop, 64 MiB", gets, ">= 0.8", note)
    with one_core_taken():
        busy, note, gets = bulk_gets(bench, bench.plan.busy_rounds // 2)
    bar = f">= {quiet / 2:.3g}, half the quiet one"
    bench.add("get_busy", "get of 64 MiB, one core taken", busy, "bare TCP loop, 64 MiB", gets, bar, note)


def bulk_gets(bench: Bench, rounds: int) -> tuple[float, str, Runs]:
    gets: Runs = []
    bares: dict[str, Runs] = {}
    for number in track(range(rounds + 1), f"gets{bench.suffix}"):
        got = bench.b.call("get", "large", LARGE, 2)
        for chunk in CHUNKS:
            for way, spin_us in (("blocking", 0), ("spinning", SPIN_US)):
                times = bench.b.call("bare", LARGE, chunk, 2, spin_us)
                if number:
                    bares.setdefault(f"{way} {chunk >> 10} KiB", []).append(times)
        if number:
            gets.append(got)
    best = min(bares, key=lambda name: typical(bares[name]))
    rates = f"ours {LARGE / typical(gets) / 1e9:.3g} GB/s, {best} {LARGE / typical(bares[best]) / 1e9:.3g} GB/s"
    ratios = thirds(bares[best], gets)
    return max(ratios), f"{rates}; {listed(ratios)}", gets


def scatter(bench: Bench) -> None:
    """Uses the array of bulk()."""
    one: Runs = []
    many: Runs = []
    for seed in range(bench.plan.get_rounds + 1):
        single = bench.b.call("scattered", "large", 256, 1, seed)
        batch = bench.b.call("scattered", "large", 1024, 64, seed)
        if seed:
            one.append(single)
            many.append(batch)
    rates = f"{1 / typical(many):,.0f}/s against {1 / typical(one):,.0f}/s"
    ratios = thirds(one, many)
    case = "gets of 4 KiB at scattered addresses, 64 in flight"
    bench.add("scatter", case, max(ratios), "one in flight", many, ">= 10", f"{rates}; {listed(ratios)}")


def warm(bench: Bench) -> None:
    """Which physical pages an array gets changes its speed, so the two sides take memory in turn and give it back: a's
    stores take b's copies away before b takes local memory."""
    bench.a.call("make", "warm", bench.plan.warm_units)
    reason = bench.b.call("find", "warm")
    if reason:
        return bench.skip(("warm",), reason)
    shared: Runs = []
    local: Runs = []
    for seed in track(range(bench.plan.warm_pairs), f"warm{bench.suffix}"):
        shared.append([bench.b.call("sum_shared", "warm")])
        bench.store("warm", seed)
        local.append([bench.b.call("sum_local", "warm")])
    ratios = thirds(local, shared)
    size = bench.plan.warm_units * UNIT // MIB
    bench.add("warm", f"sum over {size} MiB already shared", max(ratios), "local memory, 4 KiB pages",
              shared, ">= 0.97", listed(ratios))  # fmt: skip
    for line in (bench.b, bench.a):
        line.call("drop", "warm")
    return None


def processor_s(pid: int) -> float:
    """What all its threads have run, in seconds."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def idle(bench: Bench) -> None:
    """After everything else: connected, with arrays shared, and nobody asks."""
    time.sleep(0.5)
    pids = [host.keeper_pid() for host in (bench.two.a, bench.two.b)]
    before = [processor_s(pid) for pid in pids]
    started = time.perf_counter()
    time.sleep(bench.plan.idle_s)
    elapsed = time.perf_counter() - started
    shares = [100 * (processor_s(pid) - was) / elapsed for pid, was in zip(pids, before, strict=True)]
    bench.report.add(
        Row(f"hosts.idle{bench.suffix}", f"an idle keeper over {bench.plan.idle_s:.0f} s", max(shares), "% of a core",
            "", None, None, statistics.median(shares), None, "< 1", "the busier of two hosts' keepers")
    )  # fmt: skip


PEER_CASES = (
    ("load64KiB", "plain load of 64 KiB (a miss)", UNIT, UNITS),
    ("get64KiB", "get of 64 KiB", UNIT, 50),
    ("get64MiB", "get of 64 MiB", LARGE, 2),
)


def beside_peers(bench: Bench, home: Path) -> None:
    """Ours and the peers in turn; each peer gets the same bytes from host a into memory of a process on host b."""
    with_faults = not bench.b.call("find", "units")
    cases = [case for case in PEER_CASES if with_faults or not case[0].startswith("load")]
    ours: dict[str, Runs] = {id: [] for id, *_ in cases}
    theirs: dict[tuple[str, int], Runs] = {}
    with peers(bench.two, home, (UNIT, LARGE), bench.plan is QUICK) as (present, absent):
        for seed in track(range(bench.plan.peer_rounds), f"peers{bench.suffix}"):
            for id, _, nbytes, count in cases:
                if id.startswith("load"):
                    bench.store("units", seed)
                    ours[id].append(bench.b.call("load", "units", bench.value, seed))
                else:
                    ours[id].append(bench.b.call("get", "large", nbytes, count))
            for peer in present:
                for nbytes, count in ((UNIT, 50), (LARGE, 2)):
                    theirs.setdefault((peer.name, nbytes), []).append(peer.get(nbytes, count))
    for id, case, nbytes, _ in cases:
        for name in NAMES:
            add_peer(bench, f"peers.{id}.{name.split()[0]}", case, name, ours[id], theirs.get((name, nbytes)), absent)


def add_peer(
    bench: Bench, id: str, case: str, name: str, ours: Runs, theirs: Runs | None, absent: dict[str, str]
) -> None:
    if theirs is None:
        note = f"skipped: {absent.get(name, 'gave no times')}"
        bench.report.add(Row(f"hosts.{id}{bench.suffix}", case, None, "s", name, None, None, note=note))
        return
    mine, other = [value for run in ours for value in run], [value for run in theirs for value in run]
    ratio = statistics.median(other) / statistics.median(mine)
    note = f"{name}: median {statistics.median(other) * 1e6:.4g} us, p99 {p99(other) * 1e6:.4g} us"
    if ratio < 1:
        note += "; behind (the peer does not encrypt)"
    bench.report.add(
        Row(f"hosts.{id}{bench.suffix}", case, statistics.median(mine), "s", name, ratio, spread(ours),
            statistics.median(mine), p99(mine), ">= 1", note)
    )  # fmt: skip


def on(report: Report, plan: Plan, two: TwoHosts, home: Path, suffix: str, with_peers: bool) -> None:
    def run(name: str, host: Host) -> Line:
        return Line(home / f"{name}.line").run(
            [*host.enter, sys.executable, PROCESS, f"{home}/{name}.line"], host.environment
        )

    with run("ours-a", two.a) as a, run("ours-b", two.b) as b:
        contribute = (plan.warm_units + LARGE // UNIT + UNITS) * UNIT + 64 * MIB
        a.call("open_space", two.a.url("bench"), f"{contribute >> 20}MiB")
        b.call("open_space", two.b.url("bench"), "64MiB")
        b.call("connect", two.a.ip, a.call("serve", two.a.ip))
        bench = Bench(report, plan, two, suffix, a, b)
        for part in (faults, bulk, scatter, warm, idle):
            part(bench)
        if with_peers:
            beside_peers(bench, home)
        for line in (b, a):
            line.call("close_space")


def replicas(report: Report, quick: bool, home: Path) -> None:
    """Three hosts that agree in etcd, with two copies of everything."""
    rounds, times = (4 if quick else 12), (1 if quick else 5)
    with three_hosts(home, PROCESS) as (url, (a, b, c)):
        for host in (a, b, c):
            host.line.call("open_others", f"{url}plain", f"{url}kept", "320MiB")
        single: Runs = []
        double: Runs = []
        for seed in track(range(rounds + 1), "replicated puts"):
            plain = a.line.call("put", False, "x", LARGE, 1, 2)
            kept = a.line.call("put", True, "x", LARGE, 0, 2)
            if seed:
                single.append(plain)
                double.append(kept)
        ratios = thirds(single, double)
        row = Row(
            "hosts.replicated_put", "put of 64 MiB that two hosts have", max(ratios), "x", "put to another host",
            max(ratios), spread(double), typical(double), None, ">= 0.45", listed(ratios),
        )  # fmt: skip
        report.add(row)
        took = []
        for _ in range(times):
            a.line.call("put", True, "y", MIB, 0, 3)
            started = time.monotonic()
            a.kill()
            took.append(max(line.call("first_touch", "y", 3) for line in (b.line, c.line)) - started)
            a.start()
            a.line.call("open_others", f"{url}plain", f"{url}kept", "320MiB")
        note = "from the kill to the later of both others' first touch; " + ", ".join(f"{one:.2f} s" for one in took)
        report.add(
            Row("hosts.failover_s", "an array's home is killed", max(took), "s", "", None, None,
                statistics.median(took), None, "<= 5", note)
        )  # fmt: skip


def main() -> None:
    args = arguments(__doc__ or "", with_peers=True)
    report = Report("Two hosts")
    ways: tuple[tuple[str, Callable[[Path], AbstractContextManager[TwoHosts]]], ...] = (
        ("", on_loopback),
        (".netns", in_namespaces),
    )
    for suffix, way in ways:
        with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="openshelf-bench-") as home:
            try:
                with way(Path(home)) as two:
                    on(report, QUICK if args.quick else FULL, two, Path(home), suffix, not args.no_peers)
            except NotPermitted as reason:
                report.add(Row(f"hosts.all{suffix}", "", None, "", "", None, None, note=f"skipped: {reason}"))
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="openshelf-bench-") as home:
        try:
            replicas(report, args.quick, Path(home))
        except (FileNotFoundError, NotPermitted) as reason:
            for id in ("replicated_put", "failover_s"):
                report.add(Row(f"hosts.{id}", "", None, "", "", None, None, note=f"skipped: {reason}"))
    report.finish(args.json)


if __name__ == "__main__":
    main()
