"""Import the code block of a Markdown page that starts an engine, with variables from earlier blocks."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from markdown_it import MarkdownIt

from sparkcluster.errors import NoEngine, SparkclusterError, UsageError
from sparkcluster.importer import recipe, script, unit
from sparkcluster.importer.commands import QUIET, Commands
from sparkcluster.importer.pasted import PROMPT
from sparkcluster.importer.playbook import Made
from sparkcluster.importer.script import Text
from sparkcluster.importer.shell import Shell
from sparkcluster.importer.unknown import shown

MAX_BLOCKS = 1_000

_SHELLS = frozenset({"bash", "cli", "commandline", "console", "sh", "shell", "shell-session", "terminal", "zsh"})
_UNNAMED = frozenset({"", "code", "none", "plain", "plaintext", "text", "txt"})
_DATA = frozenset({"yaml", "yml", "json", "ini", "systemd", "service", "docker-compose", "compose", "conf"})
# Start of a shell block without a language.
_COMMAND = re.compile(
    r"\s{0,80}(\$ |\w{1,80}=|\.{1,2}/|~/|(sudo|docker|podman|vllm|export|cd|git|hf|huggingface-cli|ssh|curl|bash|mkdir|"
    r"uv|pip3?|python3?)\s)"
)
_ELIDED = re.compile(r"(^|\s)(\.\.\.|…)(\s|$)")


@dataclasses.dataclass(frozen=True, slots=True)
class _Block:
    """A code block: its number from 1, first line in the page, language and text."""

    number: int
    line: int
    language: str
    text: str


def read(text: str, about: Text) -> Made:
    """The playbook of the block that starts an engine.

    Raises:
        NoEngine: no block starts an engine.
        UsageError: several blocks do and none is chosen, or the chosen block cannot be imported.
    """
    blocks = list(_blocks(text, about.source))
    if about.block is not None and not 1 <= about.block <= len(blocks):
        raise UsageError(f"{about.source} has no block {about.block}", hint=f"choose 1 to {len(blocks)}")
    shell, commands = Shell(about.source, about.defines, about.asked), Commands(about.importers)
    found: list[tuple[_Block, Made | SparkclusterError]] = []
    others: list[NoEngine] = []
    for block in blocks:
        for made in _made(block, shell, commands, about):
            if isinstance(made, NoEngine):
                others.append(made)
            elif about.block in {None, block.number} and made not in [other for _, other in found]:
                found.append((block, made))
    if not found:
        if (other := next((each for each in others if "this starts" in each.message), None)) is not None:
            raise other
        where = about.source if about.block is None else f"block {about.block} of {about.source}"
        commands_ = " or ".join(f"`{importer.COMMAND} …`" for importer in about.importers)
        raise NoEngine(f"{where} starts no engine", hint=f"a shell block must contain {commands_}")
    if len(found) > 1:
        listed = "; ".join(_described(block, made) for block, made in found[:20])
        problem = f"{about.source} starts an engine in {len(found)} blocks: {listed}"
        raise UsageError(problem, hint=f"choose one by its number, such as --block {found[0][0].number}")
    block, made = found[0]
    if isinstance(made, SparkclusterError):
        raise made
    lines = sorted({call.line for call in shell.calls if call.line < block.line and call.words[0] not in QUIET})
    listed = ", ".join(map(str, lines[:20]))
    notes = [f"commands of earlier blocks are not run: line {listed}"] if lines else []
    return made[0], [*made[1], *notes, *_set_elsewhere(block, blocks, shell, about)]


def _set_elsewhere(block: _Block, blocks: list[_Block], shell: Shell, about: Text) -> list[str]:
    """Notes about variables of a Compose file that the page sets in an unsupported way, such as in an ``.env``."""
    if _is_shell(block):
        return []
    others = "\n".join(each.text for each in blocks if each is not block)
    names = [
        name
        for name in about.asked
        if f"${{{name}" in block.text and not {name} & {*about.defines, *shell.variables.exported}
    ]
    lost = [name for name in names if re.search(rf"(?<![\w-]){re.escape(name)}=", others)]
    return [f"{name}: set elsewhere in the page, which is unsupported; add --define {name}=VALUE" for name in lost]


def _described(block: _Block, made: Made | SparkclusterError) -> str:
    where = f"block {block.number} (line {block.line})"
    if isinstance(made, SparkclusterError):
        return f"{where}: {shown(made.message, 90)}"
    document = made[0]
    size = document.get("tensor_parallel", 1)
    image = f" in {document['image']}" if "image" in document else ""
    nodes = f", tensor_parallel {size}" if size != 1 else ""
    return f"{where}: {shown(next(iter(document['model'].values())))}{image}{nodes}"


def _made(block: _Block, shell: Shell, commands: Commands, about: Text) -> Iterator[Made | SparkclusterError]:
    """The playbook of a block, or why it cannot be imported; its variables stay in ``shell``."""
    before = shell.variables.copy()
    try:
        if _is_shell(block):
            if (made := _started(block, shell, commands, about)) is not None:
                yield made
        elif block.language in _DATA | _UNNAMED and _is_data(block.text):
            text = "\n" * (block.line - 1) + block.text
            if unit.looks(text):
                yield unit.read(text, about)
            else:
                about = dataclasses.replace(about, defines={**before.environment(), **about.defines})
                yield recipe.data(text, about)
    except NoEngine as error:
        yield error
    except UsageError as error:
        shell.variables = before
        is_named = any(importer.ENGINE in block.text.lower() for importer in about.importers)
        if is_named and not _ELIDED.search(block.text):
            yield error


def _started(block: _Block, shell: Shell, commands: Commands, about: Text) -> Made | NoEngine | None:
    """The playbook of a shell block."""
    begin, shell.unread, shell.notes, commands.others, commands.doubts = len(shell.calls), [], [], [], []
    shell.run("\n" * (block.line - 1) + _commands(block.text))
    starts = commands.starts(shell, shell.calls[begin:])
    return script.chosen(starts, commands, shell, about) if starts else commands.instead(about.source)


def _is_shell(block: _Block) -> bool:
    is_command = block.language in _UNNAMED and _COMMAND.match(block.text) and not _is_data(block.text)
    return block.language in _SHELLS or bool(is_command)


def _is_data(text: str) -> bool:
    """Whether a text is a Compose file, a recipe or a unit."""
    keys = {*re.findall(r"^(\w+):", text, re.MULTILINE)}
    return "services" in keys or {"container", "command"} <= keys or unit.looks(text)


def _blocks(text: str, source: str) -> Iterator[_Block]:
    number = 0
    for token in MarkdownIt("commonmark").disable("inline").parse(text):
        if token.type in {"fence", "code_block"} and token.map is not None:
            number += 1
            if number > MAX_BLOCKS:
                raise UsageError(f"{source} has more than {MAX_BLOCKS} code blocks", hint="is this the right file?")
            language = re.match(r"[\s{.]*([A-Za-z0-9+#_-]*)", token.info)
            line = token.map[0] + 1 + (token.type == "fence")
            yield _Block(number, line, language[1].lower() if language else "", token.content)


def _commands(text: str) -> str:
    """The commands of a terminal session on their lines, without output; other text unchanged."""
    lines = text.splitlines()
    if not any(map(PROMPT.match, lines)):
        return text
    out: list[str] = []
    for line in lines:
        goes_on = bool(out) and out[-1].endswith("\\")
        out.append(re.sub(r"^\s*>\s", "", line) if goes_on else line if PROMPT.match(line) else "")
    return "\n".join(out)
