"""Workers take arrays from a channel by handle; whoever is killed, the queue and the lock stay usable."""

import multiprocessing
import os

import numpy as np

import openshelf as osf

NAME = f"example-{os.getpid()}"


def worker(name: str) -> None:
    with osf.Space.open(name) as space:
        todo, total, lock = space.channel("todo"), space["total"], space.lock("total lock")
        while isinstance(batch := todo.receive(), osf.Array):  # the array itself, not a copy
            part = float(batch.numpy().sum())
            with lock:
                if lock.previous_died:
                    print("the last holder was killed; 'total' is one number, so it is whole anyway")
                total.numpy()[()] += part


if __name__ == "__main__":
    with osf.Space.create(NAME, dram="64MiB") as space:
        space.zeros("total", (), "float64")
        todo = space.channel("todo", capacity=8)
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=worker, args=(NAME,)) for _ in range(2)]
        for process in processes:
            process.start()
        for number in range(20):
            todo.send(space.put(None, np.full(1000, number)))  # unnamed: it lives until the receiver drops it
        for _ in processes:
            todo.send(b"stop")
        for process in processes:
            process.join()
        print("total", float(space["total"].numpy()), "expected", sum(range(20)) * 1000.0)
    osf.Space.remove(NAME)
