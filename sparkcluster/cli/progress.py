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
    """The Report for this output: to stderr, except JSON lines, which are data."""
    if json_lines:
        return JsonLines(sys.stdout)
    return Lines(sys.stderr) if as_json or not moves(sys.stderr) else Screen(sys.stderr)


@contextmanager
def awaiting(text: str) -> Iterator[Shown]:
    """Show within the block what a command waits for, once that has taken ``SILENT_S``; leaves nothing."""
    with Screen(sys.stderr, after_s=SILENT_S) if moves(sys.stderr) else Lines(sys.stderr) as shown:
        shown.step("", text)
        yield shown


class Shown(Report):
    """Steps in columns: name, what, seconds, with a line for each once it ends.

    After the block nothing is written: the result, or the error, is last, whatever other threads still report.
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
        """A step begins, or goes on with another text; the one before is done, unless it does again what was done."""
        with self._lock:
            if self._name and self._well and name in self._ended:
                return
            if name != self._name or not self._well:
                self._end()
                self._name, self._text, self.began = name, "", self._clock()
            self._text = text or self._text

    def failed(self) -> None:
        """The step that is under way failed."""
        self._well = False

    def done(self) -> None:
        """The step that is under way is done, and those before it may begin again."""
        with self._lock:
            self._end()
            self._ended.clear()

    def _end(self) -> None:
        """Write a line for the step that is under way."""
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
        """A line that stays."""
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
        """Write nothing more; a second call does nothing."""
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
    """In a pipe: also what lasts, with its age, as a log without news looks like a hang."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._tick, daemon=True).start()
        return self

    def _tick(self) -> None:
        while not self._over.wait(1):
            self.tell()

    def step(self, name: str, text: str = "") -> None:
        """A step begins, or goes on."""
        super().step(name, text)
        self.progress(self._name, self._text)

    def progress(self, node: str, text: str) -> None:
        """What a node is doing, in a phase that begins with another word than the one before."""
        with self._lock:
            now = self._clock()
            before, since, told = self._nodes.get(node, ("", now, None))
            new = before.split(" ")[:1] != text.split(" ")[:1]
            self._nodes[node] = (text, now, None) if new else (text, since, told)
        self.tell()

    def tell(self) -> None:
        """A line for what lasts: after ``SILENT_S``, then every ``STILL_S``, of nodes or the step if none has one.

        In a copy, where each says something else, at once, then every ``COPY_S``.
        """
        with self._lock:
            now, copies = self._clock(), self._name == "copy"
            first, more = (0, COPY_S) if copies else (SILENT_S, STILL_S)
            for node, (text, since, told) in list(self._nodes.items()):
                due = since + first if told is None else told + more
                if text and now >= due and (node != self._name or (len(self._nodes) == 1 and not copies)):
                    self._nodes[node] = text, since, now
                    age = "" if told is None or copies else f", for {now - since:.0f} s"
                    self._line(f"  {node}: " if node else "", text, age)

    def transfer(self, transfer: Transfer) -> None:
        """How far a node is, while it copies."""
        with self._lock:
            rate = self._rates.add(transfer, self._clock())
            self.progress(transfer.node, transfers.line(transfer, rate) if transfer.state == "copying" else "")


class JsonLines(Shown):
    """Every event as one JSON document on stdout."""

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
    """On a terminal: below the steps that ended, live, what each node is doing; drawn once ``after_s`` are over."""

    def __init__(self, stream: TextIO, *, after_s: float = 0) -> None:
        super().__init__(stream)
        self._after_s = after_s
        self._live: Any = None

    @cached_property
    def _console(self) -> Any:
        from rich.console import Console

        # With NO_COLOR alone rich still writes bold and dim.
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
        # Without the lock: who holds it may be waiting for what draws.
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
        """How far a node is."""
        self._transfers[transfer.node] = transfer, self._rates.add(transfer, self._clock())

    def log(self, node: str, line: str) -> None:
        """The last log line of the rank that others wait for."""
        self._log = f"  {node} | {line.strip()}"

    def confirm(self, question: str) -> bool:
        """Whether the user answers ``question`` with yes; no where nobody can be asked."""
        from sparkcluster.cli.prompts import Terminal

        return Terminal(self.paused).confirm(question)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Draw nothing within the block, whose time, that of the user, counts for no step."""
        asked = self._clock()
        self._stop()
        yield
        self.__enter__()
        self.asked_s += self._clock() - asked
        self.began += self._clock() - asked

    def _start(self) -> None:
        """Draw, with a new display each time, as one that was stopped erases first what it drew before.

        Data goes past it where stdout is no terminal.
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
