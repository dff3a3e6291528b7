"""The generated pages of docs/ agree with the code; every command on a page is valid."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import docgen
import pytest

from sparkcluster.checks.catalogue import pages
from sparkcluster.checks.check import MERGED
from sparkcluster.cli.commands import COMMANDS
from sparkcluster.cli.parser import parser_of
from sparkcluster.endpoint.clients import CLIENTS
from sparkcluster.errors import UsageError
from sparkcluster.setup.steps import sysctl

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md"]
BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|[\s;|(&])sparkcluster (?=[a-z])([^│]*)$")


def test_pages_are_up_to_date() -> None:
    old = [name for name, text in docgen.files().items() if (DOCS / name).read_text() != text]
    assert old == [], "run scripts/make-docs"


def test_pages_about_the_code_name_existing_files() -> None:
    """The page on the architecture, and the docstrings of the rooms' packages."""
    rooms = DOCS.parent / "sparkcluster"
    pages = [DOCS / "architecture.md", *rooms.glob("*/__init__.py")]
    named = {
        name for page in pages for name in re.findall(r"`((?:[a-z_]+/)+[a-z_]*\.(?:py|toml|tsv|sh))`", page.read_text())
    }
    missing = {name for name in named if not (rooms / name).exists() and not (DOCS.parent / name).exists()}
    assert missing == set()


def code(text: str) -> Iterator[str]:
    """Every line of a page's code blocks without its comment, and every inline code."""
    for block in BLOCK.findall(text):
        yield from (re.sub(r"(^|\s)#.*", "", line) for line in block.replace("\\\n", " ").splitlines())
    yield from (" ".join(found.split()) for found in re.findall(r"`([^`]+)`", BLOCK.sub("", text)))


def command_lines(text: str) -> Iterator[list[str]]:
    """The words after ``sparkcluster`` of every command line in ``text``."""
    for line in code(text):
        whole = re.search(r"\((sparkcluster [^()]*)\)", line)
        found = COMMAND.search(whole[1] if whole else line)
        if found:
            lexer = shlex.shlex(found[1].partition("   ")[0], posix=True, punctuation_chars=True)
            lexer.whitespace_split, lexer.commenters = True, ""
            words = list(lexer)
            end = next((at for at, word in enumerate(words) if set(word) <= set("|;&<>()")), len(words))
            yield words[:end]


def refused(words: list[str]) -> str | None:
    """The error in a command line; None for a valid one, a synopsis, and a single command name."""
    name, *rest = words
    if "[flags]" in rest:
        return None
    if name not in COMMANDS:
        return "no such command"
    parser, _ = parser_of(name)
    nested = parser._subparsers._group_actions[0].choices if parser._subparsers else {}
    if not rest or (len(rest) == 1 and rest[0] in nested):
        return None
    try:
        parser.read(rest)
    except UsageError as error:
        return str(error)
    except SystemExit:  # --help
        return None
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_of_a_page_is_valid(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sparkcluster.yaml").write_text("cluster: x")  # for lines without an inventory
    wrong = {" ".join(words): why for words in command_lines(page.read_text()) if (why := refused(words))}
    assert wrong == {}


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub generates them."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", [*PAGES, DOCS.parent / "CHANGELOG.md"], ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    text = BLOCK.sub("", page.read_text())
    broken = []
    for link in re.findall(r"\]\((?!https?://)([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_named_in_the_code_exists() -> None:
    root = DOCS.parent
    files = [
        file
        for top in ("sparkcluster", "scripts", "tests", "inventory", "playbooks")
        for file in (root / top).rglob("*")
    ]
    texts = [file.read_text() for file in files if file.suffix in {".py", ".toml", ".txt", ".sh", ".yaml"}]
    named = {name for text in texts for name in re.findall(r"(?<![\w./])docs/[\w/-]+\.md\b", text)}
    assert {name for name in named if not (root / name).exists()} == set()


def test_every_check_on_a_page_exists() -> None:
    series = "|".join(sorted({code.partition("-")[0] for code in pages()}))
    named = re.findall(rf"\b(?:{series})-\d{{3}}\b", "".join(page.read_text() for page in PAGES))
    assert set(named) - set(pages()) - set(MERGED) == set()


def test_the_sources_list_no_existing_feature_as_omitted() -> None:
    page = (DOCS / "internals/sources.md").read_text()
    left = " ".join(re.findall(r"^Not included: .*?(?=\n\n|\Z)", page, re.MULTILINE | re.DOTALL)).lower()
    clients = [client.title.lower().removesuffix(" agent") for client in CLIENTS.values()]
    assert [name for name in (*clients, *(key.partition(".")[2] for key in sysctl.VALUES)) if name in left] == []


def test_every_threat_names_existing_tests() -> None:
    page = (DOCS / "internals/threats.md").read_text()
    rows = [
        line
        for line in page.splitlines()
        if line.startswith("| ") and not line.startswith(("| boundary |", "| threat |"))
    ]
    assert [row for row in rows if "`unit/" not in row and "`fuzz/" not in row and "`lab/" not in row] == []
    for file, test in re.findall(r"`((?:unit|lab|fuzz)/[\w/]+\.py)(?:::(\w+))?`", page):
        assert f"def {test}" in (DOCS.parent / "tests" / file).read_text(), (file, test)
