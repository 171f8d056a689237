"""A network of nodes on one machine: a namespace, an address and a link of a given rate for each, joined by a hub.

The hub is a namespace with a bridge, on which master, driver, Redis and controller live. A node's link is a pair of
devices, one at its end and one at the hub's, and each shapes what it sends: the rate holds in both directions, for
traffic between two nodes as for that between a node and the hub. The hub itself has no link; what it sends and gets is
bounded by the links of the nodes alone. A node whose own processes should have a link like all others (a driver, a
source) is simply one more node.

What is real: addresses, TCP, queues that fill up, rates. What is not: nodes share the machine's memory bus and caches,
and the copying is done by the machine's own cores, whoever sends.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

from testbed.namespaces import Namespaces, NetworkError, trial
from testbed.processes import Block, ProcessGroup

HUB = "hub"
_SUBNET = "10.77.0"
_BRIDGE = "bridge"
_DEVICE = "eth0"  # a node's end of its link
_FIRST = 11  # last byte of the first node's address; the hub has 1
_LAST = 250
_HARDWARE = "02:00:00:00:00:{n:02x}"
_LEAST_MBIT = 0.1
_QUEUE_MS = 50  # what a full queue holds back, as in a switch with ample buffers
_BURST_MS = 2
_LEAST_BURST = 96 * 1024  # bytes; less than one packet of TCP offload (64 KiB) would have each of them cut by hand


class Traffic(NamedTuple):
    """Bytes that went through a node's link since it was laid, as the kernel counts them at the node's end.

    A TCP packet that stays in one piece on its way (offload) counts its headers once; shaping counts them in full.
    """

    sent: int
    received: int


def shaping(device: str, mbit: float) -> list[str]:
    """Return the command that holds what a device sends to a rate, in Mbit/s (10^6 bits)."""
    bits = round(mbit * 1e6)
    burst = max(_LEAST_BURST, round(bits / 8 * _BURST_MS / 1000))
    rate = ["tbf", "rate", f"{bits}bit", "burst", f"{burst}b", "latency", f"{_QUEUE_MS}ms"]
    return ["tc", "qdisc", "replace", "dev", device, "root", "handle", "1:", *rate]


def why_not() -> str:
    """Say why there can be no such network on this machine, "" if there can: a small one is tried."""
    lines = ["ip link add probe0 type veth peer name probe1", "ip link add probe2 type bridge forward_delay 0"]
    return trial("\n".join([*lines, " ".join(shaping("probe0", 100.0))]))


class Network(Block):
    """The hub and its nodes, by name; ``links``: the rate of each node's link in Mbit/s. All gone when the block ends.

    Raises ValueError for names and rates that cannot be, :class:`NetworkError` where the system refuses.
    """

    def __init__(self, group: ProcessGroup, links: Mapping[str, float]) -> None:
        self.rates: dict[str, float] = {}
        self._rates = dict(links)
        self._numbers: dict[str, int] = {}
        self._spaces = Namespaces(group)
        for name, mbit in self._rates.items():
            _check(name, mbit)

    def start(self) -> Self:
        """Lay the bridge, then all links."""
        self._spaces.add(HUB)
        # A bridge forwards at once only without a delay for learning, and keeps its address only if it is given one.
        options = ["address", _HARDWARE.format(n=1), "type", "bridge", "forward_delay", "0"]
        self._spaces.run(HUB, "ip", "link", "add", _BRIDGE, *options)
        self._spaces.run(HUB, "ip", "addr", "add", f"{self.address(HUB)}/24", "dev", _BRIDGE)
        self._spaces.run(HUB, "ip", "link", "set", _BRIDGE, "up")
        for name, mbit in self._rates.items():
            self.add(name, mbit)
        return self

    def add(self, name: str, mbit: float) -> None:
        """Add a node; one that was removed comes back with the address it had."""
        _check(name, mbit)
        if name in self.rates:
            raise ValueError(f"there is a node {name!r} already")
        number = self._numbers.get(name, max(self._numbers.values(), default=_FIRST - 1) + 1)
        if number > _LAST:
            raise NetworkError(f"no address left for {name!r} in {_SUBNET}.0/24")
        self._spaces.add(name)
        self._numbers[name] = number
        # The others remember for a while which device had an address: one that comes back is taken for the same.
        peer = ["peer", "name", _DEVICE, "address", _HARDWARE.format(n=number), "netns", str(self._spaces.pid(name))]
        self._spaces.run(HUB, "ip", "link", "add", self._port(name), "type", "veth", *peer)
        self._spaces.run(HUB, "ip", "link", "set", self._port(name), "master", _BRIDGE)
        self._spaces.run(name, "ip", "addr", "add", f"{self.address(name)}/24", "dev", _DEVICE)
        for where, device in ((name, _DEVICE), (HUB, self._port(name))):
            self._spaces.run(where, *shaping(device, mbit))
        self.rates[name] = mbit
        self._spaces.run(HUB, "ip", "link", "set", self._port(name), "up")
        self._spaces.run(name, "ip", "link", "set", _DEVICE, "up")

    def remove(self, name: str) -> None:
        """Take a node's link away; what still runs in the node talks to itself alone."""
        del self.rates[name]
        self._spaces.run(HUB, "ip", "link", "del", self._port(name))
        self._spaces.remove(name)

    def address(self, name: str) -> str:
        """Return the address of a node, or of the hub."""
        return f"{_SUBNET}.{1 if name == HUB else self._numbers[name]}"

    def inside(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Have the calling thread, and the processes it starts meanwhile, live in a node, or in the hub."""
        return self._spaces.inside(name)

    def counters(self) -> dict[str, Traffic]:
        """Return what each node has sent and received through its link so far."""
        return {name: _read(self._spaces.pid(name)) for name in self.rates}

    def close(self) -> None:
        """Take everything away; what still runs in a part keeps its namespace until it ends."""
        self._spaces.close()

    def _port(self, name: str) -> str:
        return f"to{self._numbers[name]}"


def _check(name: str, mbit: float) -> None:
    if not re.fullmatch("[a-z][a-z0-9-]*", name) or name == HUB:
        raise ValueError(f"a node is named with small letters, digits and dashes, and not {HUB!r}: {name!r}")
    if not (math.isfinite(mbit) and mbit >= _LEAST_MBIT):
        raise ValueError(f"the link of {name!r} needs a rate of {_LEAST_MBIT:g} Mbit/s or more, not {mbit:g}")


def _read(pid: int) -> Traffic:
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
        device, _, figures = line.partition(":")
        if device.strip() == _DEVICE:
            values = [int(word) for word in figures.split()]
            return Traffic(sent=values[8], received=values[0])
    raise NetworkError(f"process {pid} has no {_DEVICE}")
