"""docs/troubleshooting.md quotes messages that the code has, and reasons of moves that there are."""

from __future__ import annotations

import ast
import functools
import re

import pytest

from rechannel.wire.codes import MoveReason

from .code_names import PARTS
from .pages import DOCS, ROOT

TEXT = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
_COMMANDS = ("rechannel ", "systemctl ", "pip ", "kill ", "ACL ")


@functools.cache
def messages() -> tuple[str, ...]:
    """Return every text in the source; what is filled in at run time is an ellipsis."""
    texts = set()
    for part in PARTS:
        for path in (ROOT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.add(node.value)
                elif isinstance(node, ast.JoinedStr):
                    texts.add("".join(item.value if isinstance(item, ast.Constant) else "…" for item in node.values))
    return tuple(texts)


def quotations() -> list[str]:
    spans = dict.fromkeys(re.findall(r"`([^`\n]+)`", TEXT))
    return [span for span in spans if " " in span and not span.startswith(_COMMANDS)]


@pytest.mark.parametrize("quotation", quotations())
def test_every_quoted_message_is_one_of_the_code(quotation: str):
    pattern = re.compile(".*".join(re.escape(fragment) for fragment in quotation.split("…")))
    assert any(pattern.search(text) for text in messages())


def test_every_reason_of_a_move_is_one_that_there_is():
    (table,) = re.findall(r"^\| reason \|.*?\n\n", TEXT, re.M | re.S)
    reasons = re.findall(r"`([^`]+)`", "\n".join(line.split(" | ")[0] for line in table.splitlines()))
    assert len(reasons) > 5
    assert set(reasons) <= set(MoveReason)


def test_there_are_quotations():
    assert len(quotations()) > 40
