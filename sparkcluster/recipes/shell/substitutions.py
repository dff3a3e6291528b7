"""``$(…)``: what it prints, where that is nothing but text of the script."""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import TYPE_CHECKING

from tree_sitter import Node

from sparkcluster.recipes.shell import redirects
from sparkcluster.recipes.shell.marks import is_known, mark, with_brackets
from sparkcluster.recipes.shell.script import Status
from sparkcluster.recipes.shell.syntax import statements, text_of

if TYPE_CHECKING:
    from sparkcluster.recipes.shell.evaluate import Evaluator


def printed(run: Evaluator, node: Node) -> str:
    """What ``$(…)`` prints, where that is nothing but text of the script."""
    inner = re.sub(r"^\$\(|^`|\)$|`$", "", with_brackets(text_of(node).strip())).strip()
    children = list(statements(node))
    run.substituted = Status.NO if inner == "false" else Status.MAYBE
    found = "" if not children else None
    file = re.fullmatch(r"<\s*([\w./-]+)", inner)
    if file is not None:
        found = run.state.files.get(run.state.path(file[1]))
    elif len(children) == 1 and children[0].type == "redirected_statement":
        body = children[0].child_by_field_name("body")
        document = run.here_document_of(children[0])
        if body is not None and document is not None and text_of(body) == "cat":
            found = document
    elif len(children) == 1 and children[0].type == "pipeline":
        found = _words_of_file(run, children[0])
    elif len(children) == 1 and children[0].type == "command":
        words = run.words(list(statements(children[0])))
        found = _printed(run, words) if all(map(is_known, words)) else None
    if found is None:
        _run(run, children if file is None else [])
        return mark(f"({inner})")
    run.substituted = Status.YES
    return found.rstrip("\n")


def _run(run: Evaluator, children: list[Node]) -> None:
    """What is in ``$(…)`` runs as well: it may start a container, or the engine."""
    before, run.silent = run.silent, True
    unsure, substituted, last = run.unsure, run.substituted, run.last
    for child in children:
        run.subshell(child)
    run.silent, run.unsure, run.substituted, run.last = before, unsure, substituted, last


def _words_of_file(run: Evaluator, node: Node) -> str | None:
    """What ``cat FILE | xargs`` prints of a file of the text, or ``grep -v '^#' FILE | xargs``; None of another."""
    parts = list(statements(node))
    if len(parts) != 2 or any(part.type != "command" for part in parts) or text_of(parts[1]).split() != ["xargs"]:
        return None
    words = run.words(list(statements(parts[0])))
    content = run.state.files.get(run.state.path(words[-1])) if all(map(is_known, words)) else None
    if content is None or not (words[:-1] == ["cat"] or words[:-1] == ["grep", "-v", "^#"]):
        return None
    lines = [line for line in content.splitlines() if words[0] == "cat" or not line.startswith("#")]
    try:
        return " ".join(shlex.split("\n".join(lines)))
    except ValueError:
        return None


# What commands print on every Spark: https://docs.nvidia.com/dgx/dgx-spark/hardware.html (Arm, Linux)
_ON_SPARKS = {"uname -m": "aarch64", "arch": "aarch64", "uname": "Linux", "uname -s": "Linux"}


def _printed(run: Evaluator, words: list[str]) -> str | None:
    if " ".join(words) in _ON_SPARKS:
        return _ON_SPARKS[" ".join(words)]
    if words[:1] == ["echo"]:
        return redirects.echoed(words)
    if len(words) != 2:
        return None
    path = words[1].rstrip("/") or "/"
    known = {"basename": posixpath.basename(path) or words[1][:1], "dirname": posixpath.dirname(path) or "."}
    return known.get(words[0], run.state.files.get(run.state.path(words[1])) if words[0] == "cat" else None)
