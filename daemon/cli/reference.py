"""Generator of the reference of commands, and of the tables of codes in the handbook.

``python -m rechannel.daemon.cli.reference docs/cli.md docs/handbook.md`` writes both pages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from rechannel.daemon.cli.main import main as cli
from rechannel.wire import codes
from rechannel.wire.codes import Code
from rechannel.wire.exit_codes import ExitCode

_HEAD = """\
# Commands

<!-- written by `python -m rechannel.daemon.cli.reference docs/cli.md`; change the commands instead -->

`rechannel COMMAND --help` prints the same. Every command reads the file that `--config` names, else the one that
`RECHANNEL_CONFIG` names, else `./rechannel.toml`, else `/etc/rechannel/rechannel.toml`, else that of the only live
[solo run](solo.md) of this user. With `--json` exactly one JSON document is on standard output (for
`history --follow` and `drain --follow`, one per line); on an error it is `{"error": sentence, "code": number}`,
for a configuration with an array of its `mistakes` too. The sentence always goes to standard error as well; wrong usage
(exit code 2) may have no document. `RECHANNEL_DEBUG=1` shows the traceback of an unexpected error. The handbook lists
the [exit codes](handbook.md#exit-codes); an interrupted command ends with 130.
"""
#: a table of a page: between these markers, one row for each code of the enum of that name
_TABLE = re.compile(r"(<!-- codes: (\w+), from wire/\w+\.py -->\n).*?(<!-- end of codes -->)", re.DOTALL)
_KINDS: dict[str, Any] = {**vars(codes), ExitCode.__name__: ExitCode}
_COLUMNS = {
    "Law": "law",
    "MoveState": "state",
    "MoveReason": "reason",
    "SlowCause": "cause",
}  # heads of the first column; else "code"


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command that is not a group, with the words that call it, sorted by name."""
    for name in sorted(group.commands):
        command = group.commands[name]
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def markdown() -> str:
    """Return the reference: each command with usage, description and options."""
    lines = [_HEAD]
    for path, command in commands(cli):
        lines += _command(path, command)
    return "\n".join(lines).rstrip() + "\n"


def with_code_tables(page: str) -> str:
    """Return a page with the tables of codes between its markers replaced."""
    return _TABLE.sub(lambda match: f"{match[1]}\n{_code_table(_KINDS[match[2]])}\n{match[3]}", page)


def main(arguments: Sequence[str]) -> int:
    """Write files: tables where a file has markers, else the reference; print it without any."""
    if not arguments:
        sys.stdout.write(markdown())
    for file in map(Path, arguments):
        page = file.read_text(encoding="utf-8") if file.exists() else ""
        file.write_text(with_code_tables(page) if _TABLE.search(page) else markdown(), encoding="utf-8")
    return 0


def _code_table(kind: type[Code | ExitCode]) -> str:
    columns = 3 if any(code.cure for code in kind) else 2
    rows = [(_COLUMNS.get(kind.__name__, "code"), "means", "do"), ("---",) * 3]
    rows += [(f"`{code}`", code.meaning, code.cure) for code in kind]
    return "".join(f"| {' | '.join(row[:columns])} |\n" for row in rows)


def _command(path: tuple[str, ...], command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=" ".join(("rechannel", *path)))
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield from (f"## rechannel {' '.join(path)}", "", f"    {usage}", "")
    for part in (command.help or "").replace("\b\n", "").split("\n\n"):
        yield from (_plain(part), "")
    options = [item for item in command.params if isinstance(item, click.Option)]
    if options:
        yield from ("| option | |", "| --- | --- |")
        for option in options:
            names, text = option.get_help_record(context) or ("", "")
            yield f"| `{names}` | {_cell(text)} |"
        yield ""


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """Return a text as one line, with HTML escaped."""
    return " ".join(text.split()).replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
