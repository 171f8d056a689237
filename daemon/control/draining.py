"""The words in which drains are ordered and ended. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rechannel.wire.printable import count


def separated(text: str) -> list[str]:
    """Return the nodes of a request: one, or several with commas between."""
    return list(dict.fromkeys(node.strip() for node in text.split(",") if node.strip()))


def begun(nodes: Sequence[str], partitions: int, executors: int, *, remove: bool, paused: bool) -> str:
    """Say what a drain sets going on nodes with so many executors and partitions."""
    names = ", ".join(nodes)
    if not executors:
        return f"{names}: no executor runs there; those that start hold no state"
    what = f"{count(partitions, 'partition')} to leave" if partitions else "no state to leave"
    released = f", {'which is' if executors == 1 else 'which are'} released then" if remove else ""
    held = "; paused: `rechannel resume` first" if paused else ""
    return f"draining {names}: {what} {count(executors, 'executor')}{released}{held}"


def ended(nodes: Sequence[str], *, mode: str, paused: bool, running: bool, wait: float) -> str:
    """Say what the end of a drain sets going; ``wait``: seconds until it can be decided to move something there."""
    said = [f"{', '.join(nodes)} may hold state again"]
    if running:
        said.append("the running migration goes on: `rechannel stop` ends it")
    if paused:
        said.append("paused: `rechannel resume` first")
    elif mode == "apply":
        said.append(f"in about {wait:.0f} s it is decided whether moving partitions there pays")
    else:
        said.append("in observe mode nothing moves there by itself: `rechannel rebalance --apply` does it")
    return "; ".join(said)
