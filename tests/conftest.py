"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says more of the box than of the code.
settings.register_profile("rechannel", deadline=None)
settings.load_profile("rechannel")
