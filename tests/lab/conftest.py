"""Labs and the real command line for the tests of this folder; each test starts without leftovers of another."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from docgen import json_schemas
from lab_registry import Registry, registry_of

from sparkcluster.errors import SparkclusterError
from sparkcluster.lab import Lab, LabError, machine
from sparkcluster.lab import spec as lab_spec
from sparkcluster.lab.core import in_parallel
from sparkcluster.spec import powers
from sparkcluster.spec.load import load
from tests.lab import builds

pytest.register_assert_rewrite("tests.lab.switching")

HERE = Path(__file__).parent

LONGEST = (
    "test_demo",
    "test_engine",
    "test_several_models",
    "test_gateway",
    "test_upgrade",
    "test_upgrade_kill",
    "test_journey",
    "test_enable",
    "test_secrets",
)

UNLIKE = """
sparks:
- name: left
  ports: p0
  gids: shifted
- name: right
  ports: p1
  gids: standard
  interfaces: {enp1s0f1np1: fast0, enP2p1s0f1np1: fast1}
"""
"""Two Sparks whose cabled ports, interface names and GID layouts differ."""


def _unable() -> str | None:
    """Reason why this machine cannot run a lab, or None."""
    if sys.platform != "linux":
        return "virtual Sparks are made of Linux namespaces"
    if os.geteuid() != 0:
        return "virtual Sparks need root: sudo ./scripts/test"
    try:
        machine.require()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the reason that is printed
        return f"{error} ({getattr(error, 'hint', '')})"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, and skip it with the reason if no lab can run; the slowest files come first."""
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
    here = [item for item in items if HERE in item.path.parents]
    reason = _unable() if here else None
    for item in here:
        item.add_marker(pytest.mark.lab)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of this run's labs; SIGTERM takes them down like Ctrl-C."""

    def end(number: int, frame: object) -> None:
        del number, frame
        raise KeyboardInterrupt

    directory = tmp_path_factory.mktemp("labs")
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, end) if main else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARKCLUSTER_LAB_DIR", str(directory))
        yield directory
    if main:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _labs_of(directory: Path, stem: str) -> Iterator[Callable[..., Lab]]:
    """``make(sparks, engine="stub")``: a lab that is removed at the end; ``sparks`` is their number or a spec."""
    with contextlib.ExitStack() as made:
        numbers = itertools.count()

        def make(sparks: int | str = 2, *, engine: str = "stub") -> Lab:
            name = f"{stem}-{next(numbers)}-{os.getpid()}"
            spec = None
            if isinstance(sparks, str):
                file = directory / f"{name}.yaml"
                file.write_text(sparks)
                spec = lab_spec.load(file)
            lab = Lab.up(None if spec else int(sparks), engine=engine, spec=spec, name=name)
            made.callback(lab.down)
            return lab

        yield make


@pytest.fixture(scope="module")
def make_lab(labs: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Lab]]:
    """``make_lab(sparks, engine="stub")``: a lab that is removed with the module."""
    with _labs_of(labs, request.path.stem.removeprefix("test_").replace("_", "-")) as make:
        yield make


@pytest.fixture(scope="session")
def mixed_sparks(labs: Path) -> Iterator[Lab]:
    """Two stub Sparks that differ in every possible way, for every module without a special lab."""
    with _labs_of(labs, "mixed") as make:
        yield make(UNLIKE)


@pytest.fixture(scope="module")
def make_mixed_lab(make_lab: Callable[..., Lab]) -> Callable[..., Lab]:
    """``make_lab`` for Sparks with other systems and Docker releases; skips the module if the mirror lacks one."""

    def make(sparks: str, *, engine: str = "stub") -> Lab:
        try:
            return make_lab(sparks, engine=engine)
        except LabError as error:
            if "has no release" in str(error) or "apt-get failed" in str(error):
                pytest.skip(str(error))
            raise

    return make


@pytest.fixture(scope="module")
def shared_lab(mixed_sparks: Lab) -> Lab:
    """The module's lab. Override it to use another lab than ``mixed_sparks``, which modules share."""
    return mixed_sparks


@pytest.fixture
def lab(shared_lab: Lab, clean: Callable[[Lab], None]) -> Iterator[Lab]:
    """The module's lab, healed and empty before and after the test."""
    clean(shared_lab)
    yield shared_lab
    clean(shared_lab)


