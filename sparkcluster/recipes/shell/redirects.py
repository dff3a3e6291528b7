"""Redirections: here-documents that are read, and files that they are written to."""

from __future__ import annotations

import dataclasses
import posixpath
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tree_sitter import Node

from sparkcluster.recipes.shell import expand
from sparkcluster.recipes.shell.marks import is_known, mark, shown
from sparkcluster.recipes.shell.script import Assumed
from sparkcluster.recipes.shell.syntax import statements, text_of, written

if TYPE_CHECKING:
    from sparkcluster.recipes.shell.evaluate import Evaluator

_SIGNS = frozenset({"&&", "||"})


@dataclasses.dataclass(slots=True)
class Redirects:
    """What a statement reads and writes.

    Attributes:
        stdin: a here-document or here-string.
        name: of the here-document.
        target: the file that its output goes to.
        appends: whether that keeps what is in it.
        words: arguments of the command behind a redirection.
        after: what follows on the same line, behind ``&&``, ``||``, or nothing of a pipe.
    """

    stdin: str | None = None
    name: str = ""
    target: str | None = None
    appends: bool = False
    words: list[str] = dataclasses.field(default_factory=list)
    after: list[tuple[str, Node]] = dataclasses.field(default_factory=list)


def read(run: Evaluator, node: Node) -> Redirects:
    """The redirections of a statement."""
    out = Redirects()
    for child in statements(node):
        if child.type == "file_redirect":
            _file(run, child, out)
        elif child.type == "herestring_redirect":
            out.stdin, out.name = " ".join(expand.text(run, part) for part in statements(child)), "<<<"
        elif child.type == "heredoc_redirect":
            _document(run, child, out)
    return out


def _file(run: Evaluator, node: Node, out: Redirects) -> None:
    # the grammar takes what follows a redirection for more of its targets
    for more in node.children_by_field_name("destination")[1:]:
        out.words += expand.fields(run, more)
    sign = next((text_of(child) for child in node.children if not child.is_named), "")
    destination = node.child_by_field_name("destination")
    if sign in {">", ">>", ">|"} and destination is not None and node.child_by_field_name("descriptor") is None:
        out.target, out.appends = expand.text(run, destination), sign == ">>"


def _document(run: Evaluator, node: Node, out: Redirects) -> None:
    start, sign, tabs = "", "", text_of(node.children[0]) == "<<-"
    out.stdin = ""
    for child in node.children:
        if child.type == "heredoc_start":
            start = text_of(child)
        elif child.type == "heredoc_body":
            text = expand.here_document(run, child, literal=bool(set(start) & set("'\"\\")))
            out.stdin = "\n".join(line.lstrip("\t") for line in text.split("\n")) if tabs else text
        elif child.type == "file_redirect":
            _file(run, child, out)
        elif child.type in _SIGNS:
            sign = child.type
        elif child.type == "pipeline":
            out.after += [("", part) for part in statements(child)]
        elif child.is_named and child.type not in {"heredoc_end", "comment"}:
            if sign:
                out.after.append((sign, child))
            else:
                out.words += expand.fields(run, child)
    out.name = start.strip("'\"\\")


def echoed(words: Sequence[str]) -> str | None:
    """What ``echo`` prints; None with escapes that it interprets."""
    count = next((at for at, word in enumerate(words[1:]) if not re.fullmatch(r"-[neE]+", word)), len(words) - 1)
    flags, text = "".join(words[1 : count + 1]), " ".join(words[count + 1 :])
    if flags.rfind("e") > flags.rfind("E") and "\\" in text:
        return None
    return text if "n" in flags else f"{text}\n"


def lose(run: Evaluator, path: str, node: Node) -> None:
    """A file gets content that is not followed."""
    run.state.files[path] = None
    run.script.rewritten[path] = Assumed(run.line(node), shown(written(node).partition("\n")[0]))


def keep(run: Evaluator, body: Node, found: Redirects) -> None:
    """Remember the content of a file that ``body`` writes a here-document or an ``echo`` to."""
    words = run.words(list(statements(body)))
    while words[:1] == ["sudo"]:
        words = words[1:]
    content = found.stdin
    if words[:1] == ["echo"]:
        content = echoed(words)
    elif words[:1] == ["tee"]:
        names = [word for word in words[1:] if not word.startswith("-")]
        found.target, found.appends = (names[0] if names else None), "-a" in words
    if found.target is None:
        return
    name = run.state.path(found.target)
    before = run.state.files.get(name) if found.appends else ""
    if content is None or before is None or words[:1] not in (["cat"], ["tee"], ["echo"]) or words[1:2] == ["-"]:
        lose(run, name, body)
    else:
        run.state.files[name] = before + content


_READS = frozenset(
    {"cat", "chmod", "ls", "docker", "podman", "bash", "sh", "head", "tail", "grep", "echo", "scp", "nohup", "exec"}
)


_COPIES = frozenset({"cp", "mv", "install"})


def after(run: Evaluator, node: Node, words: list[str]) -> None:
    """What a program does to the files of the text, and ``cd`` to the directory that it is in."""
    names = [word for word in words if word != "sudo"]
    program = names[0].rpartition("/")[2] if names else ""
    operands = [word for word in names[1:] if not word.startswith("-")]
    state = run.state
    if program in {"cd", "pushd"}:
        there = operands[0] if len(operands) == 1 else "~" if program == "cd" and not names[1:] else mark("PWD")
        state.directory = state.path(there) if is_known(there) else mark(f"PWD {there}")
    elif program == "popd":
        state.directory = mark("PWD")
    elif program in _COPIES and len(operands) >= 2 and state.path(operands[-2]) in state.files:
        source, target = state.path(operands[-2]), operands[-1]
        # where `target` is a directory
        for name in (target, posixpath.join(target, posixpath.basename(source))):
            state.files[state.path(name)] = state.files[source]
            run.script.copies[state.path(name)] = source
        if program == "mv":
            lose(run, source, node)
    elif program == "tee" or program not in _READS:
        for word in operands:
            if program == "tee" or state.path(word) in state.files:
                lose(run, state.path(word), node)


def ended_by_line(node: Node, children: Sequence[Node]) -> int:
    """How many assignments at the beginning of a command are statements of their own.

    After two assignments on a line the grammar takes the command on the next line for theirs.
    """
    count = next((at for at, child in enumerate(children) if child.type != "variable_assignment"), 0)
    if count == 0:
        return 0
    whole, base = node.text or b"", node.start_byte
    between = whole[children[count - 1].end_byte - base : children[count].start_byte - base]
    return count if re.search(rb"(?<!\\)\n", between) else 0


def left_out(name: str) -> str:
    """The note about a here-document that is not followed."""
    return f"the here-document {shown(name)}: write its content to a file"
