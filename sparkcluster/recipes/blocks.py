"""Code blocks of a Markdown page, in order, and which of them are for a shell."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

from sparkcluster.errors import SpecError, UsageError
from sparkcluster.recipes.choices import Format
from sparkcluster.spec.document import parse as parse_yaml

MAX_BLOCKS = 2_000
MAX_DEPTH = 3

_SHELLS = frozenset(
    {
        "bash", "bash-session", "cli", "command", "commandline", "console", "dash", "ksh", "sh", "sh-session", "shell",
        "shell-session", "shellscript", "shellsession", "terminal", "zsh",
    }
)  # fmt: skip
_SESSIONS = frozenset({"bash-session", "console", "sh-session", "shell-session", "shellsession", "terminal"})
# Languages of recipes and units; what they are their content says.
_STRUCTURED = frozenset(
    {"conf", "compose", "docker-compose", "ini", "json", "service", "systemd", "unit", "yaml", "yml"}
)
_UNNAMED = frozenset({"", "code", "none", "plain", "plaintext", "text", "txt"})
_COMMANDS = frozenset(
    {
        "bash", "cd", "curl", "declare", "docker", "env", "exec", "export", "git", "hf", "huggingface-cli", "mkdir",
        "nerdctl", "nohup", "pip", "pip3", "podman", "python", "python3", "sh", "source", "ssh", "sudo", "uv", "uvx",
        "vllm", "wget",
    }
)  # fmt: skip
_VARIABLES = frozenset({"dotenv", "env"})
_IS_SET = re.compile(r"\s*(#.*)?$|[A-Za-z_]\w*=")
_FENCE = re.compile(r"^[ \t>]*(`{3,}|~{3,})", re.MULTILINE)
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_]\w*)\1")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=\S*")
_PROMPT = re.compile(
    r"[ \t]*(?:\([\w.-]+\)[ \t]*)?(?:\[?[\w.-]+@[\w.-]+(?:[: ][^\s$#\]]*)?\]?[ \t]?[$#]|\$|\u276f)[ \t]+(?=\S)"
)
_ROOT = re.compile(r"[ \t]*#[ \t]+(?=\S)")


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A code block.

    Attributes:
        number: from 1, of all code blocks of the page.
        line: of the page, where its text begins.
        text: its lines; of a session the commands, in their lines.
        is_shell: whether it is for a shell.
        kind: its format, if it is no shell text.
        is_env: whether it is a file of variables, as ``.env`` is.
        expanded: mark of the here-document that it is, if the shell changes it.
    """

    number: int
    line: int
    text: str
    is_shell: bool = False
    kind: Format | None = None
    is_env: bool = False
    expanded: str | None = None


def looks(text: str) -> bool:
    """Whether ``text`` is a Markdown page with code blocks, rather than a script or YAML that contains such a page."""
    if text.lstrip().startswith("#!"):
        return False
    fence = _FENCE.search(text)
    if fence:
        return not _HEREDOC.search(text, 0, fence.start()) and not _is_yaml(text)
    tokens = _tokens(text) if re.search(r"^(    |\t)", text, re.MULTILINE) else []
    prose = any(token.type == "inline" and _is_sentence(token.content) for token in tokens)
    return prose and any(token.type == "code_block" for token in tokens)


def _is_sentence(text: str) -> bool:
    """Whether a paragraph reads like prose rather than like commands."""
    words = text.split()
    begins = words[:1] and words[0][0].isupper() and (not words[0].isupper() or len(words[0]) == 1)
    return bool(begins) and len(words) > 3 and not any("=" in word for word in words[:4]) and words[-1][-1] in ".:!?"


def blocks(text: str, source: str, formats: Sequence[Format]) -> list[Block]:
    """The code blocks of a page, in order.

    Raises:
        UsageError: there are more than a page has.
    """
    out: list[Block] = []
    for line, language, content in _coded(text, 1, 0):
        if len(out) >= MAX_BLOCKS:
            raise UsageError(f"{source} has more than {MAX_BLOCKS} code blocks", hint="is this the right file?")
        block = _block(len(out) + 1, line, language, content, formats)
        out.append(block)
        out += _written(block, formats) if block.is_shell else []
    return out


def _written(block: Block, formats: Sequence[Format]) -> list[Block]:
    """Files of a known format that a shell block writes by here-documents; they are blocks of their own."""
    out: list[Block] = []
    lines = block.text.splitlines()
    at = 0
    while at < len(lines):
        found = _HEREDOC.search(lines[at])
        at += 1
        if not found:
            continue
        end = next((end for end in range(at, len(lines)) if lines[end].strip() == found[2]), len(lines))
        text = "\n".join(lines[at:end])
        kind = next((kind for kind in formats if kind.looks(text)), None)
        if kind is not None:
            mark = found[2] if not found[1] and re.search(r"[$`\\]", text) else None
            out.append(Block(block.number + 1 + len(out), block.line + at, text, kind=kind, expanded=mark))
        at = end + 1
    return out


