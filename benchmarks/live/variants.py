"""Who decides: nobody, a policy of the literature, or Rechannel's own."""

from __future__ import annotations

from dataclasses import dataclass

from rechannel.policies.registry import POLICIES

__all__ = ["ADAPTIVE", "QUICK", "SPARK", "Way", "ways"]


@dataclass(frozen=True)
class Way:
    """``policy``: whom the controller asks, "" for nobody. ``force``: what it proposes is done without the gate.

    The systems that the policies come from have no gate, so theirs are done as they are; the default policy goes
    through it, as it does for whoever runs Rechannel.
    """

    name: str
    policy: str
    force: bool


SPARK = Way("spark", "", force=False)
ADAPTIVE = Way("adaptive", "adaptive", force=False)
QUICK = ("spark", "even", "adaptive")


def ways(names: tuple[str, ...] = ()) -> list[Way]:
    """Return the named ways, or all of them. ValueError where there is no such way."""
    known = {SPARK.name: SPARK, ADAPTIVE.name: ADAPTIVE}
    known |= {name: Way(name, name, force=True) for name in POLICIES if name != ADAPTIVE.policy}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no such way: {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in (names or known)]
