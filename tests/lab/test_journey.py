"""README on a terminal of 80 columns: from unboxing to tokens, with the mistakes of a first day that involve nodes.

tests/unit/cli/test_mistakes.py has the mistakes that involve no nodes.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess

import pytest

from sparkcluster.printable import COLOURS
from tests.lab.test_serving import until
from tests.lab.test_setup import Desk
from tests.unit.on_terminal import Shell
from tests.unit.screen import broken, shown

KEY = {"SPARK_API_KEY": "of-the-journey"}
LIMIT_S = 180
SLOW = "--set env.STUB_FAULT=slow-start=60"
"""Makes the weights take a minute."""


class Screen(list[str]):
    """The lines on the terminal after a command, and its exit code."""

    code: int

    def first(self, word: str) -> str:
        """The text of the first line that begins with ``word:``, with its continuation lines."""
        at = next((at for at, line in enumerate(self) if line.lstrip().startswith(f"{word}: ")), None)
        assert at is not None, f"no {word}:\n{self}"
        indent = len(self[at]) - len(self[at].lstrip())
        text = [self[at].lstrip().removeprefix(f"{word}: ")]
        for line in self[at + 1 :]:
            if not line.startswith(f"{' ' * indent}  ") or re.match(r" *\w+: ", line):
                break
            text.append(line.strip())
        return " ".join(text)

    @property
    def words(self) -> str:
        """The complete text as one line."""
        return " ".join(" ".join(self).split())

    def __str__(self) -> str:
        return "\n".join([*self, f"exit {self.code}"])

    __repr__ = __str__


class Typist(Desk):
    """A user at a laptop: bare Sparks in its network, README, and a shell."""

    def open(self, line, **env):
        """Type a line whose command keeps running."""
        return Shell(
            line, self.command_line.home, {**KEY, **env}, prefix=("nsenter", f"--net=/run/netns/{self.laptop}")
        )

    def type(self, line, code, *, answers=(), **env):
        """Type a line, and ``answers`` as pairs of question and answer; returns the final screen."""
        with self.open(line, **env) as terminal:
            for question, answer in answers:
                terminal.until(question, limit_s=LIMIT_S)
                terminal.type(answer)
            ended = terminal.end(LIMIT_S)
        screen = Screen(COLOURS.sub("", each) for each in shown(terminal.shown))
        screen.code = ended
        assert ended == code, f"{line}\n{screen}"
        if not line.startswith(("sparkcluster ask", "sparkcluster logs")) or code:  # text of a model or an engine
            assert broken(screen, 80) == [], f"{line}\n{screen}"
        assert "Traceback" not in terminal.shown, screen
        return screen


@pytest.fixture
def typist(make_lab, make_cli):
    lab = make_lab("bare: true\ntopology: direct\n", engine="stub")
    return Typist(lab, make_cli())


def refused(screen, cause, hint):
    """The first error says ``cause``, and the first hint begins with ``hint``; returns that hint."""
    assert screen.first("error").startswith(cause), screen
    assert screen.first("hint").startswith(hint), screen
    return screen.first("hint")


def test_readme_from_unboxing_to_tokens_with_the_mistakes_of_a_first_day(typist, ranks):
    lab = typist.lab
    nothing = {spark.name: [] for spark in lab.sparks}
    login = shlex.join(["--user", "spark", "-i", str(lab.identity), "--known-hosts", str(typist.known_hosts)])

    # find the Sparks, and set them up
    found = typist.type(f"sparkcluster discover {login} -o mine.yaml --yes", 0)
    assert found.first("next") == "sparkcluster setup mine.yaml"
    refused(
        typist.type(f"sparkcluster discover {login} -o mine.yaml < /dev/null", 2), "mine.yaml already exists", "add"
    )
    early = typist.type("sparkcluster preflight mine.yaml", 1)
    assert "sparkcluster setup mine.yaml" in early.words
    typist.type(f"{found.first('next')} --yes", 0)
    (typist.inventory.parent / "playbooks").mkdir()
    shutil.copy(lab.playbook, typist.inventory.parent / "playbooks/tiny.yaml")
    subprocess.run(["sed", "-i", "s|^playbook:.*|playbook: tiny|", typist.inventory], check=True)

    # while nothing runs
    typist.type("sparkcluster lint mine.yaml", 0)
    unset = typist.type("unset SPARK_API_KEY; sparkcluster up mine.yaml", 2, answers=[("accept", "y\n")])
    assert "SPARK_API_KEY is not set" in unset.words
    down = typist.type("sparkcluster status mine.yaml", 1)
    name = down[0].removesuffix("  ● down")
    assert (down[0], down.first("next")) == (f"{name}  ● down", "sparkcluster up mine.yaml")
    refused(typist.type("sparkcluster ask mine.yaml Hello", 1), f"{name} is down", down.first("next"))
    refused(typist.type("sparkcluster logs mine.yaml --failed", 1), "no log of a failed launch", "sparkcluster doctor")
    typist.type("sparkcluster stage mine.yaml --dry-run", 0)
    typist.type("sparkcluster plan mine.yaml", 0)
    typist.type("sparkcluster plan mine.yaml -v", 0)
    assert ranks(lab) == nothing
    typist.type("sparkcluster down mine.yaml", 0)

    # Ctrl-C in up leaves nothing running
    with typist.open(f"sparkcluster up mine.yaml --yes {SLOW}") as terminal:
        terminal.until("start    ", limit_s=LIMIT_S)
        terminal.type("\x03")
        assert terminal.end(LIMIT_S) == 130, terminal.shown
    assert "interrupted; nothing is left running" in terminal.shown
    assert ranks(lab) == nothing

    # a closed terminal leaves ranks that the next up continues with
    with typist.open("sparkcluster up mine.yaml") as terminal:
        terminal.until("verify   ", limit_s=LIMIT_S)
        terminal.hang_up()
    until(lambda: "orphaned" in typist.cli("status", typist.inventory, env=KEY).out)
    orphaned = typist.type("sparkcluster status mine.yaml", 1)
    assert "ended before the model was ready" in orphaned.words
    refused(typist.type("sparkcluster ask mine.yaml Hello", 1), f"{name} is orphaned", orphaned.first("next"))
    up = typist.type(orphaned.first("next"), 0)
    assert "continuing with the ranks that it started" in up.words
    assert "release 1, " in up.words

    # it serves
    again = typist.type("sparkcluster up mine.yaml", 0)
    assert "is already up" in again.words
    typist.type('sparkcluster ask mine.yaml "Why is the sky blue?"', 0)
    serving = typist.type("sparkcluster status mine.yaml", 0)
    assert serving.first("next") == 'sparkcluster ask mine.yaml "Hello"'
    typist.type(serving.first("next"), 0)
    doctor = typist.type("sparkcluster doctor mine.yaml", 0)
    assert doctor.first("next") == serving.first("next")
    typist.type("sparkcluster connect mine.yaml --client open-webui", 0)
    typist.type("sparkcluster logs mine.yaml --since 10m --grep startup | head -1", 0)
    typist.type("sparkcluster releases mine.yaml", 0)
    refused(typist.type("sparkcluster ask mine.yaml --group x Hello", 2), "there is no group x", "its groups: default")
    rotated = typist.type("sparkcluster up mine.yaml", 1, SPARK_API_KEY="another")
    refused(rotated, f"{name} serves with a different secret than the one set here", "sparkcluster restart mine.yaml")
    other = typist.type("sparkcluster up mine.yaml --set args.max-num-seqs=2 --yes", 1)
    hint = refused(other, f"{name} serves release 1, which has a different plan", "sparkcluster upgrade mine.yaml")
    assert ranks(lab) != nothing
    assert "upgrade mine.yaml --set args.max-num-seqs=2" in hint
    running = typist.type("sparkcluster setup mine.yaml --undo --yes", 1)
    typist.type(refused(running, "running ranks on", "sparkcluster down mine.yaml"), 0)

    # down, twice, and everything as it was
    again = typist.type("sparkcluster down mine.yaml", 0)
    assert "nothing was running" in again.words
    assert ranks(lab) == nothing
    typist.type("sparkcluster setup mine.yaml --undo --yes", 0)
