"""The commands on the pages that ask a controller, run in their order on a real Redis against one that leads."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from docs.pages import PAGES, block_commands
from docs.test_commands import variants
from integration.common import GATE, configured
from unit.daemon.fakes import World

from rechannel.conf.loader import load
from rechannel.conf.settings import Settings
from rechannel.daemon.cli.main import OVERVIEW, main
from testbed.redis_server import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300), pytest.mark.usefixtures("lines")]

ASK = {*OVERVIEW["Look"], *OVERVIEW["Order"]}
LINES = {
    page.name: lines
    for page in PAGES
    if page.name not in ("cli.md", "tutorial.md")  # usage lines; and test_tutorial runs that whole
    and (lines := [line for line in block_commands(page) if line.split()[1] in ASK])
}
# Nobody lands moves here, so that one may still be under way, or is ended first; and a batch may be too long ago.
RIGHT = {"rebalance": (0, 3, 4), "rollback": (0, 4), "stop": (0, 3), "assess": (1,)}  # there is no event log
PLANNED = (0, 3, 4)  # the codes of a dry run are those of its plan


@pytest.fixture
def settings(server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    later = time.strftime("%a", time.gmtime(time.time() + 2 * 86_400))
    sections = {
        "gate": GATE,
        "reschedule": {"off_peak": [f"{later} 02:00-05:00"]},
    }
    path = configured(tmp_path, server, sections)
    monkeypatch.setenv("RECHANNEL_CONFIG", str(path))
    monkeypatch.chdir(tmp_path)
    return load(path)


def put(text: list[str]) -> list[str]:
    """Put what is here for what pages name; what would go on until it is interrupted is asked once."""
    names = {"NODE": "127.0.0.5", "NAME": "adaptive", "FILE": "plan.json"}
    if text[0] == "cancel":
        status = json.loads(CliRunner().invoke(main, ["status", "--json"]).stdout)
        names[text[1]] = status["scheduled_plans"][0]["scheduled_plan"]
    return [names.get(word, word) for word in text if word != "--follow"]


def test_pages_hold_such_commands():
    request = {line.split()[1] for lines in LINES.values() for line in lines}
    assert {"README.md", "triggers.md", "handbook.md"} <= LINES.keys()
    assert {"status", "plan", "apply", "rebalance", "drain", "rollback", "cancel", "explain"} <= request


@pytest.mark.parametrize("page", LINES)
def test_each_does_what_a_reader_expects(led: None, world: World, page: str):
    for line in LINES[page]:
        for text in variants(line):
            world.ready()
            text = put(text)
            done = CliRunner().invoke(main, text)
            right = PLANNED if "--dry-run" in text else RIGHT.get(text[0], (0,))
            assert done.exit_code in right, f"{text}: {done.output}"
            assert done.output.strip()
            assert "Traceback" not in done.output
