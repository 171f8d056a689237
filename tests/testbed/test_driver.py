"""The end of an application under test: what is left of the link's files is seen."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from rechannel.migration.link.event_feed import _PREFIX
from rechannel.migration.link.loop import Link
from testbed.driver import end_application


@pytest.mark.parametrize(("removes", "directories"), [(True, [1, 0]), (False, [1, 1])])
def test_what_the_link_leaves_behind_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removes: bool, directories: list[int]
) -> None:
    own = tmp_path / "link" / f"{_PREFIX}x1"
    own.mkdir(parents=True)
    link = Link()
    link._thread = threading.current_thread()  # it is at work
    monkeypatch.setenv("RECHANNEL_LINK__DIRECTORY", str(own.parent))
    link.detach = lambda: shutil.rmtree(own) if removes else None
    end_application(tmp_path, SimpleNamespace(stop=lambda: None), {}, link)
    assert json.loads((tmp_path / "result.json").read_text())["link_directories"] == directories
