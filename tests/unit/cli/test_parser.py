"""Command lines: which word is the inventory, its default, and suggestions for other verbs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from sparkcluster.cli import verbs
from sparkcluster.cli.common import is_inventory
from sparkcluster.cli.parser import Parser, parser_of
from sparkcluster.errors import UsageError


def parser(name: str) -> Parser:
    return parser_of(name)[0]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPARKCLUSTER_INVENTORY", raising=False)
    (tmp_path / "cluster").write_text("cluster: c\n")
    (tmp_path / "spark-2").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("line", "inventory", "others"),
    [
        ("status", None, {}),
        ("status spark-1", "spark-1", {}),  # it takes nothing else
        ("logs spark-1", None, {"node": "spark-1"}),
        ("logs cluster spark-1", "cluster", {"node": "spark-1"}),
        ("logs spark-2", None, {"node": "spark-2"}),  # an empty file, as > spark-2 makes
        ("logs -fn 5 away.yml spark-1", "away.yml", {"node": "spark-1", "follow": True, "tail": 5}),
        ("logs --tail=5 dir/away", "dir/away", {"tail": 5}),
        ("releases cluster 3 4", "cluster", {"numbers": [3, 4]}),
        ("rollback --wait 5 3 --json", None, {"release": 3, "wait": 5.0}),
        ("stage weights --from cluster", None, {"what": "weights", "given": Path("cluster")}),
        ("lint a.yaml --json b.yaml", None, {"files": [Path("a.yaml"), Path("b.yaml")]}),
    ],
)
def test_the_inventory_may_precede_or_follow_other_arguments(
    line: str, inventory: str | None, others: dict[str, object], directory: Path
) -> None:
    (directory / "sparkcluster.yaml").touch()
    name, *words = shlex.split(line)
    args = vars(parser(name).read(words))
    if name != "lint":
        assert args["inventory"] == Path(inventory or "sparkcluster.yaml")
    assert {key: args[key] for key in others} == others


@pytest.mark.parametrize(
    ("word", "expected"), [("what is TCP/IP?", False), ("explain my.yaml", False), ("my.yaml", True), ("\0", False)]
)
def test_a_prompt_is_not_an_inventory(word: str, expected: bool) -> None:
    assert is_inventory(word) is expected


def test_command_line_precedes_environment_precedes_file(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = parser("status").read
    with pytest.raises(UsageError, match=r"^INVENTORY is missing$") as caught:
        read([])
    for way in ("SPARKCLUSTER_INVENTORY", "sparkcluster discover -o sparkcluster.yaml"):
        assert way in (caught.value.hint or "")
    (directory / "sparkcluster.yaml").touch()
    assert read([]).inventory == Path("sparkcluster.yaml")
    assert capsys.readouterr().err == "inventory: sparkcluster.yaml (in this directory)\n"
    monkeypatch.setenv("SPARKCLUSTER_INVENTORY", "cluster")
    assert read([]).inventory == Path("cluster")
    assert capsys.readouterr().err == "inventory: cluster (from SPARKCLUSTER_INVENTORY)\n"
    read(["--json"])
    assert read(["other.yaml"]).inventory == Path("other.yaml")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("SPARKCLUSTER_INVENTORY", "gone.yaml")
    with pytest.raises(UsageError, match=r"^SPARKCLUSTER_INVENTORY: gone.yaml: no such file$"):
        read([])


def test_an_inventory_in_last_position_is_an_error_with_the_right_order(directory: Path) -> None:
    with pytest.raises(UsageError, match=r"^INVENTORY comes first$") as caught:
        parser("ask").read(["Hello there", "desk.yaml"])
    assert caught.value.hint == "sparkcluster ask desk.yaml …"
    (directory / "sparkcluster.yaml").touch()
    assert parser("ask").read(["explain", "desk.yaml"]).prompt == ["explain", "desk.yaml"]


@pytest.mark.parametrize("line", sorted(set(verbs.ALIASES.values())))
def test_the_suggested_correction_is_a_command(line: str) -> None:
    name, *words = shlex.split(line)
    parser(name).split(words)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("stop cluster --json-lines", "sparkcluster down cluster --json-lines"),
        ("tail 'my file.yaml' spark-1", "sparkcluster logs 'my file.yaml' spark-1"),
        ("get nodes", "sparkcluster status"),
        ("Strat", "sparkcluster up"),
        ("statsu c.yaml", "sparkcluster status c.yaml"),
        ("c.yaml up", "the command comes first: sparkcluster status c.yaml"),
        ("xyzzy", None),
        ("", None),
    ],
)
def test_the_arguments_of_a_mistyped_subcommand_are_kept(line: str, hint: str | None) -> None:
    assert verbs.instead_of(shlex.split(line) or [""]) == hint


def test_an_unknown_flag_is_reported_before_its_consequences_and_a_value_is_not_a_flag(directory: Path) -> None:
    """``rollback --playbook x`` has an unknown flag, and no release named x; the value of a flag may begin with dashes."""
    (directory / "sparkcluster.yaml").touch()
    with pytest.raises(UsageError, match="unknown flag of sparkcluster rollback: --playbook"):
        parser("rollback").read(["--playbook", "x"])
    assert parser("logs").read(["--grep", "--- a b"]).grep.pattern == "--- a b"
    assert parser("ask").read(["--system", "--- be brief", "hello"]).system == "--- be brief"
