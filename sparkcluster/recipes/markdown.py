"""Markdown pages: their code blocks in order, and the block that starts an engine."""

from __future__ import annotations

import copy
import dataclasses
import re
import shlex

from sparkcluster.errors import NoEngine, SparkclusterError, SpecError, UsageError
from sparkcluster.recipes import compose, compose_run, preamble
from sparkcluster.recipes.blocks import Block, blocks, looks
from sparkcluster.recipes.choices import Choices, Made
from sparkcluster.recipes.serve import Importer
from sparkcluster.recipes.shell import Script, parse, plain, shown, unwrapped

__all__ = ["looks", "read"]

MAX_CHARACTERS = 1 << 21
MAX_LISTED = 40
MAX_NOTES = 8
# Commands that leave nothing behind for the engine.
_HARMLESS = frozenset(
    {
        "apt", "apt-get", "cat", "cd", "chmod", "clear", "curl", "df", "dig", "echo", "exit", "free", "grep",
        "groupadd", "head", "htop", "id", "jq", "ls", "lscpu", "mkdir", "newgrp", "nvidia-smi", "nvtop", "ping",
        "printf", "ps", "pwd", "set", "sleep", "source", "ss", "systemctl", "tail", "tmux", "true", "uname", "usermod",
        "wait", "watch", "which", "while", "whoami",
    }
)  # fmt: skip
_DOCKER_HARMLESS = frozenset(
    {
        "--version", "compose", "container", "images", "info", "inspect", "kill", "login", "logs", "ps", "pull",
        "restart", "rm", "rmi", "start", "stats", "stop", "system", "top", "version",
    }
)  # fmt: skip


@dataclasses.dataclass(slots=True)
class _Shell:
    """What the shell blocks up to a place of the page leave behind.

    Attributes:
        variables: with their values.
        exported: names among them.
        arrays: lists.
        kept: commands that download weights, or start a container for the blocks behind it.
        set_at: lines of the blocks that set a variable to another value than before.
        notes: commands of the blocks, which are not run.
        composed: commands of Compose that change what its file says.
        files: what they write, and the Compose file that the page has.
        directory: they end in.
        dotenv: values of ``.env``, which Compose reads, and of blocks for such a file, with their lines.
    """

    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    exported: dict[str, None] = dataclasses.field(default_factory=dict)
    arrays: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    kept: list[list[str]] = dataclasses.field(default_factory=list)
    set_at: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    composed: list[str] = dataclasses.field(default_factory=list)
    files: dict[str, str | None] = dataclasses.field(default_factory=dict)
    directory: str = ""
    dotenv: dict[str, tuple[str, int]] = dataclasses.field(default_factory=dict)

    def before(self, block: Block) -> str:
        """The text of ``block`` after what was set before it."""
        return preamble.text(
            block.text,
            block.line,
            variables=self.variables,
            exported=self.exported,
            arrays=self.arrays,
            commands=self.kept,
        )

    def run(self, block: Block, *, starts: bool) -> None:
        """Take over what ``block`` sets, and unless it ``starts`` an engine the containers that it starts."""
        try:
            script = parse(self.before(block), outer=Script(files=self.files, directory=self.directory))
        except UsageError as error:
            self.notes.append(f"line {block.line}: cannot be read: {error.message}")
            for name in re.findall(r"\b([A-Za-z_][A-Za-z0-9_]*)\+?=", block.text):
                self.variables.pop(name, None)
                self.arrays.pop(name, None)
            return
        for name, value in script.variables.items():
            if self.variables.get(name) != value and name != "HOME":
                self.set_at.setdefault(name, []).append(block.line)
        self.variables = {name: value for name, value in script.variables.items() if name != "HOME"}
        self.arrays = dict(script.arrays)
        self.exported = dict.fromkeys(script.exported)
        self.files, self.directory = script.files, script.directory
        for call in script.calls:
            plain_ = unwrapped(call.words, {})
            if compose_run.is_compose(plain_.words) and compose_run.changes(plain_.words, plain_.env):
                note = f"line {call.line}: {_short(shlex.join(call.words))}: not followed, the file alone is imported"
                self.composed.append(note)
        if (written := self.files.get(".env")) is not None:
            self.read_env(written, block.line)
        commands = [words for words in script.commands if not _is_harmless(words)]
        own = [words for words in commands if _is_kept(words) and not (starts and _is_container(words))]
        self.kept = [*self.kept, *(words for words in own if words not in self.kept)]
        others = [words for words in commands if words not in own]
        if others:
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            self.notes.append(f"line {block.line}: {_short(shlex.join(others[0]))}{more}: not run")

    def read_env(self, text: str, line: int) -> None:
        """Take over the variables of a file of them, which only Compose and commands that name it read."""
        for found in re.finditer(r"^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)=(.*)$", text, re.MULTILINE):
            value = re.sub(r"(^|[ \t])#.*", "", found[2]).strip()
            quoted = re.fullmatch(r"(['\"])(.*)\1", value)
            self.dotenv[found[1]] = (quoted[2] if quoted else value, line)


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """A block in its place on the page.

    Attributes:
        block: as the page has it.
        text: of the block, after what the page sets before it.
        shell: what the page leaves behind before it.
    """

    block: Block
    text: str
    shell: _Shell


