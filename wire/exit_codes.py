"""Exit codes of the command line, which are also the codes of the controller's replies."""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class ExitCode(IntEnum):
    """Exit code of a command, with its ``meaning``, for `--help` too, and its ``cure``."""

    meaning: str
    cure: str

    def __new__(cls, value: int, meaning: str = "", cure: str = "") -> Self:
        """Make a member that is equal to its number."""
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning, member.cure = meaning, cure
        return member

    DONE = 0, "Done.", "Nothing."
    REFUSED = (
        1,
        "The request is wrong, or a law refuses it.",
        "The sentence names the law; [laws](#laws) describes each.",
    )
    USAGE = 2, "Wrong usage of the command line.", "`rechannel COMMAND --help`."
    NOTHING = (
        3,
        "There is nothing to do, or the gate or the cool-down refuses.",
        "Nothing: this is a valid result. `--force` skips gate and cool-down.",
    )
    NOT_READY = (
        4,
        "Figures that a decision needs are not there yet, or `doctor` found a failure.",
        "See [not ready](#not-ready), which says what to wait for.",
    )
    REDIS = (
        5,
        "Redis cannot be reached, or refuses.",
        "Check Redis, `redis.url`, user and password file; `rechannel doctor`.",
    )
    NO_ANSWER = (
        6,
        "No controller answered.",
        (
            "The message says whether one leads, or when the lease of the last leader ends. Check that a controller "
            "runs and leads (`rechannel status`), and that the clocks agree."
        ),
    )
    CONFIGURATION = (
        7,
        "The configuration is wrong.",
        "`rechannel config check` names every mistake. Services that end with this code are not restarted.",
    )
    UNCLEAR = (
        8,
        "A controller accepted the order, then failed or lost the lead; `rechannel history` shows how far it got.",
        "Order the rest again. The same holds if Redis was lost before the reply: the order may have been carried out.",
    )


class CommandError(Exception):
    """A command failed: the sentence to print and the exit code."""

    def __init__(self, code: ExitCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
