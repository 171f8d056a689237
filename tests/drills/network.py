"""A network for the parts that a drill cuts off: a hub with Redis, and a cable from there to each part.

Not a bridge, as the benchmarks have: a cable that is taken out has to take the hub's route to the part with it.
"""

from __future__ import annotations

import contextlib

from testbed.namespaces import Namespaces, NetworkError, trial
from testbed.processes import ProcessGroup

__all__ = ["HUB", "Network", "NetworkError", "why_not"]

HUB = "hub"
_HUB_ADDRESS = "10.99.{n}.1"
_PART_ADDRESS = "10.99.{n}.2"


def why_not() -> str:
    """Say why there are no network namespaces here, "" if there are."""
    return trial("ip link add probe0 type veth peer name probe1 && ip link set probe0 up")


class Network:
    """The hub and its parts. ``group`` owns the processes that hold the namespaces."""

    def __init__(self, group: ProcessGroup, parts: list[str]) -> None:
        self._spaces = Namespaces(group)
        self._numbers = {part: number for number, part in enumerate(parts, start=1)}
        self._spaces.add(HUB, *parts)
        for part, number in self._numbers.items():
            peer = ["peer", "name", "cable", "netns", str(self._spaces.pid(part))]
            self._ip(HUB, "link", "add", f"to{number}", "type", "veth", *peer)
            self._ip(HUB, "addr", "add", f"{_HUB_ADDRESS.format(n=number)}/30", "dev", f"to{number}")
            self._ip(HUB, "link", "set", f"to{number}", "up")
            self._ip(part, "addr", "add", f"{_PART_ADDRESS.format(n=number)}/30", "dev", "cable")
            self._ip(part, "link", "set", "cable", "up")

    @property
    def hub_addresses(self) -> list[str]:
        """Addresses on which a server in the hub has to listen."""
        return [_HUB_ADDRESS.format(n=number) for number in self._numbers.values()]

    def hub_from(self, part: str) -> str:
        """Return the hub's address as a part sees it."""
        return _HUB_ADDRESS.format(n=self._numbers[part])

    def cut(self, part: str) -> None:
        """Take a part's cable out: what it sends is lost without a word."""
        self._ip(HUB, "link", "set", f"to{self._numbers[part]}", "down")

    def mend(self, part: str) -> None:
        """Put the cable back."""
        self._ip(HUB, "link", "set", f"to{self._numbers[part]}", "up")

    def inside(self, part: str) -> contextlib.AbstractContextManager[None]:
        """Have the calling thread, and the processes it starts meanwhile, live in a part's namespace."""
        return self._spaces.inside(part)

    def _ip(self, name: str, *text: str) -> None:
        self._spaces.run(name, "ip", *text)
