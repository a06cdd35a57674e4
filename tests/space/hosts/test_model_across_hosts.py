"""The array API against a dict, by processes on two hosts in turn, some of them killed on the way."""

from __future__ import annotations

import contextlib
import time

from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize

from openshelf import Space
from tests.processes import Peer
from tests.space import model_worker, shelf
from tests.space.hosts.harness.across import Across
from tests.space.test_model import WORKERS, ManyProcesses

GRACE_SECONDS = 6.0  # until a killed process's pins on another host are gone, with much to spare


class ManyHosts(ManyProcesses):
    """The same, but the space is over two hosts; names and arrays live on the first of them."""

    @initialize()
    def begin(self) -> None:
        self.stack = contextlib.ExitStack()
        self.hosts = self.stack.enter_context(contextlib.closing(Across("model")))
        self.stack.enter_context(self.hosts.applied())
        self.path = "model"
        self.space = Space.open("model", contribute="16MiB")
        self.model, self.views, self.keys = {}, [{} for _ in range(WORKERS)], 0
        self.workers = [self.start() for _ in range(WORKERS)]

    def start(self) -> Peer:
        worker = self.hosts.peer()
        worker.call(model_worker.enter, self.path)
        return worker

    def teardown(self) -> None:
        if not hasattr(self, "workers"):
            return
        with self.stack, self.space:
            for worker, views in zip(self.workers, self.views, strict=True):
                assert worker.call(model_worker.held) == views
                worker.call(model_worker.forget)
            for name, content in self.model.items():
                assert self.space[name].numpy().tobytes() == content
            wanted = {"bytes": sum(map(len, self.model.values())), "arrays": len(self.model), **shelf.SOUND}
            deadline = time.monotonic() + GRACE_SECONDS
            while (found := self.space.check()) != wanted and time.monotonic() < deadline:
                time.sleep(0.05)
            assert found == wanted


TestManyHosts = ManyHosts.TestCase
TestManyHosts.settings = settings(
    max_examples=8,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
