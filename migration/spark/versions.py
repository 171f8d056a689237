"""What each minor version of Spark has of what Rechannel uses: one table for the link, the documentation and the tests.

Pure. What is listed was read off each version's classes and run on it (``make matrix``; ``docs/compatibility.md``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Version = tuple[int, int]

#: Minor versions that were run; the first is the oldest that can be steered.
TRIED: tuple[Version, ...] = ((3, 5), (4, 0), (4, 1), (4, 2), (4, 3))


@dataclass(frozen=True)
class Feature:
    """Something that Spark has from ``since`` on. ``instead``: what Rechannel does where it is missing.

    ``lost``: what cannot be done there, to be told at attach; "" where nothing is lost.
    """

    name: str
    since: Version
    instead: str
    lost: str = ""


METADATA = Feature(
    "operators' metadata in the checkpoint",
    (4, 0),
    "reads the stores off the directories of a partition",
)
SNAPSHOTS = Feature(
    "word of each snapshot",
    (4, 1),
    "lets a move begin without knowing how old the snapshot is",
    "does not tell how old a partition's newest snapshot is: no move waits for a recent one, and migration.max_replay "
    "has no effect",
)
CLOSES = Feature(
    "log line of a closed store",
    (4, 3),
    "presumes an old copy closed after two maintenance intervals",
    "does not log that an executor closed a store: the old copy of a moved partition is presumed closed after two "
    "maintenance intervals",
)
FEATURES = (METADATA, SNAPSHOTS, CLOSES)


def minor(version: str) -> Version:
    """Return the first two numbers of a version."""
    first, second, *_ = [*(int(part) for part in re.findall(r"\d+", version)[:2]), 0, 0]
    return first, second


def text(version: Version) -> str:
    """Return a minor version as it is written."""
    return f"{version[0]}.{version[1]}"


def has(version: str, feature: Feature) -> bool:
    """Whether this Spark has a feature."""
    return minor(version) >= feature.since


def refusal(version: str) -> str:
    """Say why this Spark cannot be steered at all, "" if it can."""
    if minor(version) >= TRIED[0]:
        return ""
    return f"Spark {version} is too old to be steered: no partition is moved there; use Spark {text(TRIED[0])} or newer"


def problems(version: str) -> list[str]:
    """Say what cannot be done on this Spark, a sentence for each."""
    found = [
        f"Spark {version} {feature.lost}; use Spark {text(feature.since)} or newer for it"
        for feature in FEATURES
        if feature.lost and not has(version, feature)
    ]
    if minor(version) > TRIED[-1]:
        found.append(
            f"Spark {version} is newer than any that was tried ({text(TRIED[-1])}); try moves on a test cluster first"
        )
    return found
