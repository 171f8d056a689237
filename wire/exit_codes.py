"""Exit codes of the command line, which are also the codes of the controller's replies."""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class ExitCode(IntEnum):
    """Exit code of a command, with its ``meaning`` for `--help` and the reference."""

    meaning: str

    def __new__(cls, value: int, meaning: str = "") -> Self:
        """Make a member that is equal to its number."""
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    DONE = 0, "done"
    REFUSED = 1, "the request is wrong, or a law refuses it"
    USAGE = 2, "wrong usage"
    NOTHING = 3, "nothing to do, or the gate or the cool-down says no"
    NOT_READY = 4, "not ready: the figures a decision needs are not there yet; of doctor: something failed"
    REDIS = 5, "Redis cannot be reached, or refuses"
    NO_ANSWER = 6, "no controller answered"
    CONFIGURATION = 7, "the configuration is wrong"
    UNCLEAR = 8, "a controller took the order up and failed or lost the lead; history says how far it came"


class CommandError(Exception):
    """A command failed: the sentence to print and the exit code."""

    def __init__(self, code: ExitCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