@dataclasses.dataclass(frozen=True, slots=True)
class _Candidate:
    """A block that starts an engine.

    Attributes:
        part: where it is.
        made: the playbook, if there is one.
        error: why there is none.
    """

    part: _Part
    made: Made | None
    error: SparkclusterError | None

    @property
    def line(self) -> str:
        """Number, place and what it starts, in one line."""
        where = f"block {self.part.block.number} (line {self.part.block.line})"
        if self.made is None:
            return f"{where}: {_short(self.error.message) if self.error else ''}"
        document = self.made[0]
        model = document["model"].get("id") or document["model"].get("path")
        image = f" in {document['image']}" if document.get("image") else ""
        tensor_parallel = document.get("tensor_parallel", 1)
        nodes = f", tensor_parallel {tensor_parallel}" if tensor_parallel != 1 else ""
        return f"{where}: {_short(f'{model}{image}{nodes}')}"


def read(text: str, source: str, importers: list[Importer], choices: Choices) -> Made:
    """The playbook of the block that starts an engine, with what earlier shell blocks set.

    Raises:
        NoEngine: no block starts one.
        UsageError: several do and none is chosen, or the chosen block cannot be imported.
    """
    found = blocks(text, source, tuple(choices.formats))
    if choices.block is not None and not 1 <= choices.block <= len(found):
        raise UsageError(f"{source} has no block {choices.block}", hint=f"it has {len(found)} code blocks")
    candidates: list[_Candidate] = []
    shell = _Shell()
    characters = 0
    for block in found:
        # Each is read with as many lines before it as the page has, and with what was set before.
        characters += len(shell.before(block)) if block.is_shell else len(block.text)
        if characters > MAX_CHARACTERS:
            raise UsageError(f"{source} has too many code blocks for its length", hint="is this the right file?")
        candidate = _candidate(block, shell, source, importers, choices)
        if candidate is not None and choices.block in {None, block.number}:
            candidates.append(candidate)
        if block.is_shell:
            shell = copy.deepcopy(shell)
            shell.run(block, starts=candidate is not None)
        if block.is_env:
            shell = copy.deepcopy(shell)
            shell.read_env(block.text, block.line)
        elif block.kind is compose and block.expanded is None:
            shell = copy.deepcopy(shell)
            shell.files[compose_run.FILES[0]] = block.text
    if not candidates:
        raise _nothing(source, importers, choices.block)
    if len(candidates) > 1:
        listed = "; ".join(candidate.line for candidate in candidates[:MAX_LISTED])
        raise UsageError(
            f"{source} starts an engine in {len(candidates)} blocks: {listed}",
            hint=f"choose with --block {candidates[0].part.block.number}, or another number of these",
        )
    document, notes = _imported(candidates[0], source, importers, choices)
    return document, [*notes, *(shell.composed if candidates[0].part.block.kind is compose else [])]


def _candidate(
    block: Block, shell: _Shell, source: str, importers: list[Importer], choices: Choices
) -> _Candidate | None:
    """What a block starts; None if it starts no engine."""
    if not block.is_shell and block.kind is None:
        return None
    text = shell.before(block) if block.kind is None else "\n" * (block.line - 1) + block.text
    part = _Part(block, text, shell)
    try:
        return _Candidate(part, _read(part, source, importers, choices.apart()), None)
    except NoEngine:
        return None
    except (UsageError, SpecError) as refused:
        if not any(importer.ENGINE in block.text.lower() for importer in importers) or _is_elided(block.text):
            return None
        return _Candidate(part, None, refused)


