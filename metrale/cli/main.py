"""The ``metrale`` program: finds the chosen command, imports only that one, and turns every failure into one line."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from metrale import __version__
from metrale.cli.errors import BAD_INPUT, BadInput
from metrale.cli.text import plain, say

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF, errno.EIO)

INTERRUPTED = 130
PIPE_CLOSED = 141

#: name: (module, attribute, one-line help). A module is imported only when its command is chosen.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "run": ("metrale.cli.run", "run", "Run one scenario and write its trace."),
    "check": ("metrale.cli.check", "check", "Run scenarios and compare their traces with the goldens beside them."),
    "accept": ("metrale.cli.accept", "accept", "Make pending traces the new goldens."),
    "lint": ("metrale.cli.lint", "lint", "Read logs against the trace grammar and the invariants."),
    "diff": ("metrale.cli.diff", "diff", "Show where two traces part, why, and what follows."),
    "explain": ("metrale.cli.explain", "explain", "Say in two sentences why two traces differ."),
    "report": ("metrale.cli.report", "report", "Write an HTML page on one trace or two."),
    "pending": ("metrale.cli.pending", "pending", "List pending traces by cause."),
    "review": ("metrale.cli.review", "review", "Decide about pending traces with single keys."),
    "fuzz": ("metrale.cli.fuzz", "fuzz", "Hunt for schedules that break a rule."),
    "shrink": ("metrale.cli.shrink", "shrink_command", "Reduce a failing scenario to the smallest that fails alike."),
    "explore": ("metrale.cli.explore", "explore_command", "Visit every schedule of a small world."),
    "mutants": ("metrale.cli.mutants", "mutants_command", "Plant faults and say what notices them."),
    "generate": ("metrale.cli.generate", "generate", "Continue texts with a model."),
    "conform": ("metrale.cli.conform", "conform", "Does the real engine keep what the mock promises?"),
}


class LazyGroup(click.Group):
    """A command group that knows its commands by the table and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            ctx.fail(f"no such command {name!r}{_suggestion(name)}")
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **more: Any) -> Any:
        try:
            value = super().main(*args, **more)
            sys.stdout.flush()
            return value
        except OSError as error:
            if error.filename is not None or error.errno not in _UNWRITABLE:
                raise
            _let_go_of_stdout()
            raise BadInput(f"standard output cannot be written: {error.strerror}") from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            value = super().invoke(ctx)
            sys.stdout.flush()
            return value
        except BrokenPipeError:
            _let_go_of_stdout()
            ctx.exit(PIPE_CLOSED)


def _suggestion(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, COMMANDS, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; one of {', '.join(COMMANDS)}"


def _let_go_of_stdout() -> None:
    """Nobody can read it any more: give the interpreter's last flush a place where it cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=LazyGroup, name="metrale", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="metrale", message="%(prog)s %(version)s")
def cli() -> None:
    """Deterministic simulation and trace verification for LLM inference schedulers.

    \b
    metrale run golden/plain_decode.toml     the trace of one scenario
    metrale check                            every scenario of golden/ against its trace
    """


def run_cli(args: Sequence[str] | None = None) -> int:
    """Run the program on ``args`` (default: the command line) and return its exit status; prints, never raises."""
    try:
        status = cli.main(args=args, prog_name="metrale", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except click.ClickException as problem:
        problem.message = plain(problem.message)
        problem.show()
        return problem.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception as fault:
        if os.environ.get("METRALE_DEBUG") == "1":
            raise
        if isinstance(fault, ModuleNotFoundError) and not (fault.name or "metrale").startswith("metrale"):
            say(f"Error: {fault}; `pip install 'metrale[engine]'` installs what every command needs")
            return BAD_INPUT
        text = " ".join(str(fault).split()) or "no message"
        say(
            f"Error: metrale failed, which is a fault of the program: {type(fault).__name__}: {text} "
            "(METRALE_DEBUG=1 shows where)"
        )
        return BAD_INPUT


def main() -> NoReturn:
    """The console script."""
    _prepare_streams()
    sys.exit(run_cli())


def _prepare_streams() -> None:
    """No character is too strange to be shown, and a closed standard output is one that cannot be written."""
    if sys.stdout is None:
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