@pytest.fixture
def registry(lab: Lab) -> Iterator[Registry]:
    """A registry that the Sparks reach; after the test they have no image of it."""
    with registry_of(lab) as made:
        yield made
    for spark in lab.sparks:
        spark.run(["sh", "-c", "docker image rm -f $(docker images -q)"], check=False)


@pytest.fixture
def image(clean: Callable[[Lab], None]) -> Iterator[Callable[..., str]]:
    """``image(lab, name, …)``: another build of the lab's image, made by ``builds.load``; returns its reference.

    Variables such as ``STUB_FAULT`` make it a broken build; ``without=["vllm"]`` or ``["ray"]`` omits a program.
    """
    made: list[tuple[Lab, str]] = []

    def make(lab: Lab, name: str, **build: Any) -> str:
        made.append((lab, builds.load(lab, name, **build)))
        return made[-1][1]

    yield make
    for lab in {id(lab): lab for lab, _ in made}.values():
        clean(lab)
        names = [reference for of, reference in made if of is lab]
        in_parallel(lambda spark, names=names: spark.run(["docker", "rmi", "-f", *names], check=False), lab.sparks)


@pytest.fixture
def two_images(lab: Lab, cli: Callable[..., Done], image: Callable[..., str]) -> tuple[str, str, str]:
    """The cluster serves; IDs of its image and of a build to switch to, and the reference of that build."""
    from tests.lab.switching import images_of  # once its assertions are rewritten

    cli("up", lab.inventory).ok()
    newer = image(lab, "newer")
    (old,) = images_of(cli("status", lab.inventory, "--json").ok().json)
    new = lab.sparks[0].run(["docker", "images", "-q", "--no-trunc", newer]).stdout.strip()
    assert old != new
    return old, new, newer


@pytest.fixture(scope="session")
def clean() -> Callable[[Lab], None]:
    """Heal all faults of a lab, and remove everything that a cluster left on its Sparks except caches."""

    # a worker that is exiting writes into its directory by path: after the move it can add no file, and no
    # guard is restarted
    script = "set -e; cd /root/.local/state/sparkcluster 2> /dev/null || cd /run; "
    script += "[ ! -e clusters ] || mv clusters removed.$$; pkill -KILL -f [e]nabled/guard.py || true; "
    script += 'ids=$(docker ps -aq); [ -z "$ids" ] || docker rm -f $ids > /dev/null; '
    script += "docker images --filter 'reference=sparkcluster/*' --format '{{.Repository}}:{{.Tag}}' | "
    script += "xargs -r docker rmi > /dev/null; rm -rf removed.*"

    def do(lab: Lab) -> None:
        lab.heal()
        in_parallel(lambda spark: spark.run(["sh", "-c", script]), lab.sparks)

    return do


