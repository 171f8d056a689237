"""The pages as a site: all in the navigation, every link and anchor there, the generated one not stale."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rechannel.daemon.cli import reference

from .pages import DOCS, PAGES, ROOT, SITE, anchors, in_nav, links, name


def test_every_page_is_in_the_navigation_once():
    assert sorted(in_nav()) == [str(page.relative_to(DOCS)) for page in PAGES if DOCS in page.parents]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_and_anchor_is_there(page: Path):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if DOCS in page.parents:
            assert DOCS in target.parents, f"{link} leads out of the site"
        if anchor:
            by_site, by_viewer = anchors(target)
            assert anchor in by_site, link
            assert anchor in by_viewer, link


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_lists_are_lists_on_the_site_too(page: Path):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert not re.findall(r"^(?![*\d] ?|\d+\.|[ |#<])[^\n]+\n(?:\* |1\. )", text, re.M), "an empty line is missing"
    assert not re.findall(r"^(?![|])[^\n]+\n\|", text, re.M), "an empty line is missing before a table"


def test_the_commands_are_not_stale():
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert text == reference.markdown(), "run: python -m rechannel.daemon.cli.reference docs/cli.md"
    for command, _ in reference.commands(reference.cli):
        assert f"\n## rechannel {' '.join(command)}\n" in text


def test_the_reference_is_written_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert reference.main([str(tmp_path / "cli.md")]) == 0
    assert reference.main([]) == 0
    assert (tmp_path / "cli.md").read_text(encoding="utf-8") == capsys.readouterr().out == reference.markdown()


def test_every_message_links_to_a_page_that_is_there():
    for path in [*(ROOT / "daemon").rglob("*.py"), *(ROOT / "migration").rglob("*.py"), *(ROOT / "conf").rglob("*")]:
        if path.suffix in (".py", ".yml", ".json", ".toml", ".html"):
            for page, anchor in re.findall(r"\bdocs/([a-z-]+\.md)(#[\w-]+)?", path.read_text(encoding="utf-8")):
                assert (DOCS / page).is_file(), f"{path.name}: {page}"
                assert not anchor or anchor[1:] in anchors(DOCS / page)[0], f"{path.name}: {page}{anchor}"


def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path):
    pytest.importorskip("mkdocs", reason="make docs installs it")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) >= len(in_nav())
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|img|iframe|source)[^>]*src="(?:https?:)?//', text), page.name
        assert not re.findall(
            r'<link[^>]*rel="(?:stylesheet|preload|icon|shortcut icon)"[^>]*href="(?:https?:)?//', text
        )
    for style in (tmp_path / "site").rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")), (
            style.name
        )
    assert SITE["theme"] == {"name": "readthedocs", "highlightjs": False}
