"""Write the reference of all commands: ``python -m rechannel.daemon.cli.reference docs/cli.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from rechannel.daemon.cli.main import main as cli
from rechannel.wire.exit_codes import ExitCode

_HEAD = """\
# Commands and exit codes

<!-- written by `python -m rechannel.daemon.cli.reference docs/cli.md`; change the commands instead -->

`rechannel COMMAND --help` says the same. Every command reads the file that `--config` names, else the one that
`RECHANNEL_CONFIG` names, else `./rechannel.toml`, else `/etc/rechannel/rechannel.toml`.
With `--json` exactly one JSON document is on standard output (for
`history --follow` and `drain --follow`, one a line); on an error it is `{"error": sentence, "code": number}`,
for a configuration with an array of its `mistakes` too. The sentence always goes to standard error as well.
`RECHANNEL_DEBUG=1` shows the traceback of an unexpected error.
"""


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command that is no group, with the words that call it, in the order of their names."""
    for name in sorted(group.commands):
        command = group.commands[name]
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


def markdown() -> str:
    """Return the page: exit codes, then each command with its usage, what it does, and its options."""
    lines = [_HEAD, "## Exit codes", "", "Also the codes of the controller's replies.", "", "| code | meaning |"]
    lines += ["| --- | --- |", *(f"| {int(code)} | {code.meaning} |" for code in ExitCode)]
    lines += ["| 130 | interrupted |", ""]
    for words, command in commands(cli):
        lines += _command(words, command)
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the page into the files named; without any, print it."""
    if not arguments:
        sys.stdout.write(markdown())
    for name in arguments:
        Path(name).write_text(markdown(), encoding="utf-8")
    return 0


def _command(words: tuple[str, ...], command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=" ".join(("rechannel", *words)))
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield from (f"## rechannel {' '.join(words)}", "", f"    {usage}", "")
    for part in (command.help or "").replace("\b\n", "").split("\n\n"):
        yield from (_plain(part), "")
    options = [item for item in command.params if isinstance(item, click.Option)]
    if options:
        yield from ("| option | |", "| --- | --- |")
        for option in options:
            names, said = option.get_help_record(context) or ("", "")
            yield f"| `{names}` | {_cell(said)} |"
        yield ""


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """One line in which nothing looks like HTML."""
    return " ".join(text.split()).replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
