"""Progress of a command: a live table on a terminal, plain lines in a pipe, JSON lines for programs."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TextIO

from sparkcluster.cli import transfers
from sparkcluster.cli.output import in_colour, moves, noted, rich_text, write
from sparkcluster.printable import LINES, clean
from sparkcluster.report import Report, Transfer

if TYPE_CHECKING:
    from rich.live import Live

QUIET_S = 5
STILL_S = 15
SILENT_S = 2
EVENT_S = 1


def reporter(*, as_json: bool, json_lines: bool, stream: TextIO | None = None) -> Shown:
    """The Report for this output: to stderr, except JSON lines, which are data."""
    err = stream or sys.stderr
    if json_lines:
        return JsonLines(sys.stdout)
    if as_json or not moves(err):
        return Lines(err)
    return Screen(err)


class Waiting:
    """Reports on stderr what a command waits for, after two seconds; a context manager.

    On a terminal the line counts the seconds and is cleared; elsewhere it is repeated every ``STILL_S``.
    """

    def __init__(self, text: str, stream: TextIO | None = None) -> None:
        self.text = text
        self._stream = stream or sys.stderr
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._moving = moves(self._stream)
        self._shown = False
        self._thread = threading.Thread(target=self._report, daemon=True)

    def _report(self) -> None:
        began, pause = time.monotonic(), float(SILENT_S)
        while not self._over.wait(pause):
            pause = 1.0 if self._moving else float(STILL_S)
            begin, end = ("\r", "\x1b[K") if self._moving else ("", "\n")
            with self._lock:
                write(self._stream, f"{self.text}, {time.monotonic() - began:.0f} s", begin=begin, end=end)
                self._stream.flush()
                self._shown = self._moving
        self._clear()

    def _clear(self) -> None:
        if self._shown:
            write(self._stream, end="\r\x1b[K")
            self._stream.flush()
            self._shown = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Write nothing within the block."""
        with self._lock:
            self._clear()
            yield

    def end(self) -> None:
        """Stop reporting; a second call does nothing."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()


class Lines(Report):
    """One line per step and per change of a node's phase, not per change of a number in it.

    A phase that lasts is repeated every ``STILL_S`` with its age: a log without news looks like a hang.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._since: dict[str, float] = {}
        self._lock = threading.Lock()
        self._over = False
        self._shown: dict[str, tuple[str, float]] = {}
        self._rates = transfers.Rates()
        self._transfers: dict[tuple[str, str], tuple[Transfer, float]] = {}

    def _write(self, *parts: str) -> None:
        with self._lock:
            if self._over:
                return
            write(self._stream, *parts)
            self._stream.flush()

    def step(self, name: str, text: str = "") -> None:
        """A step begins."""
        self._write(f"{name}: {text}" if text else name)

    def progress(self, node: str, text: str) -> None:
        """What a node is doing; the same phase is repeated only after a while."""
        before, when = self._shown.get(node, ("", 0.0))
        now = self._clock()
        if text == before:
            if text and now - when >= STILL_S:
                self._shown[node] = (text, now)
                self._write(f"  {node}: {text}, for {now - self._since[node]:.0f} s now")
            return
        same_phase = before.split(" ")[:1] == text.split(" ")[:1]
        if not text or (same_phase and now - when < QUIET_S):
            return
        self._shown[node] = (text, now)
        self._since[node] = now
        self._write(f"  {node}: {text}")

    def transfer(self, transfer: Transfer) -> None:
        """How far a node is: a line at its begin, its end and where its source changes, else every ``QUIET_S``."""
        due, rate = self._due(transfer, QUIET_S)
        if due:
            line = transfers.line(transfer, rate)
            self._write(f"  {transfers.plain(line, self._stream.encoding)}")

    def _due(self, transfer: Transfer, pause_s: float) -> tuple[bool, float | None]:
        """Whether ``transfer`` is to be shown now, and its rate."""
        now, key = self._clock(), (transfer.what, transfer.node)
        with self._lock:
            rate = self._rates.add(transfer, now)
            before, when = self._transfers.get(key, (None, 0.0))
            same = before is not None and (before.source, before.state) == (transfer.source, transfer.state)
            if same and (now - when < pause_s or transfer.state != "copying"):
                return False, rate
            self._transfers[key] = (transfer, now)
        return True, rate

    def note(self, text: str) -> None:
        """A line that stays."""
        for line in noted(self._stream, text):
            self._write(*line)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Write nothing within the block."""
        with self._lock:
            yield

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Write nothing more: the result, or the error, is the last line, whatever other threads still report."""
        with self._lock:
            self._over = True


