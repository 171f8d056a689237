"""docs/python-api.md has the signatures that there are, and examples that run."""

from __future__ import annotations

import inspect

import pytest

import rechannel
from rechannel import policies
from rechannel.conf import loader
from rechannel.migration.link.loop import Link

from .pages import DOCS, blocks

PAGE = DOCS / "python-api.md"
TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLES = [block.text for block in blocks(PAGE) if block.language == "python"]


def signature(function: object) -> str:
    """Return parameters and defaults, without annotations."""
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    bare = [item.replace(annotation=inspect.Parameter.empty) for item in parameters if item.name != "self"]
    return str(inspect.Signature(bare))


def test_the_signatures_are_those_of_the_code():
    assert f"rechannel.attach{signature(rechannel.attach)} -> Link" in TEXT
    assert f"rechannel.conf.loader.load{signature(loader.load)} -> Settings" in TEXT
    assert f"`detach{signature(Link.detach)}`" in TEXT


@pytest.mark.parametrize("name", policies.__all__)
def test_every_name_of_the_policies_has_a_row(name: str):
    assert f"`{name}`" in TEXT


@pytest.mark.parametrize("name", rechannel.__all__)
def test_every_name_of_the_package_has_a_row(name: str):
    assert f"| `rechannel.{name}` |" in TEXT


def test_a_link_has_what_the_page_promises():
    link = Link()
    assert (link.active, link.problem, link.mode, link.detach()) == (False, "", "", True)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_every_example_can_be_compiled(number: int):
    compile(EXAMPLES[number], "python-api.md", "exec")


def test_the_example_of_a_proposal_runs(capsys: pytest.CaptureFixture[str]):
    exec(compile(EXAMPLES[-1], "python-api.md", "exec"), {})
    moved = capsys.readouterr().out.splitlines()
    assert moved and all(line.startswith("visits/0 ") and line.endswith(" 2") for line in moved)