def _read(part: _Part, source: str, importers: list[Importer], choices: Choices) -> Made:
    kind, shell = part.block.kind, part.shell
    if part.block.expanded is not None:
        raise UsageError(
            f"the shell changes the here-document {part.block.expanded} before it is written",
            hint="import the file that it writes",
        )
    if kind is None:
        own = dataclasses.replace(choices, files=shell.files, directory=shell.directory)
        return choices.script(part.text, source, importers, own)
    exported = {name: shell.variables[name] for name in shell.exported if name in shell.variables}
    dotenv = {name: value for name, (value, _) in shell.dotenv.items()}
    own = dataclasses.replace(choices, environment={**dotenv, **exported}, asked={})
    document, notes = kind.read(part.text, source, importers, own)
    choices.asked.update(own.asked)
    for name in own.asked:
        if name in choices.defines or name in exported:
            continue
        if name in dotenv:
            notes.append(f"{name}: from the variables at line {shell.dotenv[name][1]}")
        elif name in shell.variables:
            line = shell.set_at[name][-1]
            notes.append(f"{name}: line {line} does not export it, so that docker compose does not see its value")
    return document, notes


def _imported(candidate: _Candidate, source: str, importers: list[Importer], choices: Choices) -> Made:
    block, shell = candidate.part.block, candidate.part.shell
    # The names that this block asks for are those of the page.
    own = dataclasses.replace(choices, block=None)
    try:
        document, notes = _read(candidate.part, source, importers, own)
    except SpecError:
        raise
    except UsageError as error:
        at = re.match(rf"{re.escape(source)}:(\d+): ", error.message)
        number = f"block {block.number}"
        where = f"{source}:{at[1]}: {number}" if at else f"{source}: {number} (line {block.line})"
        raise UsageError(f"{where}: {error.message[at.end() if at else 0 :]}", hint=error.hint) from None
    for name, lines in shell.set_at.items():
        if len(lines) > 1 and re.search(rf"\$\{{?{name}\b", block.text):
            where = " and ".join(str(line) for line in lines)
            notes.append(f"{name}: set in the blocks at lines {where}; the last value is used")
    earlier = shell.notes[-MAX_NOTES:]
    if len(shell.notes) > MAX_NOTES:
        earlier = [f"{len(shell.notes) - MAX_NOTES} more blocks with commands: not run", *earlier]
    return document, [*notes, *(f"earlier on the page, {note}" for note in earlier)]


def _nothing(source: str, importers: list[Importer], block: int | None) -> NoEngine:
    where = source if block is None else f"block {block} of {source}"
    commands = " or ".join(f"`{importer.COMMAND} …`" for importer in importers)
    return NoEngine(
        f"{where} starts no engine",
        hint=f"a block for a shell has to contain {commands}, or `docker run …` with it"
        if block is None
        else "leave --block out to see the blocks that start an engine",
    )


def _is_container(words: list[str]) -> bool:
    """Whether a command starts a container, in which a later block may run the engine."""
    words = words[1:] if words[:1] == ["sudo"] else words
    return words[:2] == ["docker", "run"] or any(word.endswith("run_cluster.sh") for word in words[:2])


def _is_kept(words: list[str]) -> bool:
    return words[:2] in (["hf", "download"], ["huggingface-cli", "download"]) or _is_container(words)


def _is_elided(text: str) -> bool:
    """Whether something in a command is left out, as in ``serve ... --flag``: an illustration, nothing to run."""
    return re.search(r"(^|\s)(\.\.\.|…)(\s|$)", text) is not None


def _is_harmless(words: list[str]) -> bool:
    remaining = words[1:] if words[0] == "sudo" else words
    program = remaining[0].rpartition("/")[2] if remaining else ""
    if program in {"docker", "podman"}:
        return len(remaining) < 2 or remaining[1] in _DOCKER_HARMLESS
    return program in _HARMLESS


def _short(text: str) -> str:
    line = " ".join(shown(plain(text)).split())
    return line if len(line) <= 90 else f"{line[:89]}…"
