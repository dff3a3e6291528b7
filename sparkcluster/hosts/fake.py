"""A fake node for tests: it returns scripted results and records commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from sparkcluster.hosts.base import Closing, Result

# Result of a command: a Result, the text of its output, an error, or a function of argv and stdin.
Answer = Result | str | Exception | Callable[[Sequence[str], bytes], Result]


class FakeHost:
    """Scripted by ``on`` and ``program`` (the last match wins); records ``calls``."""

    def __init__(self, name: str = "spark-1") -> None:
        self.name = name
        self.user = "spark"
        self.python: str | None = None
        self.calls: list[tuple[list[str], bytes]] = []
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.closed = False
        self._answers: list[tuple[list[str], Answer]] = []
        self._programs: dict[str, Callable[[dict[str, Any]], Any]] = {}

    def on(self, *words: str, answer: Answer = "") -> Self:
        """Set the result of commands that start with ``words``."""
        self._answers.insert(0, (list(words), answer))
        return self

    def program(self, module: str, answer: Callable[[dict[str, Any]], Any] | dict[str, Any]) -> Self:
        """Set the result of the program ``module``: a document, a list of lines, or a function of the request."""
        self._programs[module] = answer if callable(answer) else lambda _: answer
        return self

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30) -> Result:
        """The scripted result; exit code 127 if nothing matches."""
        del timeout_s
        self.calls.append((list(argv), stdin))
        if stdin.startswith(b'{"start": '):
            boot = json.loads(stdin.split(b"\n", 1)[0])
            module = boot["program"]
            self.requests.append((module, boot["request"]))
            if module in self._programs:
                answer = self._programs[module](boot["request"])
                lines = answer if isinstance(answer, list) else [answer]
                return Result(0, "".join(json.dumps(line) + "\n" for line in lines).encode(), b"")
        for words, answer in self._answers:
            if list(argv[: len(words)]) == words:
                if isinstance(answer, Exception):
                    raise answer
                if isinstance(answer, str):
                    return Result(0, answer.encode(), b"")
                return answer if isinstance(answer, Result) else answer(argv, stdin)
        return Result(127, b"", f"{argv[0]}: not scripted".encode())

    def stream(self, argv: Sequence[str], *, stdin: bytes = b"") -> FakeStream:
        """A stream with the lines of the scripted result."""
        return FakeStream(self.run(argv, stdin=stdin), self.name)

    def renew(self) -> None:
        """Does nothing: there is no connection."""

    def close(self) -> None:
        """Record that it was closed."""
        self.closed = True


class FakeStream(Closing):
    """The lines of a Result; ``sent`` has the input that was written."""

    def __init__(self, result: Result, name: str = "fake") -> None:
        self.name = name
        self._result = result
        self.sent = b""
        self.closed = False

    def lines(self, silence_s: float, **limits: float) -> Iterator[bytes]:
        """The output, line by line."""
        del silence_s, limits
        yield from self._result.stdout.splitlines()

    def send(self, data: bytes) -> None:
        """Add ``data`` to ``sent``."""
        self.sent += data

    def finish(self) -> Result:
        """The result."""
        self.closed = True
        return self._result

    def close(self) -> None:
        """Record that it was closed."""
        self.closed = True