@dataclasses.dataclass
class Done:
    """A finished command: exit code, output, duration."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> dict[str, Any]:
        """The document on stdout, or with --json-lines the last one; compared with its schema."""
        lines = self.out.strip().splitlines()
        assert lines, f"no document on stdout; stderr: {self.err}"
        *events, document = map(json.loads, lines)
        for event in events:
            json_schemas.validate("event", event)
        dry = self.argv[0] == "up" and "--dry-run" in self.argv
        json_schemas.validate("error" if "error" in document else "plan" if dry else self.argv[0], document)
        return dict(document)

    @property
    def error(self) -> dict[str, Any]:
        """Contents of an error document."""
        error: dict[str, Any] = self.json["error"]
        return error

    def ok(self) -> Done:
        """The command itself, provided that it succeeded."""
        assert self.code == 0, self
        return self

    def __str__(self) -> str:
        words = " ".join(self.argv)
        return f"sparkcluster {words}: exit {self.code} after {self.seconds:.1f} s\n{self.out}\n{self.err}"

    __repr__ = __str__


class Running:
    """A running command; its streams are read as they arrive, each line with its time."""

    def __init__(self, argv: tuple[str, ...], process: subprocess.Popen[str]) -> None:
        self.argv = argv
        self.process = process
        self.began = time.monotonic()
        self.out: list[str] = []
        self.err: list[str] = []
        self._grown = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(stream, kept), daemon=True)
            for stream, kept in ((process.stdout, self.out), (process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Any, kept: list[str]) -> None:
        for line in stream:
            with self._grown:
                kept.append(line)
                self._grown.notify_all()
        with self._grown:
            self._grown.notify_all()

    @property
    def pid(self) -> int:
        """Process ID of the command."""
        return self.process.pid

    def wait_for(self, text: str, timeout: float = 300) -> str:
        """Wait until a line of either stream contains ``text``; returns that line."""

        def found() -> str | None:
            return next((line for line in (*self.out, *self.err) if text in line), None)

        def over() -> bool:
            return not any(reader.is_alive() for reader in self._readers)

        until = time.monotonic() + timeout
        with self._grown:
            while found() is None and not over() and time.monotonic() < until:
                self._grown.wait(0.1)
        line = found()
        assert line is not None, f"no {text!r} within {timeout} s:\n{''.join(self.out)}\n{''.join(self.err)}"
        return line

    def wait(self, timeout: float = 300) -> Done:
        """Wait for the end; a command that runs longer than ``timeout`` seconds is killed, and the test fails."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"sparkcluster {' '.join(self.argv)} took longer than {timeout} s\n"
                f"{''.join(self.out)}\n{''.join(self.err)}"
            ) from None
        seconds = time.monotonic() - self.began
        self._close()
        return Done(self.argv, code, "".join(self.out), "".join(self.err), seconds)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal; SIGKILL also ends the children of the command."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self.process.wait()
            self._close()

    def _close(self) -> None:
        for reader in self._readers:
            reader.join(5)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class Cli:
    """The real command line, as a separate process with pipes for its output."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.program: tuple[str, ...] = ("-m", "sparkcluster")
        self.running: list[Running] = []

    def start(self, *argv: object, env: dict[str, str] | None = None, prefix: tuple[str, ...] = ()) -> Running:
        """Start a command and return; ``prefix`` precedes it, such as ``nsenter …``."""
        words = tuple(str(word) for word in argv)
        if (
            words[:1] in {(each,) for each in ("up", "stage", "upgrade", "rollback", "restart", "enable")}
            or "--deep" in words
        ) and "--yes" not in words:
            words += ("--yes",)  # many tests set variables of the stub; tests/unit/cli/test_powers.py has the question
        environment = {
            **{name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")},
            "HOME": str(self.home),
            "PYTHONPATH": str(HERE.parent.parent),
            **(env or {}),
        }
        for word in words:
            if word.endswith(".yaml"):
                self._accept(self.home / word)
        process = subprocess.Popen(
            [*prefix, sys.executable, *self.program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=self.home,
        )
        command = Running(words, process)
        self.running.append(command)
        return command

    def _accept(self, inventory: Path) -> None:
        """Accept the permissions of the inventory itself, as ``lab up`` does for its own."""
        with contextlib.suppress(SparkclusterError):  # which the command reports itself
            for each in powers.of_inventory(load(inventory, starts=False)):
                file = self.home / ".local/state/sparkcluster/accepted" / each.digest
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()

    def __call__(self, *argv: object, env: dict[str, str] | None = None, timeout: float = 300) -> Done:
        """Run a command to its end."""
        return self.start(*argv, env=env).wait(timeout)

    def end(self) -> None:
        """End running commands."""
        for command in self.running:
            if command.process.poll() is None:
                command.kill(signal.SIGCONT)
            command.kill()


@contextlib.contextmanager
def _command_lines(directory: Path) -> Iterator[Callable[[], Cli]]:
    made: list[Cli] = []

    def make() -> Cli:
        home = directory / f"home-{len(made)}"
        home.mkdir()
        made.append(Cli(home))
        return made[-1]

    yield make
    for cli in made:
        cli.end()


@pytest.fixture
def make_cli(tmp_path: Path) -> Iterator[Callable[[], Cli]]:
    """A command line with a separate home; commands that it started end with the test, in any state of its lab."""
    with _command_lines(tmp_path) as make:
        yield make


@pytest.fixture(scope="module")
def module_cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """A command line for fixtures with module scope."""
    with _command_lines(tmp_path_factory.mktemp("homes")) as make:
        yield make()


@pytest.fixture
def cli(lab: Lab, make_cli: Callable[[], Cli]) -> Cli:
    """``cli(*argv, env=…, timeout=…)`` runs a command, ``cli.start(…)`` starts one; ended before the lab is cleaned."""
    del lab
    return make_cli()


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes`` merged into it, mappings key by key; None removes a key."""
    result = copy.deepcopy(base)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = _merged(result[key], value)
        else:
            result[key] = value
    return result


