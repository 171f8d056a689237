"""The replies that say no, or that it is not known, in one wording each. Pure."""

from __future__ import annotations

from rechannel.wire.exit_codes import ExitCode
from rechannel.wire.messages import Reply, Request


def taken_up(request: Request) -> Reply:
    """A request that another controller may have carried out."""
    sentence = (
        f"{request.verb} was taken up by a controller that lost the lead before it answered, and is not begun again; "
        "whether it was carried out shows in `rechannel history` and `rechannel status`"
    )
    return Reply(request=request.request, code=int(ExitCode.UNCLEAR), sentence=sentence)


def unknown(request: Request, application: str, known: list[str]) -> Reply:
    """A request for an application that does not report."""
    return refused(request, f"unknown application {application}; known are {', '.join(known) or 'none'}")


def refused(request: Request, sentence: str) -> Reply:
    """A request that is not carried out."""
    return Reply(request=request.request, code=int(ExitCode.REFUSED), sentence=sentence)
