"""work.here: real runs on this machine, of a Space, KV pool, tables, tiers and offload, against what is predicted.

GRID has every setting of every kind. here_ledger.txt has those that the laws are fitted to: few, and chosen before any
run. A seed that is given at run time draws RUNS of the others. In every round each fitted and each drawn setting runs
once, so that a busy machine is the same to both, and the shortest time of a setting counts. A law adds up what it costs
in itself and what bytes, rows and calls cost; how far off it is at the fitted settings is interpolated between them.
Offload is predicted by its own planner, from rates and operators that it measures alone.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kit import page_cache
from kit.side_by_side import Row
from openshelf import KVPool, Layout, Space, Table
from openshelf.tables import SGD
from openshelf.twin.ops import borrowed, fit_slowness

Floats = NDArray[np.float64]
LEDGER = Path(__file__).with_name("here_ledger.txt")
SEED = "OPENSHELF_BENCH_SEED"
ROUNDS, LEAST_S = 12, 2e-3
BLOCK, HEAD = 16, 64
ROWS = 50_000
SIZES = tuple(int((64 << 10) * 2 ** (half / 2)) // 4096 * 4096 for half in range(17))
POOLED = {"tokens": (128, 192, 256, 384, 512, 768, 1024), "layers": (2, 3, 4, 6, 8), "heads": (1, 2, 4, 8)}
LOOKED = {"ids": (128, 256, 512, 1024, 2048, 4096, 8192, 16384), "dim": (16, 32, 64, 128, 256)}
GRID: dict[str, dict[str, tuple[int, ...]]] = {
    "space.put": {"bytes": SIZES},
    "space.read": {"bytes": SIZES},
    "kv.put": POOLED,
    "kv.read": POOLED,
    "tables.lookup": LOOKED,
    "tables.update": LOOKED,
    "tiers.prefetch": {"bytes": tuple(mib << 20 for mib in (2, 3, 4, 6, 8, 12, 16, 24, 32))},
    "offload.run": {
        "width": (512, 640, 768, 1024), "layers": (8, 12, 16), "batch": (16, 64, 128), "share": (40, 60, 80)
    },
    "ttft": {"tokens": tuple(range(64, 993, 32))},
}  # fmt: skip
RUNS = {
    "space.put": 3, "space.read": 3, "kv.put": 3, "kv.read": 3, "tables.lookup": 3, "tables.update": 3,
    "tiers.prefetch": 3, "offload.run": 3,
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    kind: str
    sizes: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return " ".join([self.kind, *(f"{name}={value}" for name, value in self.sizes)])

    def __getitem__(self, name: str) -> int:
        return dict(self.sizes)[name]

    @property
    def hash(self) -> str:
        return blake2b(str(self).encode(), digest_size=8).hexdigest()


def grid(kind: str) -> list[Setting]:
    names = list(GRID[kind])
    return [Setting(kind, tuple(zip(names, values, strict=True))) for values in itertools.product(*GRID[kind].values())]


def ledger() -> list[Setting]:
    """The settings that are fitted; each line has the hash of its setting before it."""
    made = []
    for line in LEDGER.read_text().splitlines():
        hash, kind, *sizes = line.split()
        pairs = (each.split("=") for each in sizes)
        made.append(Setting(kind, tuple((name, int(value)) for name, value in pairs)))
        assert made[-1].hash == hash, f"{LEDGER}: {line!r} has another hash"
    return made


def drawn(seed: int) -> list[Setting]:
    """Of every kind some settings that the ledger does not have."""
    return [each for kind, count in RUNS.items() for each in drawn_of(kind, count, seed)]


def drawn_of(kind: str, count: int, seed: int) -> list[Setting]:
    known = {each.hash for each in ledger()}
    free = [each for each in grid(kind) if each.hash not in known]
    random = np.random.default_rng([seed, list(GRID).index(kind)])
    return [free[at] for at in sorted(random.choice(len(free), count, replace=False).tolist())]


def costs(setting: Setting) -> list[float]:
    """What a law multiplies: one call, and what is done once for each byte, row, or block."""
    sizes = dict(setting.sizes)
    if setting.kind.startswith("kv."):
        pieces = sizes["tokens"] / BLOCK * sizes["layers"]
        return [1.0, sizes["tokens"] / BLOCK, pieces, pieces * sizes["heads"]]
    if setting.kind == "ttft":
        return [1.0, sizes["tokens"] / BLOCK]
    if setting.kind.startswith("tables."):
        return [1.0, sizes["ids"], sizes["ids"] * sizes["dim"]]
    return [1.0, sizes["bytes"]]


class Law:
    """Seconds of a kind of run, fitted to some settings."""

    def __init__(self, seconds: Mapping[Setting, float]) -> None:
        known, times = list(seconds), np.array(list(seconds.values()))
        self.slower = fit_slowness(np.array([costs(each) for each in known]) / times[:, None])
        self.known = self._at(known)
        self.off = np.log(times / self._plain(known))

    def _plain(self, settings: list[Setting]) -> Floats:
        return np.array([costs(each) for each in settings]) @ self.slower

    def _at(self, settings: list[Setting]) -> Floats:
        return np.log(np.array([[value for _, value in each.sizes] for each in settings], np.float64)) / 2

    def __call__(self, setting: Setting) -> float:
        near = borrowed(self.known, self.off, self._at([setting]), len(self.known))
        return float(self._plain([setting])[0] * np.exp(near[0]))


class Bench:
    """What runs run on: a space, pools, tables, and a space with flash below it."""

    def __init__(self, stack: ExitStack, home: Path) -> None:
        self.space = Space.create("here", dram="640MiB")
        self.tiered = Space.create("here-tiers", dram="48MiB", flash=f"{home}/shelf:128MiB")
        for name, each in (("here", self.space), ("here-tiers", self.tiered)):
            stack.callback(Space.remove, name)
            stack.callback(each.close)
        self.stack = stack
        self.random = np.random.default_rng(5)
        self.source = self.random.random(max(SIZES) // 8)
        self.target = np.empty_like(self.source)
        self.array = self.space.put("array", self.source)
        self.cold = self.tiered.new("cold", (4 << 20,), "float64")
        self.cold.numpy()[:] = 1.0
        self.pools: dict[tuple[int, int], KVPool] = {}
        self.tables: dict[int, Table] = {}

    def pool(self, layers: int, heads: int) -> KVPool:
        if (layers, heads) not in self.pools:
            layout = Layout(f"l{layers}h{heads}", layers=layers, heads=heads, head_dim=HEAD, dtype="float32")
            pool = KVPool(
                self.space, layout, name=f"kv{layers}-{heads}", block_tokens=BLOCK, capacity=layout.block_bytes(2048)
            )
            self.pools[layers, heads] = self.stack.enter_context(pool)
            for _ in range(3):  # memory that was never used costs the kernel's time
                pool.clear()
                pool.put(self.random.integers(0, 1 << 30, 1024), np.ones(layout.shape(1024), np.float32))
        return self.pools[layers, heads]

    def table(self, dim: int) -> Table:
        if dim not in self.tables:
            self.tables[dim] = self.stack.enter_context(
                Table.create(self.space, f"t{dim}", rows=ROWS, dim=dim, dtype="float32", optimizer=SGD(lr=0.1))
            )
        return self.tables[dim]

    def run(self, setting: Setting) -> float:
        """Seconds of one run, the mean of as many in a row as a clock can measure."""
        work, before = getattr(self, setting.kind.replace(".", "_"))(setting)
        spent, count = 0.0, 0
        while spent < LEAST_S:
            before()
            began = time.perf_counter()
            work()
            spent += time.perf_counter() - began
            count += 1
        return spent / count

    def space_put(self, setting: Setting) -> tuple[Callable[[], object], Callable[[], object]]:
        part = self.source[: setting["bytes"] // 8]
        return lambda: self.space.put("put", part), _nothing

    def space_read(self, setting: Setting) -> tuple[Callable[[], object], Callable[[], object]]:
        count = setting["bytes"] // 8
        return lambda: np.copyto(self.target[:count], self.array.numpy()[:count]), _nothing

    def kv_put(self, setting: Setting) -> tuple[Callable[[], object], Callable[[], object]]:
        pool, tokens = self.pool(setting["layers"], setting["heads"]), setting["tokens"]
        cache = np.ones(pool.layout.shape(tokens), np.float32)
        asked = np.zeros(tokens, np.uint32)

        def put() -> None:
            assert pool.put(asked, cache).stored == tokens // BLOCK

        def fresh() -> None:
            pool.clear()
            asked[:] = self.random.integers(0, 1 << 30, tokens)

        return put, fresh

    def kv_read(self, setting: Setting) -> tuple[Callable[[], object], Callable[[], object]]:
        pool, tokens = self.pool(setting["layers"], setting["heads"]), setting["tokens"]
        cache = np.ones(pool.layout.shape(tokens), np.float32)
        asked = np.arange(tokens, dtype=np.uint32)
        pool.clear()
        pool.put(asked, cache)

        def read() -> None:
            with pool.match(asked) as hit:
                assert hit.length == tokens
                hit.read(cache)

        return read, _nothing

    def tables_lookup(self, setting: Setting) -> tuple[Callable[[], object], Callable[[], object]]:
        table, ids = self.table(setting["dim"]), np.zeros(setting["ids"], np.int64)
        out = np.empty((len(ids), setting["dim"]), np.float32)
        return lambda: table.lookup(ids, out=out), lambda: self._draw(ids)

    def tables_update(self, setting: Setting) -> tuple[Callable[[], object], Callable[[], object]]:
        table, ids = self.table(setting["dim"]), np.zeros(setting["ids"], np.int64)
        gradients = np.ones((len(ids), setting["dim"]), np.float32)
        return lambda: table.update(ids, gradients), lambda: self._draw(ids)

    def tiers_prefetch(self, setting: Setting) -> tuple[Callable[[], object], Callable[[], object]]:
        part = self.cold[: setting["bytes"] // 8]
        return lambda: part.prefetch().wait(), lambda: self.cold.demote("flash").wait()

    def _draw(self, ids: NDArray[np.int64]) -> None:
        ids[:] = self.random.integers(0, ROWS, len(ids))


def _nothing() -> None:
    pass


def offloaded(settings: list[Setting], folder: Path, rounds: int) -> Iterator[tuple[Setting, float, float]]:
    """Seconds that the planner predicts, and that its plans take: the shortest of some rounds of both. One thread
    computes, since bytes are moved on another core."""
    import torch

    from openshelf import offload

    torch.set_num_threads(1)
    rates = offload.calibrate(folder)
    plans = {}
    for each in settings:
        width, count = each["width"], each["layers"]
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(count)))
        budget = width * width * 4 * count * each["share"] // 100 + 4 * width * width
        inputs = torch.randn(each["batch"], width)
        plans[each] = offload.plan(model, inputs, budget, fabric=rates, cache=False, time_limit=0.3)
    said, took = dict.fromkeys(settings, np.inf), dict.fromkeys(settings, np.inf)
    for _ in range(rounds):
        rates = offload.calibrate(folder)
        for each, plan in plans.items():
            program = offload.measured(plan.captured).program
            told = offload.simulate(program, plan.plan.steps, rates, plan.plan.homes).seconds
            said[each] = min(said[each], told)
            took[each] = min(took[each], plan.check(repeats=3, folder=folder).measured_s)
    for each in settings:
        yield each, said[each], took[each]


@cache
def seed_of_run() -> int:
    return int(os.environ.get(SEED) or time.time_ns() % 1_000_000)


@contextmanager
def homes() -> Iterator[Path]:
    """A folder on disk; spaces are made in one of their own in memory meanwhile."""
    before = os.environ.get("OPENSHELF_DIR")
    with (
        tempfile.TemporaryDirectory(dir=page_cache.disk(), prefix="openshelf-bench-") as disk,
        tempfile.TemporaryDirectory(dir="/dev/shm", prefix="openshelf-bench-") as home,
    ):
        os.environ["OPENSHELF_DIR"] = home
        try:
            yield Path(disk)
        finally:
            del os.environ["OPENSHELF_DIR"]
            if before is not None:
                os.environ["OPENSHELF_DIR"] = before


def measured(settings: list[Setting], bench: Bench, rounds: int = ROUNDS) -> dict[Setting, float]:
    """The shortest time of each setting, over rounds in which all run."""
    best: dict[Setting, float] = {}
    for _ in range(rounds):
        for each in settings:
            best[each] = min(best.get(each, np.inf), bench.run(each))
    return best


def rows(data: Path, quick: bool) -> Iterator[Row]:
    del data
    seed = seed_of_run()
    judged, fitted = drawn(seed), [each for each in ledger() if each.kind in RUNS]
    assert not {each.hash for each in judged} & {each.hash for each in fitted}
    said: dict[Setting, float] = {}
    took: dict[Setting, float] = {}
    with homes() as disk:
        plain = [each for each in judged if each.kind != "offload.run"]
        with ExitStack() as stack:
            times = measured([*fitted, *plain], Bench(stack, disk), ROUNDS if quick else 3 * ROUNDS)
        for kind in sorted({each.kind for each in plain}):
            law = Law({each: times[each] for each in fitted if each.kind == kind})
            for each in plain:
                if each.kind == kind:
                    said[each], took[each] = law(each), times[each]
        moved = [each for each in judged if each.kind == "offload.run"]
        for each, told, spent in offloaded(moved, disk, 2 if quick else 6):
            said[each], took[each] = told, spent
    errors = {each: 100 * abs(said[each] / took[each] - 1) for each in judged}
    values = list(errors.values())
    p90 = float(np.quantile(values, 0.9))
    yield Row(
        "work.here", f"median error of {len(values)} real runs on this machine, drawn by seed {seed}",
        float(np.median(values)), "%", "measured", None, None, p99=p90, bar="<= 10; p90 <= 30",
        note=f"p99 column: p90; {len(fitted)} other settings fitted (bench/work/here_ledger.txt); {SEED} draws again",
    )  # fmt: skip
    for each in judged:
        yield Row(
            "work.here.row", str(each), errors[each], "%", f"measured {took[each] * 1e6:,.0f} us",
            said[each] / took[each], None, note="not fitted",
        )  # fmt: skip
