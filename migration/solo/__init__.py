"""Solo: a private Redis and a controller for one driver, without installation or agents.

`start` is the driver's part, `supervisor` a process that owns Redis and controller and ends with the driver.
"""


class SoloError(RuntimeError):
    """A solo run that cannot be started; the message has the cure. The queries run without it."""
