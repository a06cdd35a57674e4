"""The array API against a dict, by several processes in turn, some of them killed on the way."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from openshelf import Space
from tests.processes import Peer
from tests.space import model_worker, shelf

WORKERS = 3
NAMES = st.sampled_from(["a", "b", "c/d", "c/e", "long" * 60])
SIZES = st.sampled_from([0, 1, 100, 5000, 9000, 300_000])
WHO = st.integers(0, WORKERS - 1)


class ManyProcesses(RuleBasedStateMachine):
    """What every process sees of the names is what a dict would hold; what one holds does not change."""

    idle: list[Peer] = []  # noqa: RUF012  processes of earlier runs, to be used again

    @initialize()
    def begin(self) -> None:
        self.home = tempfile.mkdtemp(prefix="openshelf-test-", dir="/dev/shm")
        os.environ["OPENSHELF_DIR"] = self.home
        self.path = str(Path(self.home) / "model")
        self.space = Space.create("model", "32MiB", reserve="32GiB")
        self.model: dict[str, bytes] = {}
        self.views: list[dict[int, bytes]] = [{} for _ in range(WORKERS)]
        self.keys = 0
        self.workers = [self.start() for _ in range(WORKERS)]

    def start(self) -> Peer:
        worker = self.idle.pop() if self.idle else Peer("forkserver")
        worker.call(model_worker.enter, self.path)
        return worker

    @rule(who=WHO, name=NAMES, seed=st.integers(0, 9), nbytes=SIZES, replace=st.booleans())
    def put(self, who: int, name: str, seed: int, nbytes: int, replace: bool) -> None:
        done = self.workers[who].call(model_worker.put, name, seed, nbytes, replace)
        assert done == (replace or name not in self.model)
        if done:
            self.model[name] = shelf.pattern(seed, nbytes).tobytes()

    @rule(who=WHO, name=NAMES, seed=st.integers(0, 9), nbytes=SIZES, fail=st.booleans())
    def new(self, who: int, name: str, seed: int, nbytes: int, fail: bool) -> None:
        done = self.workers[who].call(model_worker.new, name, seed, nbytes, fail)
        assert done == (not fail and name not in self.model)
        if done:
            self.model[name] = shelf.pattern(seed, nbytes).tobytes()

    @rule(who=WHO, name=NAMES)
    def delete(self, who: int, name: str) -> None:
        assert self.workers[who].call(model_worker.delete, name) == (name in self.model)
        self.model.pop(name, None)

    @rule(who=WHO, name=NAMES, to=NAMES)
    def rename(self, who: int, name: str, to: str) -> None:
        expected = "UnknownName" if name not in self.model else "NameTaken" if to in self.model and to != name else ""
        assert self.workers[who].call(model_worker.rename, name, to) == expected
        if not expected:
            self.model[to] = self.model.pop(name)

    @rule(who=WHO, other=WHO, name=NAMES)
    def get(self, who: int, other: int, name: str) -> None:
        found = self.workers[who].call(model_worker.get, name)
        if name not in self.model:
            assert found is None
            return
        address, content = found
        assert content == self.model[name]
        assert self.workers[other].call(model_worker.at, address, len(content)) == content

    @rule(who=WHO)
    def list(self, who: int) -> None:
        assert self.workers[who].call(model_worker.entries) == {
            name: len(content) for name, content in self.model.items()
        }

    @rule(who=WHO, name=NAMES)
    def hold(self, who: int, name: str) -> None:
        self.keys += 1
        assert self.workers[who].call(model_worker.hold, name, self.keys) == (name in self.model)
        if name in self.model:
            self.views[who][self.keys] = self.model[name]

    @rule(who=WHO, seed=st.integers(0, 9), nbytes=SIZES)
    def hold_anonymous(self, who: int, seed: int, nbytes: int) -> None:
        self.keys += 1
        self.workers[who].call(model_worker.hold_anonymous, seed, nbytes, self.keys)
        self.views[who][self.keys] = shelf.pattern(seed, nbytes).tobytes()

    @precondition(lambda self: any(self.views))
    @rule(data=st.data())
    def drop(self, data: Any) -> None:
        who = data.draw(st.sampled_from([who for who in range(WORKERS) if self.views[who]]))
        key = data.draw(st.sampled_from(sorted(self.views[who])))
        self.workers[who].call(model_worker.drop, key)
        del self.views[who][key]

    @rule(who=WHO)
    def look_at_what_is_held(self, who: int) -> None:
        assert self.workers[who].call(model_worker.held) == self.views[who]

    @rule(who=WHO)
    def kill_and_restart(self, who: int) -> None:
        self.workers[who].kill()
        self.views[who] = {}
        self.workers[who] = self.start()

    @rule(who=WHO)
    def close_and_reopen(self, who: int) -> None:
        """The views outlive it."""
        self.workers[who].call(model_worker.reopen, self.path)

    @rule()
    def close_all_and_reopen(self) -> None:
        for who, worker in enumerate(self.workers):
            worker.call(model_worker.forget)
            self.views[who] = {}
        self.space.close()
        self.space = Space.open("model")
        for worker in self.workers:
            worker.call(model_worker.enter, self.path)

    @invariant()
    def names_are_counted(self) -> None:
        if hasattr(self, "workers"):
            assert len(self.space) == len(self.model)

    def teardown(self) -> None:
        if not hasattr(self, "workers"):
            return
        try:
            for worker, views in zip(self.workers, self.views, strict=True):
                assert worker.call(model_worker.held) == views
                worker.call(model_worker.forget)
            for name, content in self.model.items():
                assert self.space[name].numpy().tobytes() == content
            found = self.space.check()
            assert shelf.problems(self.space) == shelf.SOUND
            assert found["bytes"] == sum(map(len, self.model.values()))
            assert found["arrays"] == len(self.model)
            self.idle.extend(self.workers)
        finally:
            self.space.close()
            shutil.rmtree(self.home)


TestManyProcesses = ManyProcesses.TestCase
TestManyProcesses.settings = settings(
    max_examples=50,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
