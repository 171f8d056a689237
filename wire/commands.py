"""Typed commands of operators: built by the command line, carried out by the leader.

A request carries its command as plain JSON, so that a controller of another release can still answer that it does not
know it. Durations are seconds, names are those that `rechannel status` shows; "" means "not given".
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias, get_args

import msgspec

from rechannel.conf.duration import TEN_YEARS
from rechannel.wire.measurements import BoundedFloat


class UnknownCommandError(ValueError):
    """Command that this release does not have, or with unusable fields, which the text names."""


class _Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="verb", tag=str.lower, forbid_unknown_fields=True):
    """Base of every command; its tag is the verb."""

    #: changes nothing, so viewers may send it
    read_only: ClassVar[bool] = False
    #: may need a plan, which can take minutes
    plans: ClassVar[bool] = False

    @property
    def verb(self) -> str:
        """The word of the command line."""
        return str(self.__struct_config__.tag)


class Plan(_Command, frozen=True):
    """Show what would be moved now; with ``drain``, what draining these nodes would move."""

    read_only: ClassVar[bool] = True
    plans: ClassVar[bool] = True
    application: str = ""
    policy: str = ""
    force: bool = False
    drain: list[str] = []


class Rebalance(_Command, frozen=True):
    """Plan and move, unless a law or (without ``force``) the gate or cool-down refuses."""

    plans: ClassVar[bool] = True
    application: str = ""
    policy: str = ""
    force: bool = False


class Apply(_Command, frozen=True):
    """Carry out a saved plan: now, or schedule it ``at`` a period or ``when`` off-peak."""

    plans: ClassVar[bool] = True
    plan: str
    at: str = ""
    when: str = ""
    force: bool = False


class Cancel(_Command, frozen=True):
    """Cancel the scheduled plan of this id."""

    scheduled_plan: str


class Rollback(_Command, frozen=True):
    """Move back what a decision moved, by default the last one that moved something."""

    plans: ClassVar[bool] = True
    application: str = ""
    decision: str = ""


class Stop(_Command, frozen=True):
    """End running migrations at the next batch boundary."""

    application: str = ""


class Pause(_Command, frozen=True):
    """Begin nothing until `Resume`; running migrations are held."""


class Resume(_Command, frozen=True):
    """End the pause."""


class Drain(_Command, frozen=True):
    """Keep nodes free of state."""

    nodes: list[str]
    remove: bool = False  # their executors are released once they are empty
    deadline: BoundedFloat = 0.0  # seconds from the order after which they are released anyway, 0 for never

    def __post_init__(self) -> None:
        if not 0 <= self.deadline <= TEN_YEARS:  # a later time does not fit into a message
            raise ValueError(f"deadline: expected 0 to {TEN_YEARS:g} seconds, got {self.deadline:g}")


class Undrain(_Command, frozen=True):
    """Let nodes hold state again."""

    nodes: list[str]


Command: TypeAlias = Plan | Rebalance | Apply | Cancel | Rollback | Stop | Pause | Resume | Drain | Undrain
COMMANDS: dict[str, type[_Command]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Command)}


#: verbs that viewers may send; every other verb is an order and goes to the stream of the operators
READ_ONLY_VERBS = frozenset(verb for verb, kind in COMMANDS.items() if kind.read_only)


def encode(command: Command) -> dict[str, Any]:
    """Return the command as plain values, for `rechannel.wire.messages.Request`."""
    return dict(msgspec.to_builtins(command))


def decode(data: dict[str, Any]) -> Command:
    """Read a command, or raise UnknownCommandError."""
    verb = data.get("verb")
    if not isinstance(verb, str) or verb not in COMMANDS:
        raise UnknownCommandError(f"unknown verb {verb!r}; known are {', '.join(sorted(COMMANDS))}")
    try:
        command: Command = msgspec.convert(data, Command)
    except msgspec.ValidationError as error:
        raise UnknownCommandError(f"{verb}: {error}") from error
    return command
