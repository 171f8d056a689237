from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed.namespaces import NetworkError, trial
from testbed.network import HUB, Network, shaping, why_not
from testbed.processes import ProcessGroup

pytestmark = pytest.mark.root
MB = 1_000_000
FAST, SLOW = 1000.0, 100.0
LINKS = {"fast": FAST, "slow": SLOW, "quick": FAST}


@pytest.fixture(scope="module")
def group(skip_loudly: Callable[[str], None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessGroup]:
    skip_loudly(why_not())
    with ProcessGroup(tmp_path_factory.mktemp("network"), grace_s=1.0) as group:
        yield group


@pytest.fixture(scope="module")
def network(group: ProcessGroup) -> Iterator[Network]:
    with Network(group, LINKS) as network:
        yield network


def transfer_s(network: Network, source: str, target: str, size: int) -> float:
    """Seconds until all of `size` bytes have arrived."""
    with network.inside(target):
        server = socket.create_server((network.address(target), 0))
    with network.inside(source):
        client = socket.create_connection(server.getsockname(), timeout=20)
    with server, client:
        peer = server.accept()[0]
        began = time.monotonic()
        # A socket stays in the namespace that it was made in, whichever thread uses it.
        sender = threading.Thread(target=client.sendall, args=(bytes(size),))
        sender.start()
        with peer:
            arrived = 0
            while arrived < size:
                arrived += len(peer.recv(1 << 20))
        sender.join()
        return time.monotonic() - began


def devices() -> list[str]:
    return sorted(line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:])


def living_in(space: Path) -> list[int]:
    result = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "ns/net").readlink() == space:
                result.append(int(process.name))
        except OSError:
            continue
    return result


def test_a_link_is_shaped_to_its_rate() -> None:
    only = " ".join(shaping("eth0", 100.0))
    assert only == "tc qdisc replace dev eth0 root handle 1: tbf rate 100000000bit burst 98304b latency 50ms"
    assert "burst 250000b" in " ".join(shaping("eth0", 1000.0))


@pytest.mark.parametrize(("name", "mbit"), [("hub", 1.0), ("a b", 1.0), ("", 1.0), ("a", 0.0), ("a", float("inf"))])
def test_refuses_impossible_nodes(tmp_path: Path, name: str, mbit: float) -> None:
    with pytest.raises(ValueError, match=r"node is named|needs a rate"):
        Network(ProcessGroup(tmp_path), {name: mbit})


def test_says_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert why_not() == "network namespaces need root"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    assert "packages util-linux and iproute2" in why_not()


def test_says_what_a_failed_command_said(group: ProcessGroup, network: Network) -> None:
    assert "No such" in trial("ls /nowhere")
    with pytest.raises(NetworkError, match=r"in slow.*nowhere"):
        network._spaces.run("slow", "ip", "link", "del", "nowhere")


def test_rates_are_real_in_both_directions_and_counted(network: Network) -> None:
    before = network.counters()
    quick = min(transfer_s(network, "fast", "quick", 5 * MB) for _ in range(5))  # without what the machine does beside
    assert network.counters()["fast"].sent - before["fast"].sent >= 5 * MB
    assert network.counters()["quick"].received - before["quick"].received >= 5 * MB
    assert network.counters()["slow"].sent - before["slow"].sent < MB
    for source, target in (("fast", "slow"), ("slow", "fast"), (HUB, "slow"), ("slow", HUB)):
        seconds = transfer_s(network, source, target, 5 * MB)
        # Nothing makes a link faster than it is; how much slower a busy machine makes it, only the ratio can tell.
        assert 5 * MB * 8 / 1e6 / seconds < 1.25 * SLOW, (source, target)
        assert seconds > 3 * quick, (source, target)


def test_nodes_come_and_go(network: Network) -> None:
    network.add("late", FAST)
    assert network.address("late") == "10.77.0.14"
    assert transfer_s(network, "slow", "late", 100_000) > 0
    assert transfer_s(network, "late", HUB, 100_000) > 0
    with pytest.raises(ValueError, match="already"):
        network.add("late", FAST)
    network.remove("late")
    assert set(network.counters()) == set(LINKS)
    network.add("late", FAST)
    assert network.address("late") == "10.77.0.14"
    assert transfer_s(network, "slow", "late", 100_000) > 0
    network.remove("late")


def test_the_machines_own_network_is_as_before_and_nothing_stays(network: Network, tmp_path: Path) -> None:
    before = devices()
    addresses = subprocess.run(["ip", "addr"], capture_output=True, text=True, check=True).stdout
    links = {"a": FAST, "b": SLOW}
    with ProcessGroup(tmp_path, grace_s=1.0) as group, Network(group, links) as other:  # beside one with its addresses
        spaces = [Path(f"/proc/{other._spaces.pid(name)}/ns/net").readlink() for name in ("a", "b", HUB)]
        assert all(living_in(space) for space in spaces)
        with other.inside("a"):
            assert {"eth0", "lo"} <= set(devices())
        assert devices() == before
        assert subprocess.run(["ip", "addr"], capture_output=True, text=True, check=True).stdout == addresses
    assert not any(living_in(space) for space in spaces)


def test_the_machine_does_not_listen_where_a_server_in_the_hub_does(network: Network) -> None:
    def listening() -> bool:
        # No attempt to connect: without a namespace of our own, it would go out to whoever has that address there.
        return f":{server.getsockname()[1]:04X} 00000000:0000 0A" in Path("/proc/thread-self/net/tcp").read_text()

    with network.inside(HUB):
        server = socket.create_server((network.address(HUB), 0))
        assert listening()
    with server:
        assert not listening()
