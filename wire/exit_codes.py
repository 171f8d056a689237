"""Exit codes of the command line, which are also the codes of the controller's replies.

==== ==================================================================
0    done
1    the request is wrong, or a law refuses it
2    wrong usage of the command line
3    nothing to do, or the gate or the cool-down says no
4    not ready: the figures a decision needs are not there yet; of doctor: something failed
5    Redis cannot be reached, or refuses
6    no controller answered
7    the configuration is wrong
8    a controller took the order up and lost the lead; `history` says how far it came
==== ==================================================================
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command's end means."""

    DONE = 0
    REFUSED = 1
    USAGE = 2
    NOTHING = 3
    NOT_READY = 4
    REDIS = 5
    NO_ANSWER = 6
    CONFIGURATION = 7
    UNCLEAR = 8


EXIT_WORDS = {
    ExitCode.DONE: "done",
    ExitCode.REFUSED: "the request is wrong, or a law refuses it",
    ExitCode.USAGE: "wrong usage",
    ExitCode.NOTHING: "nothing to do, or the gate or the cool-down says no",
    ExitCode.NOT_READY: "not ready: the figures a decision needs are not there yet; of doctor: something failed",
    ExitCode.REDIS: "Redis cannot be reached, or refuses",
    ExitCode.NO_ANSWER: "no controller answered",
    ExitCode.CONFIGURATION: "the configuration is wrong",
    ExitCode.UNCLEAR: "a controller took the order up and lost the lead; history says how far it came",
}


#: said in every status and with every plan of a controller that does not act by itself
OBSERVE_MODE = 'Observe mode: decisions are recorded, not applied. Set reschedule.mode = "apply" to have them applied.'
NOBODY_REPORTS = (
    "no application reports: start a script with `rechannel submit`, or call rechannel.attach(spark) in its driver"
)


class CommandError(Exception):
    """A command ends without doing what was asked: the sentence for people, and the exit code."""

    def __init__(self, code: ExitCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
