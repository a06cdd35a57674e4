"""Five families of made-up traffic for bench/kv_trace.py, each from a seed: what a pool was not tuned on.

A seed draws a family's parameters (how many users, how long they think, how prompts grow, how skewed the choice is) and
then the requests. An id stands for a block and all before it, as in Mooncake's traces: the same text behind
another beginning has another id.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from itertools import accumulate, count, islice

Prompt = list[int]
Session = Iterator[tuple[float, Prompt]]  # how long after the request before, and the request
LONGEST = 600  # blocks of a prompt


class Writer:
    """Writes blocks: fresh ones, or known text behind some beginning."""

    def __init__(self) -> None:
        self.ids = count(1)
        self.asked: set[int] = set()  # blocks of the requests so far: generate() notes them
        self.behind: dict[tuple[int, int], int] = {}

    def fresh(self, blocks: int) -> Prompt:
        return list(islice(self.ids, blocks))

    def text(self, prompt: Prompt, words: Prompt) -> Prompt:
        """`prompt` and then `words`, which may be behind other prompts too."""
        prompt = list(prompt)
        for word in words:
            where = (prompt[-1] if prompt else 0, word)
            if where not in self.behind:
                self.behind[where] = self.fresh(1)[0]
            prompt.append(self.behind[where])
        return prompt


class Choice:
    """One of `among` with Zipf's weights."""

    def __init__(self, chance: random.Random, among: int, skew: float) -> None:
        self.chance, self.order = chance, list(range(among))
        self.sums = list(accumulate((rank + 1) ** -skew for rank in range(among)))

    def __call__(self) -> int:
        return self.chance.choices(self.order, cum_weights=self.sums)[0]

    def shuffle(self, share: float) -> None:
        """Another order for a share of them: what was popular is not any more."""
        some = [at for at in range(len(self.order)) if self.chance.random() < share]
        moved = [self.order[at] for at in some]
        self.chance.shuffle(moved)
        for at, value in zip(some, moved, strict=True):
            self.order[at] = value


def several(chance: random.Random, mean: float) -> int:
    """1 or more, most of them few."""
    return 1 + int(chance.expovariate(1 / max(mean - 1, 0.01)))


def play(start: Callable[[], Session], arrivals: Callable[[], float], writer: Writer, blocks: int) -> Iterator[Prompt]:
    """Sessions that begin one after another and run side by side, until so many blocks were asked for."""
    waiting: list[tuple[float, int, Prompt, Session]] = []
    names, arrival = count(), 0.0
    while len(writer.asked) < blocks:
        while not waiting or arrival <= waiting[0][0]:
            session = start()
            gap, prompt = next(session)
            heapq.heappush(waiting, (arrival + gap, next(names), prompt, session))
            arrival += arrivals()
        now, name, prompt, session = heapq.heappop(waiting)
        yield prompt[:LONGEST]
        following = next(session, None)
        if following is not None:
            heapq.heappush(waiting, (now + following[0], name, following[1], session))


def chat(chance: random.Random, writer: Writer, blocks: int) -> Iterator[Prompt]:
    """Conversations of several turns with pauses between them, behind one of some system prompts."""
    systems = [writer.fresh(chance.randint(1, 8)) for _ in range(chance.randint(1, 6))]
    which = Choice(chance, len(systems), chance.uniform(0, 2))
    first, added, stay = chance.uniform(2, 15), chance.uniform(1.2, 5), chance.uniform(0.3, 0.9)
    pause, spread = chance.uniform(5, 300), chance.uniform(0.3, 1.5)
    partial = chance.random() < 0.7  # prompts end with a block that is not full, and so is nobody else's

    def talk() -> Session:
        prompt, gap = systems[which()] + writer.fresh(several(chance, first)), 0.0
        own_stay = min(0.97, max(0.05, chance.gauss(stay, 0.15)))
        while True:
            yield gap, prompt + writer.fresh(1) if partial else prompt
            if chance.random() > own_stay:
                return
            gap = pause * chance.lognormvariate(0, spread)
            prompt = prompt + writer.fresh(several(chance, added))

    yield from play(talk, lambda: chance.expovariate(1), writer, blocks)


