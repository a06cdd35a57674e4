"""Two processes, one array: the second reads and changes the first one's bytes in place."""

import multiprocessing
import os

import openshelf as osf

NAME = f"example-{os.getpid()}"


def worker(name: str) -> None:
    with osf.Space.open(name) as space:
        weights = space["model/weights"].numpy()  # no copy
        weights[0, :] *= 2  # a plain store
        space.counter("done").add()


if __name__ == "__main__":
    with osf.Space.create(NAME, dram="64MiB") as space:
        with space.new("model/weights", (1024, 1024), "float32") as draft:
            draft.numpy()[:] = 1.0  # nobody sees it before the block ends
        process = multiprocessing.get_context("spawn").Process(target=worker, args=(NAME,))
        process.start()
        process.join()
        print("row 0 is now", space["model/weights"].numpy()[0, :3], "after", space.counter("done").value, "worker")
    osf.Space.remove(NAME)
