"""Progress of a command: live on a terminal, plain lines in a pipe, JSON lines for programs."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Self, TextIO

from sparkcluster.cli import transfers
from sparkcluster.cli.output import in_colour, moves, noted, paint, rich_text, write
from sparkcluster.report import Report, Transfer

STILL_S = 15
COPY_S = 5
SILENT_S = 2


def reporter(*, as_json: bool = False, json_lines: bool = False) -> Shown:
    """The Report for this output: stderr, except that JSON lines are data on stdout."""
    if json_lines:
        return JsonLines(sys.stdout)
    return Lines(sys.stderr) if as_json or not moves(sys.stderr) else Screen(sys.stderr)


@contextmanager
def awaiting(text: str) -> Iterator[Shown]:
    """Show what a command waits for, once it has taken ``SILENT_S``; leaves nothing on the screen."""
    with Screen(sys.stderr, after_s=SILENT_S) if moves(sys.stderr) else Lines(sys.stderr) as shown:
        shown.step("", text)
        yield shown


class Shown(Report):
    """Steps in columns: name, text, seconds; each gets a line when it ends.

    After the block nothing is written, even if other threads still report: the result or error comes last.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._name = self._text = self._log = ""
        self._well, self._ended = True, set[str]()
        self.began = clock()
        self._nodes: dict[str, Any] = {}
        self._rates = transfers.Rates()
        self._transfers: dict[str, Any] = {}

    def step(self, name: str, text: str = "") -> None:
        """Begin a step, or change the text of the current one; a repeated step has no line of its own."""
        with self._lock:
            if self._name and self._well and name in self._ended:
                return
            if name != self._name or not self._well:
                self._end()
                self._name, self._text, self.began = name, "", self._clock()
            self._text = text or self._text

    def failed(self) -> None:
        """Mark the current step as failed."""
        self._well = False

    def done(self) -> None:
        """End the current step; the steps before it may be repeated."""
        with self._lock:
            self._end()
            self._ended.clear()

    def _end(self) -> None:
        """Write a line for the current step."""
        if self._name:
            self._line(paint("✓", "good") if self._well else paint("✗", "bad"), *self._columns(1))
        self._ended = self._ended | {self._name} if self._well else set()
        self._name, self._log, self._well = "", "", True
        self._nodes.clear()
        self._transfers.clear()

    def _columns(self, digits: int) -> tuple[str, str]:
        name, seconds = self._name and f"{self._name:<9}", f"{self._clock() - self.began:.{digits}f} s"
        return f" {name}{self._text:<48}", paint(f" {seconds:>8}", "dim")

    def note(self, text: str) -> None:
        """Write a permanent line."""
        for line in noted(self._stream, text):
            self._line(*line)

    def _line(self, *parts: str) -> None:
        with self._lock:
            if not self._over.is_set():
                write(self._stream, *parts)
                self._stream.flush()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Write nothing within the block."""
        with self._lock:
            yield

    def end(self) -> None:
        """Write nothing more; calling it again does nothing."""
        if not self._over.is_set():
            self.__exit__(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        with self._lock:
            self._well = self._well and kind is None
            self.done()
            self._over.set()


class Lines(Shown):
    """For a pipe: also writes what takes long, with its age, since a silent log looks like a hang."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._tick, daemon=True).start()
        return self

    def _tick(self) -> None:
        while not self._over.wait(1):
            self.tell()

    def step(self, name: str, text: str = "") -> None:
        """Begin a step, or change its text."""
        super().step(name, text)
        self.progress(self._name, self._text)

    def progress(self, node: str, text: str) -> None:
        """What a node is doing; a new first word begins a new phase."""
        with self._lock:
            now = self._clock()
            before, since, shown_at = self._nodes.get(node, ("", now, None))
            new = before.split(" ")[:1] != text.split(" ")[:1]
            self._nodes[node] = (text, now, None) if new else (text, since, shown_at)
        self.tell()

    def tell(self) -> None:
        """Write lines for what takes long: after ``SILENT_S``, then every ``STILL_S``; the step's if no node has any.

        While copying, where each line differs: immediately, then every ``COPY_S``.
        """
        with self._lock:
            now, copies = self._clock(), self._name == "copy"
            first, more = (0, COPY_S) if copies else (SILENT_S, STILL_S)
            for node, (text, since, shown_at) in list(self._nodes.items()):
                due = since + first if shown_at is None else shown_at + more
                if text and now >= due and (node != self._name or (len(self._nodes) == 1 and not copies)):
                    self._nodes[node] = text, since, now
                    age = "" if shown_at is None or copies else f", for {now - since:.0f} s"
                    self._line(f"  {node}: " if node else "", text, age)

    def transfer(self, transfer: Transfer) -> None:
        """Progress of a node's copy."""
        with self._lock:
            rate = self._rates.add(transfer, self._clock())
            self.progress(transfer.node, transfers.line(transfer, rate) if transfer.state == "copying" else "")


