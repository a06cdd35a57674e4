"""A space over two hosts with kernels of their own, one of which is lost: killed, panicked, or without its cable."""

from __future__ import annotations

import base64
import secrets
import time

import pytest

from tests.machines.guest import PATIENCE, Guest, Stopped, give_address, wires


def _wait_for(guest: Guest, text: str, seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while text not in (said := guest.run("cat /root/out")):
        if "Traceback" in said or time.monotonic() > deadline:
            raise AssertionError(f"{guest.name} did not say {text!r}: {said}")
        time.sleep(1)
    return said


def _lose(guest: Guest, how: str) -> None:
    if how == "kill":
        guest.cut()
    elif how == "panic":
        guest.begin("echo c > /proc/sysrq-trigger")
        guest.process.wait(30 * PATIENCE)
    else:
        guest.qmp("set_link", name="n0", up=False)


@pytest.mark.parametrize("how", ["kill", "panic", "cable"])
def test_a_host_that_is_lost_is_named_and_the_other_goes_on(how: str) -> None:
    one, two = wires("one", "two")
    hosts = f'key: {secrets.token_hex(32)}\nhosts: ["10.78.0.1:7400", "10.78.0.2:7400"]\n'
    text = base64.b64encode(hosts.encode()).decode()
    with Guest("one", "6.12", devices=one) as first, Guest("two", "6.12", devices=two) as second:
        for number, guest in enumerate((first, second), 1):
            give_address(guest, number)
            guest.run(f"echo {text} | base64 -d > /root/hosts.yaml; chmod 600 /root/hosts.yaml")
            guest.begin(
                f"export OPENSHELF_HOSTS=/root/hosts.yaml; {guest.python('hosts_worker.py', str(number))} > /root/out"
            )
        _wait_for(second, "ready", 60 * PATIENCE)
        _wait_for(first, "ready", 10 * PATIENCE)
        _lose(first, how)
        said = _wait_for(second, "done", 30 * PATIENCE)
        assert "HostLost names 10.78.0.1:7400" in said
        assert "its own arrays are there" in said
        if how == "cable":
            assert "done" in _wait_for(first, "done", 30 * PATIENCE)  # it has lost the other one
        else:
            with pytest.raises((Stopped, OSError)):
                first.run("true", 1)
