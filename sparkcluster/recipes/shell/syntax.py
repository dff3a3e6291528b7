"""Shell text as a syntax tree."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

import tree_sitter
import tree_sitter_bash
from tree_sitter import Node

from sparkcluster.errors import UsageError
from sparkcluster.recipes.shell.marks import hidden, shown, with_brackets, with_places

# A blank behind the backslash of a continued line is a slip of copying; a shell would take it for a word.
_CONTINUED = re.compile(r"\\[ \t\r]+(?=\n|$)")
QUOTES = frozenset("'\"`")
# A comment in the middle of a continued command, which prints nothing; the grammar does not end it.
# Quotes and other comments are matched as well, to be left as they are.
_COMMENT = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.|(?<!\S)#[^\n]*|(`#[^`\n]*`)", re.DOTALL)
# `$ docker run …`, `user@host:~$ …`, `(venv) $ …`, and the `>` of a continued line
_PROMPTS = re.compile(
    r"^[ \t]*+(?:\([\w.-]++\)[ \t]*+)?(?:[\w.-]++@[\w.-]++:[^\s$#]*+)?[ \t]*+\$[ \t]++(?=\S)"
    r"|(?<=\\\n)[ \t]*+>[ \t]++(?=\S)",
    re.MULTILINE,
)
MAX_TEXT = 1 << 18


@functools.cache
def _parser() -> tree_sitter.Parser:
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def tree(text: str, where: str, line: int = 0) -> Node:
    """The root of the syntax tree of ``text``; ``where`` is its file, ``line`` where it begins in that, 0 for the file.

    Raises:
        UsageError: a quote or a bracket is never closed, or the text is too long for a script.
    """
    if len(text) > MAX_TEXT:
        raise UsageError(f"{where}: a script of more than {MAX_TEXT >> 10} KiB", hint="is this the right file?")
    text = _CONTINUED.sub(r"\\", text.replace("\r\n", "\n")).rstrip("\\")
    text = _COMMENT.sub(lambda found: "" if found[1] else found[0], _PROMPTS.sub("", text))
    root = _parser().parse(with_places(hidden(text)).encode()).root_node
    if root.has_error and (found := unclosed(text)):
        opened, at = found
        kind = "quote" if opened in QUOTES else "bracket"
        raise UsageError(
            f"{where}:{line or at}: a {kind} ({opened}) is not closed",
            hint="copy the whole command",
        )
    if "<<" in text:
        _ensure_ended(root, where, line)
    return root


def _ensure_ended(root: Node, where: str, line: int) -> None:
    """The line that ends a here-document has nothing else on it; the grammar takes ``EOF;;`` for one as well.

    Raises:
        UsageError: it has, or there is none.
    """
    # its text begins where its first statement does
    whole, nodes = b"\0" * root.start_byte + (root.text or b""), [root]
    while nodes:
        node = nodes.pop()
        nodes += node.children
        if node.type != "heredoc_start":
            continue
        beside = node.parent.children if node.parent is not None else []
        end = next((child for child in beside if child.type == "heredoc_end" and not child.is_missing), None)
        if end is None or whole[end.end_byte : end.end_byte + 1] not in {b"", b"\n"}:
            raise UsageError(
                f"{where}:{line or node.start_point[0] + 1}: the here-document {shown(text_of(node))} is not closed",
                hint="write its name alone on the line behind it",
            )


def slips(text: str) -> list[int]:
    """Lines with a blank behind the backslash that continues them, with which a shell would not continue them."""
    lines = text.replace("\r\n", "\n").split("\n")
    return [at for at, line in enumerate(lines, start=1) if _CONTINUED.search(line) and at < len(lines)]


def text_of(node: Node) -> str:
    """What a node was written as."""
    return (node.text or b"").decode(errors="replace")


def written(node: Node) -> str:
    """What a node was written as, for a reader or for a shell: with its placeholders."""
    return with_brackets(text_of(node))


def words(node: Node) -> list[Node]:
    """The parts of a simple command; the grammar has operators of tests for words of their own."""
    return [
        child for child in node.children if (child.is_named and child.type != "comment") or child.type in {"==", "=~"}
    ]


def statements(node: Node) -> Iterator[Node]:
    """The named children of a node without its comments."""
    return (child for child in node.named_children if child.type != "comment")


_TOKEN = re.compile(r"\\.|\$\{|\$?\(|[)}'\"`\n]|(?<![^\s;])#[^\n]*", re.DOTALL)
_CLOSING = {"'": "'", '"': '"', "`": "`", "${": "}", "(": ")", "$(": ")"}


def unclosed(text: str) -> tuple[str, int] | None:
    """The first quote or bracket that is opened and never closed, and its line; None where all are closed."""
    opened: list[tuple[str, int]] = []
    line = 1
    for found in _TOKEN.finditer(text):
        token, inside = found[0], opened[-1][0] if opened else ""
        if token == _CLOSING.get(inside):
            opened.pop()
        elif inside == "'" or (inside == '"' and token[0] not in "$`"):
            pass  # literal
        elif token in _CLOSING:
            opened.append((token, line))
        line += token.count("\n")
    return opened[0] if opened else None