class JsonLines(Shown):
    """Writes every event as a JSON document on stdout."""

    def _event(self, **document: Any) -> None:
        self._line(json.dumps({"at": round(time.time(), 3), **document}))

    def step(self, name: str, text: str = "") -> None:
        """``{"event": "step", "name", "text"}``."""
        self._event(event="step", name=name, text=text)

    def progress(self, node: str, text: str) -> None:
        """``{"event": "progress", "node", "text"}``, when it changes."""
        if self._nodes.get(node) != text:
            self._nodes[node] = text
            self._event(event="progress", node=node, text=text)

    def transfer(self, transfer: Transfer) -> None:
        """``{"event": "transfer", …}``, when it changes."""
        with self._lock:
            rate = self._rates.add(transfer, self._clock())
            if self._transfers.get(transfer.node) != transfer:
                self._transfers[transfer.node] = transfer
                self._event(**transfers.as_json(transfer, rate))

    def note(self, text: str) -> None:
        """``{"event": "note", "text"}``."""
        self._event(event="note", text=text)


class Screen(Shown):
    """For a terminal: shows live, below the finished steps, what each node is doing; drawn after ``after_s``."""

    def __init__(self, stream: TextIO, *, after_s: float = 0) -> None:
        super().__init__(stream)
        self._after_s = after_s
        self._live: Any = None

    @cached_property
    def _console(self) -> Any:
        from rich.console import Console

        # With NO_COLOR, rich by itself would still write bold and dim.
        return Console(file=self._stream, highlight=False, color_system="auto" if in_colour(self._stream) else None)

    @cached_property
    def _spinner(self) -> Any:
        from rich.spinner import Spinner

        return Spinner("dots")

    def _draw(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        if not (self._name or self._text):
            return Text("")
        # Without the lock: its owner may be waiting for the drawing thread.
        self._spinner.update(text=Text.assemble(*map(rich_text, self._columns(0)), end="")[1:])
        doing = Table.grid(padding=(0, 2))
        doing.add_column(no_wrap=True)
        doing.add_column(overflow="ellipsis", no_wrap=True)
        for node, text in list(self._nodes.items()):
            doing.add_row(rich_text(f"  {node}"), rich_text(text))
        moving = transfers.table(list(self._transfers.values()))
        log = rich_text(self._log)
        log.style, log.no_wrap = "dim", True
        log.truncate(self._console.width - 4, overflow="ellipsis")  # room for the ^C that a terminal shows
        return Group(self._spinner, moving, doing, log)

    def _line(self, *parts: str) -> None:
        from rich.text import Text

        if not self._over.is_set():
            self._console.print(Text.assemble(*map(rich_text, parts)), soft_wrap=True)

    def progress(self, node: str, text: str) -> None:
        """What a node is doing."""
        if text:
            self._nodes[node] = text

    def transfer(self, transfer: Transfer) -> None:
        """Progress of a node."""
        self._transfers[transfer.node] = transfer, self._rates.add(transfer, self._clock())

    def log(self, node: str, line: str) -> None:
        """The last log line of the rank that the others wait for."""
        self._log = f"  {node} | {line.strip()}"

    def confirm(self, question: str) -> bool:
        """Whether the user answers yes to ``question``; False without a terminal."""
        from sparkcluster.cli.prompts import Terminal

        return Terminal(self.paused).confirm(question)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Draw nothing within the block; the time in it is the user's and not counted for the step."""
        asked = self._clock()
        self._stop()
        yield
        self.__enter__()
        self.asked_s += self._clock() - asked
        self.began += self._clock() - asked

    def _start(self) -> None:
        """Start a new display: a display that was stopped would first erase what it drew before.

        If stdout is not a terminal, data bypasses the display.
        """
        from rich.live import Live

        data = sys.stdout.isatty()
        self._live = Live(get_renderable=self._draw, console=self._console, transient=True, redirect_stdout=data)
        self._live.start()

    def _stop(self) -> None:
        self._timer.cancel()
        if self._timer.is_alive():
            self._timer.join()
        if self._live is not None:
            self._live.stop()

    def __enter__(self) -> Self:
        self._timer = threading.Timer(self._after_s, self._start)
        self._timer.daemon = True
        if self._after_s:
            self._timer.start()
        else:
            self._start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop()
        super().__exit__(*exception)
