"""Command ``assess``: tables, JSON, page and exit codes."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from unit.daemon.assess.spark_log import SparkLog
from unit.daemon.cli.command import run

NAME = '<script>alert("x")</script> [red]'


def write_log(
    directory: Path, *, placement: str = "000012", stateful: bool = True, name: str = "clicks", executors: int = 3
) -> Path:
    log = SparkLog()
    log.begin({str(number): 1 for number in range(executors)})
    log.batches(12, list(placement), [0.5] * 6, stateful=stateful, name=name)
    log.end()
    path = directory / f"app-{len(list(directory.iterdir()))}"
    path.write_bytes(log.text())
    return path


def test_the_table_has_what_was_asked_for(tmp_path: Path):
    output = run("assess", write_log(tmp_path)).output
    assert "clicks (app-20251009105320-0000, Spark 4.0.1)" in output
    for column in ("busiest/mean", "lost to unevenness", "even", "best", "moves"):
        assert column in output
    assert "clicks: yes: 4" in output
    assert "by 2 moves" in output


def test_the_document_is_one_and_typed(tmp_path: Path):
    document = json.loads(run("assess", "--json", write_log(tmp_path)).output)
    assert document["min_gain"] == 0.05
    (application,) = document["applications"]
    (query,) = application["queries"]
    assert query["verdict"] == "yes"
    assert query["best"]["moves"] == 2
    assert len(query["timeline"]) == 12
    assert len(query["executors"]) == 3


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({}, 0),
        ({"placement": "012012"}, 3),
        ({"stateful": False}, 4),
    ],
)
def test_the_exit_code_is_the_verdict(tmp_path: Path, options: dict[str, object], code: int):
    run("assess", write_log(tmp_path, **options), code=code)  # type: ignore[arg-type]


def test_several_logs_and_one_that_is_worth_it(tmp_path: Path):
    write_log(tmp_path, placement="012012")
    write_log(tmp_path)
    (tmp_path / "readme.txt").write_text("no log\n")
    output = run("assess", tmp_path).output
    assert "clicks: no: " in output
    assert "clicks: yes: " in output
    assert "passed over: " in output


def test_what_is_no_log_is_refused(tmp_path: Path):
    (tmp_path / "readme.txt").write_text("no log\n")
    document = json.loads(run("assess", "--json", tmp_path / "readme.txt", code=1).stdout)
    assert "has no event of Spark" in document["error"]
    run("assess", tmp_path / "missing", code=1)
    run("assess", code=2)
    run("assess", "--batches", 2, tmp_path, code=2)


def test_a_page_that_cannot_be_written_is_an_error(tmp_path: Path):
    output = run("assess", "--html", tmp_path / "missing" / "page.html", write_log(tmp_path), code=1).output
    assert "cannot be written" in output


class Tags(HTMLParser):
    """Collects the tags and the attributes that load something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [name for name, _ in attrs if name in ("src", "href", "onload", "style")]


def test_the_page_is_self_contained_and_has_the_pictures(tmp_path: Path):
    page = tmp_path / "page.html"
    run("assess", "--html", page, write_log(tmp_path))
    text = page.read_text(encoding="utf-8")
    parser = Tags()
    parser.feed(text)
    assert parser.tags.count("svg") == 2
    assert parser.tags.count("rect") == 3 * 3 + 1
    assert parser.tags.count("circle") == 12
    assert parser.loads == []
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    assert "yes: 4" in text


def test_names_of_a_hostile_log_are_text(tmp_path: Path):
    page = tmp_path / "page.html"
    output = run("assess", "--html", page, write_log(tmp_path, name=NAME + "\x1b[31m")).output
    assert NAME in output
    assert "\x1b" not in output
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "&lt;script&gt;" in text
