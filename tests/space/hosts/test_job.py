"""`hosts: job`: the nodes of a Slurm or torchrun job are the hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from openshelf import Space
from openshelf.errors import BadInput
from openshelf.space import own_number, read_hosts
from openshelf.space.hosts import job
from tests.space.hosts.harness.cluster import Cluster, free_ports

_VARIABLES = ("SLURM", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC")


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(_VARIABLES):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ("one", ["one"]),
        ("gpu[01-03,7],login", ["gpu01", "gpu02", "gpu03", "gpu7", "login"]),
        ("a-1,b[9-11]-x", ["a-1", "b9-x", "b10-x", "b11-x"]),
        ("[1-2]", ["1", "2"]),
    ],
)
def test_a_list_of_slurm_is_expanded(nodes: str, names: list[str]) -> None:
    assert job.expand(nodes) == names


@pytest.mark.parametrize(
    "nodes", ["gpu[01-03", "gpu[a-b]", "gpu]1[", "a,,b", "a b", "x[1-99999999]", "n1,n1", "x[]", "x[1-]"]
)
def test_what_is_no_list_of_nodes_is_refused(nodes: str) -> None:
    with pytest.raises(BadInput):
        job.expand(nodes)


def test_the_nodes_of_slurm_are_the_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _file(tmp_path, "port: 7500")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[08-10]")
    monkeypatch.setenv("SLURM_NODEID", "1")
    listed = read_hosts(file)
    assert listed.hosts == ("gpu08:7500", "gpu09:7500", "gpu10:7500")
    assert own_number(listed) == 1  # by its number: nobody asks what gpu09 is
    monkeypatch.setenv("SLURM_STEP_NODELIST", "gpu[09-10]")  # of the step, which is less than the job
    assert read_hosts(file).hosts == ("gpu09:7500", "gpu10:7500")
    monkeypatch.setenv("SLURM_NODEID", "2")
    with pytest.raises(BadInput, match="SLURM_NODEID is 2, and the job has 2 nodes"):
        read_hosts(file)


def test_torchrun_within_slurm_uses_the_nodes_of_slurm_if_it_runs_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NODEID": "1", "RANK": "8", "WORLD_SIZE": "16"}
    environment |= {"LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "n1"}
    assert job.of_environment(7400, environment) == (("n1:7400", "n2:7400"), 1)
    environment["WORLD_SIZE"] = "8"
    assert job.of_environment(7400, environment) == (("n1:7400",), 0)


def test_one_node_of_torchrun_is_where_its_first_node_is() -> None:
    environment = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "fd00::1"}
    assert job.of_environment(7400, environment) == (("[fd00::1]:7400",), 0)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "neither Slurm .* nor torchrun .* started this process"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR is not"),
        ({"RANK": "0", "WORLD_SIZE": "two", "MASTER_ADDR": "a"}, "WORLD_SIZE is 'two'"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "only torchrun's store says which"),
        ({"SLURM_JOB_NODELIST": "a", "SLURM_NODEID": "x"}, "SLURM_NODEID is 'x'"),
    ],
)
def test_an_environment_that_does_not_say_is_refused(environment: dict[str, str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        job.of_environment(7400, environment)


def test_a_file_says_what_goes_with_a_job(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="'port' must be 1 to 65535"):
        read_hosts(_file(tmp_path, "port: 99999"))
    listed = tmp_path / "listed.yaml"
    listed.write_text(f"key: {'ab' * 32}\nport: 7400\nhosts: ['127.0.0.1:7400']\n")
    listed.chmod(0o600)
    with pytest.raises(BadInput, match="'port' goes with `hosts: job`"):
        read_hosts(listed)
    listed.write_text(f"key: {'ab' * 32}\nhosts: ['127.0.0.1:7400']\n")
    with pytest.raises(BadInput, match="'job' goes with `hosts: job`"):
        Space.open("openshelf://job/demo", hosts=listed)


def _file(place: Path, more: str) -> Path:
    file = place / "hosts.yaml"
    file.write_text(f"key: {'ab' * 32}\nhosts: job\n{more}\n")
    file.chmod(0o600)
    return file


def test_a_space_is_opened_by_a_slurm_job(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "localhost")
    monkeypatch.setenv("SLURM_NODEID", "0")
    (port,) = free_ports(1)
    with Space.open("openshelf://job/demo", contribute="16MiB", hosts=_file(tmp_path, f"port: {port}")) as space:
        space.put("a", np.arange(4))
        assert space["a"].home == f"localhost:{port}"


WORKER = """
import os, sys
import numpy as np
from openshelf import Space
node = int(os.environ["GROUP_RANK"])
os.environ["OPENSHELF_DIR"] = f"{sys.argv[1]}/host-{node}"
space = Space.open("openshelf://job/demo", contribute="16MiB", hosts=sys.argv[2])
barrier = space.barrier("ready", 2, home=0) if node == 0 else None
if node == 0:
    space.put("a", np.arange(1000))
while node and "ready" not in space:
    pass
meeting = space.barrier("ready", 2)
meeting.wait(60)
assert space["a"].numpy().sum() == 499500
assert len(space.hosts()) == 2
meeting.wait(60)
print(f"node {node} is", space.hosts()[node]["host"])
"""


def test_two_nodes_of_a_real_torchrun_meet(loopback: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script, file = tmp_path / "worker.py", _file(tmp_path, f"port: {free_ports(2)[0]}")
    script.write_text(WORKER)
    (store,) = free_ports(1)
    common = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        "--nproc-per-node=1",
        "--rdzv-backend=static",
    ]
    common += ["--rdzv-id=test", "--master-addr=127.0.0.1", f"--master-port={store}"]
    environment = {**os.environ, "OPENSHELF_DIR": str(loopback.directory)}
    running = [
        subprocess.Popen(
            [*common, f"--node-rank={rank}", str(script), str(loopback.directory), str(file)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = [agent.communicate(timeout=100)[0] for agent in running]
    finally:
        for agent in running:
            agent.kill()
    assert [agent.returncode for agent in running] == [0, 0], "\n".join(said)
    for rank in range(2):
        assert f"node {rank} is 127.0.0.1:" in said[rank]
