"""What all messages are built from: their base, and how large the figures in them may be."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

# What a message may hold in figures. A float holds every such whole number, and sums and products of a few of them stay
# finite; every moment is a date. What is beyond that was not measured by anybody, and is refused with its message.
Whole: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
Number: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]
Moment: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e11, le=1e11)]  # seconds since 1970 (UTC)


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=False, kw_only=True):
    """Base of every message body."""