def _variants(base: Path) -> Callable[..., Path]:
    count = 0

    def write(
        lab: Lab, *, playbook: dict[str, Any] | None = None, models: Sequence[dict[str, Any]] = (), **inventory: Any
    ) -> Path:
        nonlocal count
        count += 1
        directory = base / f"variant-{count}"
        directory.mkdir()
        written = _merged(yaml.safe_load(lab.inventory.read_text()), inventory)

        def changed(name: str, changes: dict[str, Any]) -> str:
            path = directory / f"{name}.yaml"
            path.write_text(yaml.safe_dump(_merged(yaml.safe_load(lab.playbook.read_text()), changes), sort_keys=False))
            return str(path)

        if playbook is not None:
            written["playbook"] = changed("playbook", playbook)
        if models:
            del written["playbook"]
            written["models"] = [
                {**each, "playbook": changed(each["playbook"]["served_name"], each["playbook"])} for each in models
            ]
        path = directory / "inventory.yaml"
        path.write_text(yaml.safe_dump(written, sort_keys=False))
        return path

    return write


@pytest.fixture
def variant(tmp_path: Path) -> Callable[..., Path]:
    """``variant(lab, playbook={…}, **inventory)``: the path of an inventory of ``lab`` with the given keys changed.

    Mappings are merged key by key; None removes a key. With ``playbook`` the inventory gets a separate playbook, with
    ``models=[{"playbook": {"served_name": …, …}, …}, …]`` each model gets one with that name.
    """
    return _variants(tmp_path)


@pytest.fixture(scope="module")
def module_variant(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``variant`` for fixtures with module scope."""
    return _variants(tmp_path_factory.mktemp("variants"))


@dataclasses.dataclass
class PreflightResult:
    """Document and exit code of a ``preflight --json``.

    Attributes:
        found: (code, node, severity) of every error and warning.
        notes: (code, node, severity) of every info finding.
        document: the complete document.
    """

    document: dict[str, Any]
    code: int

    @property
    def found(self) -> set[tuple[str, str | None, str]]:
        return {finding for finding in self._all if finding[2] != "info"}

    @property
    def notes(self) -> set[tuple[str, str | None, str]]:
        return {finding for finding in self._all if finding[2] == "info"}

    @property
    def _all(self) -> list[tuple[str, str | None, str]]:
        return [(finding["code"], finding["node"], finding["severity"]) for finding in self.document["findings"]]

    @property
    def remedies(self) -> list[str]:
        """Every command that it suggests, without notes."""
        return [
            line for finding in self.document["findings"] if finding["severity"] != "info" for line in finding["remedy"]
        ]

    def __str__(self) -> str:
        return "\n".join(json.dumps(finding) for finding in self.document["findings"])

    __repr__ = __str__


@pytest.fixture(scope="module")
def preflight(module_cli: Cli) -> Callable[..., PreflightResult]:
    """``preflight(inventory)``: its findings. Asserts that the exit code is 1 exactly if there is an error."""

    def ask(inventory: Path, *words: str, timeout: float = 300) -> PreflightResult:
        done = module_cli("preflight", inventory, "--json", *words, timeout=timeout)
        assert "Traceback" not in done.err, done
        result = PreflightResult(done.json, done.code)
        assert "findings" in result.document, done
        assert done.code == any(severity == "error" for _, _, severity in result.found), done
        return result

    return ask


@pytest.fixture(scope="session")
def ranks() -> Callable[[Lab], dict[str, list[tuple[str, str, str]]]]:
    """``ranks(lab)``: (ID, name, state) of every container on every Spark, including dead ones."""

    def ask(lab: Lab) -> dict[str, list[tuple[str, str, str]]]:
        form = "{{.ID}} {{.Names}} {{.State}}"
        return {
            spark.name: sorted(
                tuple(line.split(" ", 2))  # type: ignore[misc]
                for line in spark.run(["docker", "ps", "-a", "--no-trunc", "--format", form]).stdout.splitlines()
            )
            for spark in lab.sparks
        }

    return ask