def agents(chance: random.Random, writer: Writer, blocks: int) -> Iterator[Prompt]:
    """Agents that call tools in a loop, each step behind all before it; they retry, fork, compact; some tasks recur."""
    kinds = [writer.fresh(chance.randint(3, 20)) for _ in range(chance.randint(2, 8))]
    which = Choice(chance, len(kinds), chance.uniform(0, 1.5))
    steps, added, workers = chance.uniform(4, 40), chance.uniform(1.1, 4), chance.randint(5, 150)
    retry, fork, compact = chance.uniform(0, 0.1), chance.uniform(0, 0.1), chance.uniform(0, 0.1)
    rounds = [kinds[which()] + writer.fresh(several(chance, 8)) for _ in range(chance.randint(10, 300))]
    turn, recurring = count(), chance.uniform(0, 0.5)

    def task() -> Session:
        gap, again = 0.0, chance.random() < recurring
        begin = rounds[next(turn) % len(rounds)] if again else kinds[which()] + writer.fresh(several(chance, 3))
        prompt = begin
        for _ in range(several(chance, 3 if again else steps)):
            yield gap, prompt
            gap = chance.lognormvariate(0, 1)
            if chance.random() < retry:
                continue
            if chance.random() < fork:
                yield gap, prompt + writer.fresh(several(chance, added))
            short = chance.random() < compact and len(prompt) > 2 * len(begin)
            prompt = (begin if short else prompt) + writer.fresh(several(chance, added))

    mean = workers / (2 * steps)
    yield from play(task, lambda: chance.expovariate(mean), writer, blocks)


def retrieval(chance: random.Random, writer: Writer, blocks: int) -> Iterator[Prompt]:
    """Questions about documents whose popularity is Zipf's; with some a second question follows."""
    system = writer.fresh(chance.randint(1, 6))
    length, words = chance.uniform(2, 20), count(1)
    documents = [list(islice(words, several(chance, length))) for _ in range(chance.randint(200, 2000))]
    which, most = Choice(chance, len(documents), chance.uniform(0.5, 1.3)), chance.randint(1, 4)
    order, follow, question = chance.random() < 0.5, chance.uniform(0, 0.4), chance.uniform(1, 3)

    def ask() -> Session:
        found = [which() for _ in range(chance.randint(1, most))]
        if order:
            found.sort()
        prompt = system
        for document in found:
            prompt = writer.text(prompt, documents[document])
        while True:
            prompt = prompt + writer.fresh(several(chance, question))
            yield chance.uniform(1, 50), prompt
            if chance.random() > follow:
                return

    yield from play(ask, lambda: chance.expovariate(1), writer, blocks)


def scans(chance: random.Random, writer: Writer, blocks: int) -> Iterator[Prompt]:
    """Prompts that come back, and jobs that read through many others once; some jobs are run again."""
    prompts = [writer.fresh(several(chance, 12)) for _ in range(chance.randint(50, 800))]
    which, job = Choice(chance, len(prompts), chance.uniform(0.4, 1.2)), writer.fresh(chance.randint(1, 5))
    between, length, size = chance.uniform(200, 2000), chance.uniform(20, 300), chance.uniform(3, 40)
    again, past = chance.uniform(0, 0.5), list[list[Prompt]]()
    left, scan = between, iter(list[Prompt]())
    mixed = chance.uniform(0.2, 1)  # of the requests while a job runs
    while len(writer.asked) < blocks:
        running = next(scan, None) if chance.random() < mixed else None
        if running is not None:
            yield running
            continue
        yield prompts[which()] + writer.fresh(1)
        left -= 1
        if left < 0:
            left = chance.expovariate(1 / between)
            if not past or chance.random() > again:
                past.append([job + writer.fresh(several(chance, size)) for _ in range(several(chance, length))])
            scan = iter(chance.choice(past))


def shift(chance: random.Random, writer: Writer, blocks: int) -> Iterator[Prompt]:
    """Today others are popular than yesterday, or the traffic is of another kind."""
    prompts = [writer.fresh(several(chance, 10)) for _ in range(chance.randint(100, 1500))]
    which, share = Choice(chance, len(prompts), chance.uniform(0.6, 1.3)), chance.uniform(0.3, 1)
    phases = chance.randint(3, 8)
    for phase in range(1, phases + 1):
        end = blocks * phase // phases
        if chance.random() < 0.4:
            yield from chance.choice((chat, agents, retrieval))(chance, writer, end)
        while len(writer.asked) < end:
            yield prompts[which()] + writer.fresh(several(chance, 1.5))
        which.shuffle(share)


FAMILIES = {"chat": chat, "agents": agents, "retrieval": retrieval, "scans": scans, "shift": shift}


def generate(family: str, seed: int, blocks: int = 30_000) -> list[Prompt]:
    """Requests until about so many distinct blocks have come."""
    writer, trace = Writer(), []
    for prompt in FAMILIES[family](random.Random(f"{family} {seed}"), writer, blocks):
        writer.asked.update(prompt)
        trace.append(prompt)
    return trace