def _coded(text: str, first: int, depth: int) -> list[tuple[int, str, str]]:
    """Line, language and content of each code block."""
    out: list[tuple[int, str, str]] = []
    for token in _tokens(text):
        if token.map is None:
            continue
        if token.type == "fence":
            out.append((first + token.map[0] + 1, _language(token.info), token.content))
        elif token.type == "code_block":
            line = first + token.map[0]
            # An indented section, as of a tab or a note, may have blocks itself.
            nested = _FENCE.search(token.content) and depth < MAX_DEPTH
            out += _coded(token.content, line, depth + 1) if nested else [(line, "", token.content)]
    return out


def _tokens(text: str) -> list[Token]:
    """The blocks of ``text``; what is within its paragraphs is not parsed."""
    return MarkdownIt("commonmark").disable("inline").parse(text)


def _language(info: str) -> str:
    # Sphinx names the language after a directive.
    found = re.match(r"[\s{]*(?:(?:code-block|code|sourcecode)\}[ \t]+)?\.?([A-Za-z0-9+#_-]*)", info)
    return found[1].lower() if found else ""


def _block(number: int, line: int, language: str, content: str, formats: Sequence[Format]) -> Block:
    if language in _STRUCTURED or language in _UNNAMED:
        kind = next((kind for kind in formats if kind.looks(content)), None)
        if kind is not None:
            return Block(number, line, content, kind=kind)
    if language in _SHELLS or (language in _UNNAMED and _reads_as_commands(content)):
        # a block without a language may be for a shell, or what a file of variables contains
        is_env = language in _UNNAMED and all(_IS_SET.match(each) for each in content.splitlines())
        return Block(number, line, _commands(content, language), is_shell=True, is_env=is_env)
    return Block(number, line, content, is_env=language in _VARIABLES)


def _reads_as_commands(text: str) -> bool:
    """Whether the first line that says something is a command or a prompt."""
    for line in text.splitlines():
        if _PROMPT.match(line):
            return True
        if line.strip() and not line.lstrip().startswith("#"):
            return _is_command(line)
    return any(_is_command(line[found.end() :]) for line in text.splitlines() if (found := _ROOT.match(line)))


def _is_command(line: str) -> bool:
    words = line.split()
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words = words[1:]
    if not words:
        return bool(line.strip())
    return words[0] in _COMMANDS or (words[0].startswith(("./", "/", "~/")) and not words[0].endswith(":"))


def _commands(text: str, language: str) -> str:
    """The commands of a session in their lines, without prompts and output; other text as it is."""
    lines = text.splitlines()
    prompt = _PROMPT if any(_PROMPT.match(line) for line in lines) else _ROOT
    if prompt is _ROOT and not _is_root_session(lines, language):
        return text
    out: list[str] = []
    command, is_prompted = "", False
    for line in lines:
        found = prompt.match(line)
        is_prompted = is_prompted or found is not None
        if command and _is_open(command):
            # The shell's own prompt in the lines of a command that goes on.
            following = line.lstrip().removeprefix("> ") if line.lstrip().startswith("> ") else line
            out.append(following)
            command += f"\n{following}"
        elif found and (prompt is _PROMPT or _is_command(line[found.end() :])):
            command = line[found.end() :]
            out.append(command)
        elif not is_prompted and _is_command(line):  # what is in front of the first prompt is no output
            command = line
            out.append(command)
        else:
            command = ""
            out.append("")
    return "\n".join(out)


def _is_root_session(lines: list[str], language: str) -> bool:
    """Whether ``# `` is root's prompt: in a session, or where no language says that it begins a comment."""
    if language not in _SESSIONS | _UNNAMED:
        return False
    prompted = [line[found.end() :] for line in lines if (found := _ROOT.match(line))]
    bare = [line for line in lines if not line.lstrip().startswith("#") and _is_command(line)]
    return any(map(_is_command, prompted)) and (language in _SESSIONS or not bare)


def _is_open(command: str) -> bool:
    """Whether a command goes on in the next line: a backslash, a quote or a here-document."""
    if command.endswith("\\"):
        return True
    heredoc = _HEREDOC.search(command)
    if heredoc:
        return command.rsplit("\n", maxsplit=1)[-1].strip() != heredoc[2]
    try:
        shlex.split(command)
    except ValueError:
        return True
    return False


def _is_yaml(text: str) -> bool:
    """Whether ``text`` is a YAML mapping, as a recipe with a page in it is."""
    try:
        return isinstance(parse_yaml(text, "", merge_keys=True).data, dict)
    except SpecError:
        return False
