"""The compared deciders: nobody, a policy of the literature, or Rechannel's own."""

from __future__ import annotations

from dataclasses import dataclass

from rechannel.policies.registry import POLICIES


@dataclass(frozen=True)
class Variant:
    """``policy``: whom the controller asks, "" for nobody. ``force``: what it proposes is done without the gate.

    The systems that the policies come from have no gate, so theirs are done as they are; the default policy goes
    through it, as it does for whoever runs Rechannel.
    """

    name: str
    policy: str
    force: bool


SPARK = Variant("spark", "", force=False)
ADAPTIVE = Variant("adaptive", "adaptive", force=False)
QUICK = ("spark", "even", "adaptive")


def variants(names: tuple[str, ...] = ()) -> list[Variant]:
    """Return the named ways, or all of them. ValueError where there is no such way."""
    by_name = {SPARK.name: SPARK, ADAPTIVE.name: ADAPTIVE}
    by_name |= {name: Variant(name, name, force=True) for name in POLICIES if name != ADAPTIVE.policy}
    if unknown := [name for name in names if name not in by_name]:
        raise ValueError(f"no such variant: {', '.join(unknown)}; there are {', '.join(by_name)}")
    return [by_name[name] for name in (names or by_name)]
