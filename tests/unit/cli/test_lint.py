"""``lint``: output and exit codes for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparkcluster.cli.main import main
from sparkcluster.linting import lint

ROOT = Path(__file__).parents[3]
GOOD = """\
name: own
model:
  id: RedHatAI/Qwen3.5-122B-A10B-NVFP4
image: vllm/vllm-openai:v0.23.0
tensor_parallel: 1
args:
  moe-backend: marlin
  gpu-memory-utilization: 0.85
  enable-auto-tool-choice: true
  tool-call-parser: qwen3_coder
  reasoning-parser: qwen3
verify:
  max_tokens: 1024
"""


@pytest.fixture
def written(tmp_path):
    def write(text, name="own.yaml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def lint_output(path):
    return [(one.code, one.severity, one.line) for one in lint([path]).findings if one.severity != "info"]


@pytest.mark.parametrize(
    ("add", "code", "severity", "line"),
    [
        ("  quantization: modelopt\n", "SM121-041", "error", 12),
        ("  max-modl-len: 4096\n", "SPEC-003", "error", 12),
        ("  swap-space: 4\n", "SPEC-004", "warning", 12),
    ],
)
def test_a_finding_has_file_and_line(written, capsys, add, code, severity, line):
    path = written(GOOD.replace("verify:\n", f"{add}verify:\n"))
    assert lint_output(path) == [(code, severity, line)]
    assert main(["lint", str(path)]) == (1 if severity == "error" else 0)
    out = capsys.readouterr().out
    assert f"{severity}: {path}:{line}: {code} " in out
    assert "hint: " in out


def test_a_malformed_file_exits_2_with_its_position(written, capsys):
    path = written(GOOD.replace("model:", "modle:"))
    assert main(["lint", str(path)]) == 2
    assert f"{path}:2:1" in capsys.readouterr().err
    assert main(["lint", str(path), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert not document["ok"]
    assert {one["code"] for one in document["findings"]} == {"SPEC-002"}


def test_an_inventory_is_checked_with_its_playbook(written, capsys):
    playbook = written(GOOD.replace("verify:\n", "  quantization: modelopt\nverify:\n"), "playbooks/own.yaml")
    path = written("cluster: x\nplaybook: own\nnodes:\n- host: 192.0.2.1\n", "inventory/x.yaml")
    assert main(["lint", str(path), "--json"]) == 1
    found = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["severity"] == "error"]
    assert [(one["code"], one["line"]) for one in found] == [("SM121-041", 12)]
    assert Path(found[0]["file"]).resolve() == playbook


def test_a_playbook_without_an_image_needs_an_inventory_that_has_one(written, capsys):
    """`up` refuses it with the default inventory; a playbook for runtime process accepts the warning."""
    bare = GOOD.replace("image: vllm/vllm-openai:v0.23.0\n", "")
    path = written(bare)
    assert lint_output(path) == [("SPEC-014", "warning", 1)]
    assert main(["lint", str(path), "--set", "image=vllm/vllm-openai:v0.23.0"]) == 0
    assert "SPEC-014" not in capsys.readouterr().out
    assert lint_output(written(bare + "allow: [{code: SPEC-014, reason: for runtime process}]\n")) == []


def test_an_overlay_is_checked_on_the_playbooks_that_use_it(written):
    written(GOOD + "overlays: [small]\n", "own.yaml")
    overlay = written("overlay: small\nargs:\n  kv-cache-dtype: fp8\n", "overlays/small.yaml")
    assert lint_output(overlay) == [("SM121-045", "warning", 3)]
    assert ("SM121-045", "warning", 3) in lint_output(overlay.parent.parent / "own.yaml")


def test_a_playbook_may_be_specified_by_name(written, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["lint", "gpt-oss-20b"]) == 0
    assert main(["lint", "gpt-oss-20"]) == 2
    assert "did you mean gpt-oss-20b?" in capsys.readouterr().err
    (tmp_path / "gpt-oss-20b").write_text("name: [\n")
    assert main(["lint", "gpt-oss-20b"]) == 2, "a file of that name is the file"


def test_bundled_files_lint_clean():
    files = [*(ROOT / "playbooks").rglob("*.yaml"), *(ROOT / "inventory").glob("*.yaml")]
    linted = lint(sorted(files))
    assert len(files) > 20
    assert [one for one in linted.findings if one.severity == "error"] == []
    assert linted.errors == ()


def test_an_overlay_may_be_specified_with_its_playbook(written, capsys):
    written(GOOD + "overlays: [small]\n", "own.yaml")
    path = written("overlay: small\nargs:\n  kv-cache-dtype: fp8\n", "overlays/small.yaml")
    assert main(["lint", f"{path.parent.parent}/own.yaml+small"]) == 0
    assert f"{path}:3: SM121-045" in capsys.readouterr().out
    assert main(["lint", "gpt-oss-120b+suffix"]) == 2
    assert "does not allow overlay" in capsys.readouterr().err


def test_lines_left_unchanged_from_the_examples_are_noted(written, capsys):
    path = written((ROOT / "inventory/two-spark.yaml").read_text(), "mine.yaml")
    assert main(["lint", str(path)]) == 0
    assert f"warning: {path}:18: SPEC-011 still marked CHANGE: host: 192.168.1.11\n" in capsys.readouterr().out
    path.write_text(path.read_text().replace("# CHANGE", "#"))
    assert "SPEC-011" not in [code for code, _, _ in lint_output(path)]


def test_a_key_set_on_the_command_line_is_checked_and_reported_without_a_line_number(written, capsys):
    path = written(GOOD)
    assert main(["lint", str(path), "--set", "args.quantization=modelopt"]) == 1
    assert "error: --set args.quantization: SM121-041 " in capsys.readouterr().out
    assert main(["lint", str(path)]) == 0