class JsonLines(Lines):
    """Every event as one JSON document on stdout."""

    def _event(self, **document: Any) -> None:
        self._write(json.dumps({"at": round(time.time(), 3), **document}))

    def step(self, name: str, text: str = "") -> None:
        """``{"event": "step", "name", "text"}``."""
        self._event(event="step", name=name, text=text)

    def progress(self, node: str, text: str) -> None:
        """``{"event": "progress", "node", "text"}``, when it changes."""
        if self._shown.get(node, ("", 0.0))[0] != text:
            self._shown[node] = (text, 0.0)
            self._event(event="progress", node=node, text=text)

    def transfer(self, transfer: Transfer) -> None:
        """``{"event": "transfer", …}``, at most once in ``EVENT_S`` of a node while its source is the same."""
        due, rate = self._due(transfer, EVENT_S)
        if due:
            self._event(**transfers.as_json(transfer, rate))

    def note(self, text: str) -> None:
        """``{"event": "note", "text"}``."""
        self._event(event="note", text=text)


class Screen(Report):
    """Steps as lines that stay; below them, live, what each node is doing."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.spinner import Spinner

        # With NO_COLOR alone rich still writes bold and dim.
        self._stream = stream
        self._console = Console(file=stream, highlight=False, color_system="auto" if in_colour(stream) else None)
        self._nodes: dict[str, str] = {}
        self._rates = transfers.Rates()
        self._transfers: dict[tuple[str, str], Transfer] = {}
        self._step = ""
        self._log = ""
        self._well = True
        self._began = time.monotonic()
        self._spinner = Spinner("dots")
        self._live = self._display()

    def _display(self) -> Live:
        """What draws: a new one for each start, since one that was stopped erases first what it drew before.

        Data goes past it where stdout is no terminal.
        """
        from rich.live import Live

        return Live(
            get_renderable=self._draw,
            console=self._console,
            refresh_per_second=4,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
        )

    def _draw(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        if not self._step:
            return Text("")
        seconds = f"  {time.monotonic() - self._began:.0f} s"
        head = Text.assemble((self._step, "bold"), (seconds, "dim"))
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(overflow="ellipsis", no_wrap=True)
        for node, text in self._nodes.items():
            table.add_row(Text(f"  {node}"), Text(text))
        self._spinner.update(text=head)
        moving = [Text(line, no_wrap=True, overflow="ellipsis") for line in self._moving()]
        log = [Text(f"  {self._log}", "bright_black", no_wrap=True, overflow="ellipsis")] if self._log else []
        return Group(self._spinner, *moving, table, *log)

    def _moving(self) -> list[str]:
        """The chain of each artifact, and a row for each node."""
        now, width = time.monotonic(), self._console.width - 2
        shown = dict(self._transfers)
        rates = {key: self._rates.rate(each, now) for key, each in shown.items()}
        lines = [*transfers.chain(shown, width=width), *transfers.rows(shown, rates, width=width)]
        return [transfers.plain(f"  {clean(line)}", self._console.encoding) for line in lines]

    def step(self, name: str, text: str = "") -> None:
        """A step begins; the previous one is done. A step that begins again goes on."""
        began = clean(f"{name}  {text}" if text else name)
        if began == self._step and self._well:
            return
        self._keep(well=self._well)
        self._well, self._step, self._log = True, began, ""
        self._began = time.monotonic()
        self._nodes.clear()
        self._transfers.clear()

    def progress(self, node: str, text: str) -> None:
        """What a node is doing."""
        if text:
            self._nodes[clean(node)] = clean(text)

    def transfer(self, transfer: Transfer) -> None:
        """How far a node is."""
        self._rates.add(transfer, time.monotonic())
        self._transfers[transfer.what, transfer.node] = transfer

    def log(self, node: str, line: str) -> None:
        """The last log line of the rank that others wait for."""
        self._log = clean(f"{node} | {line.strip()}")

    def note(self, text: str) -> None:
        """A line that stays."""
        from rich.text import Text

        for line in noted(self._stream, text):
            self._console.print(Text.assemble(*map(rich_text, line)), soft_wrap=True)

    def failed(self) -> None:
        """The step that is under way failed."""
        self._well = False

    def done(self) -> None:
        """The step that is under way is done."""
        self._keep(well=self._well)
        self._step, self._log = "", ""
        self._nodes.clear()
        self._transfers.clear()

    def _keep(self, *, well: bool) -> None:
        """Print a line for the step that ended, if there was one."""
        from rich.text import Text

        if self._step:
            mark, colour = ("✓", "green") if well else ("✗", "red")
            seconds = f"  {time.monotonic() - self._began:.1f} s"
            self._console.print(Text.assemble((mark, colour), f" {self._step}", (seconds, "dim")))

    def confirm(self, question: str) -> bool:
        """Whether the user answers ``question`` with yes; no where the input is not a terminal."""
        if not sys.stdin.isatty():
            return False
        with self.paused():
            write(sys.stderr, question, end=" [y/N] ", keep=LINES)
            sys.stderr.flush()
            return sys.stdin.readline().strip().lower() in {"y", "yes"}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Draw nothing within the block."""
        self._live.stop()
        try:
            yield
        finally:
            self._live = self._display()
            self._live.start()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        self._live.stop()
        self._keep(well=self._well and kind is None)


Shown = Lines | Screen
