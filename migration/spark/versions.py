"""Features of Spark that Rechannel uses, by minor version. Pure.

Each entry was read in the classes of that version and run on it (``make matrix``; ``docs/compatibility.md``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Version = tuple[int, int]

#: Minor versions that were tested; the first is the oldest that can be steered.
TESTED: tuple[Version, ...] = ((3, 5), (4, 0), (4, 1), (4, 2), (4, 3))


@dataclass(frozen=True)
class Feature:
    """A feature that Spark has from ``since`` on."""

    name: str
    since: Version
    fallback: str  # what Rechannel does where it is missing
    loss: str = ""  # the consequence there, reported at attach, "" if there is none


METADATA = Feature(
    "operators' metadata in the checkpoint", (4, 0), "reads the stores off the directories of a partition"
)
SNAPSHOTS = Feature(
    "report of each snapshot",
    (4, 1),
    "lets a move begin without knowing how old the snapshot is",
    "does not report the age of a partition's newest snapshot: no move waits for a recent one",
)
CLOSES = Feature(
    "log line of a closed store",
    (4, 3),
    "presumes an old copy closed after two maintenance intervals",
    "does not log that an executor closed a store: the old copy of a moved partition is presumed closed after two "
    "maintenance intervals",
)
FEATURES = (METADATA, SNAPSHOTS, CLOSES)


def minor_version(version: str) -> Version:
    """Return the first two numbers of a version."""
    first, second, *_ = [*(int(part) for part in re.findall(r"\d+", version)[:2]), 0, 0]
    return first, second


def format_version(version: Version) -> str:
    """Return a minor version as text."""
    return f"{version[0]}.{version[1]}"


def has_feature(version: str, feature: Feature) -> bool:
    """Whether this Spark has a feature."""
    return minor_version(version) >= feature.since


def refusal(version: str) -> str:
    """Return why this Spark cannot be steered at all, "" if it can."""
    if minor_version(version) >= TESTED[0]:
        return ""
    oldest = format_version(TESTED[0])
    return f"Spark {version} is too old to be steered: no partition is moved there; use Spark {oldest} or newer"


def problems(version: str) -> list[str]:
    """Return what is missing in this Spark, a sentence for each feature."""
    sentences = [
        f"Spark {version} {feature.loss}; use Spark {format_version(feature.since)} or newer for it"
        for feature in FEATURES
        if feature.loss and not has_feature(version, feature)
    ]
    if minor_version(version) > TESTED[-1]:
        newest = format_version(TESTED[-1])
        sentences.append(
            f"Spark {version} is newer than any that was tried ({newest}); try moves on a test cluster first"
        )
    return sentences
