"""``lint``: what it says of files, with which exit code, for people and for programs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from sparkcluster import checks
from sparkcluster.cli import sarif
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


def told(path):
    return [(one.code, one.severity, one.line) for one in lint([path]).findings if one.severity != "info"]


def test_a_good_playbook(written, capsys):
    path = written(GOOD)
    assert told(path) == []
    assert main(["lint", str(path)]) == 0
    assert capsys.readouterr().out.startswith("1 file checked, no problems")


@pytest.mark.parametrize(
    ("add", "code", "severity", "line"),
    [
        ("  quantization: modelopt\n", "SM121-041", "error", 12),
        ("  kv-cache-dtype: fp8\n", "SM121-045", "warning", 12),
        ("  max-modl-len: 4096\n", "SPEC-003", "error", 12),
        ("  max-num-seqs: many\n", "SPEC-005", "error", 12),
        ("  swap-space: 4\n", "SPEC-004", "warning", 12),
    ],
)
def test_a_finding_names_file_and_line(written, capsys, add, code, severity, line):
    path = written(GOOD.replace("verify:\n", f"{add}verify:\n"))
    assert told(path) == [(code, severity, line)]
    assert main(["lint", str(path)]) == (1 if severity == "error" else 0)
    out = capsys.readouterr().out
    assert f"{severity}: {path}:{line}: {code} " in out
    assert "hint: " in out


def test_a_finding_about_what_is_missing_stands_at_its_section(written):
    path = written(GOOD.replace("  moe-backend: marlin\n", "").replace("v0.23.0", "v0.19.0"))
    assert ("SM121-020", "warning", 4) in told(path)


def test_allow_softens_by_code(written):
    allow = "allow:\n- {code: SM121-041, reason: a test of the loader}\n"
    path = written(GOOD.replace("verify:\n", "  quantization: modelopt\nverify:\n") + allow)
    assert told(path) == [("SM121-041", "warning", 12)]
    assert main(["lint", str(path)]) == 0


def test_a_playbook_of_any_size_is_judged_on_one_spark_and_on_two(written):
    text = GOOD.replace("tensor_parallel: 1\n", "").replace("0.85\n", "0.85\n  max-model-len: 131072\n")
    text = text.replace("vllm/vllm-openai:v0.23.0", "nvcr.io/nvidia/vllm:26.04-py3")
    assert ("SM121-061", "warning", 7) in told(written(text))
    assert "SM121-061" not in {code for code, *_ in told(written(text.replace("image:", "tensor_parallel: 1\nimage:")))}


def test_malformed_is_exit_2_and_says_where(written, capsys):
    path = written(GOOD.replace("model:", "modle:"))
    assert main(["lint", str(path)]) == 2
    assert f"{path}:2:1" in capsys.readouterr().err
    assert main(["lint", str(path), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert not document["ok"]
    assert {one["code"] for one in document["findings"]} == {"SPEC-002"}


def test_an_inventory_is_judged_with_its_playbook(written, capsys):
    playbook = written(GOOD.replace("verify:\n", "  quantization: modelopt\nverify:\n"), "playbooks/own.yaml")
    path = written("cluster: x\nplaybook: own\nnodes:\n- host: 192.0.2.1\n", "inventory/x.yaml")
    assert main(["lint", str(path), "--json"]) == 1
    found = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["severity"] == "error"]
    assert [(one["code"], one["line"]) for one in found] == [("SM121-041", 12)]
    assert Path(found[0]["file"]).resolve() == playbook


def test_an_open_api_is_a_warning_with_the_command_for_this_inventory(written, capsys):
    written(GOOD)
    text = "cluster: c\nnodes: [{host: 192.168.1.11}]\nplaybook: own.yaml\napi: {host: management}\n"
    path = written(text, "my inventory.yaml")
    assert [(code, severity) for code, severity, _ in told(path)] == [("NET-020", "warning")]
    assert main(["lint", str(path)]) == 0
    assert f"hint: sparkcluster key '{path}'\n" in capsys.readouterr().out
    assert told(written(f"{text}ignore: [NET-020]\n", "open.yaml")) == []


def test_an_overlay_is_judged_on_the_playbooks_that_take_it(written):
    written(GOOD + "overlays: [small]\n", "own.yaml")
    overlay = written("overlay: small\nargs:\n  kv-cache-dtype: fp8\n", "overlays/small.yaml")
    assert told(overlay) == [("SM121-045", "warning", 3)]
    assert ("SM121-045", "warning", 3) in told(overlay.parent.parent / "own.yaml")


def test_an_overlay_that_nobody_takes_is_told(written):
    overlay = written("overlay: small\nargs:\n  kv-cache-dtype: fp8\n", "overlays/small.yaml")
    assert [(one.code, one.severity) for one in lint([overlay]).findings] == [("SPEC-006", "info")]


def test_a_playbook_may_be_given_by_its_name(written, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["lint", "gpt-oss-20b"]) == 0
    assert main(["lint", "gpt-oss-20"]) == 2
    assert "did you mean gpt-oss-20b?" in capsys.readouterr().err
    (tmp_path / "gpt-oss-20b").write_text("name: [\n")
    assert main(["lint", "gpt-oss-20b"]) == 2, "a file of that name is the file"


def test_a_bomb_is_refused(written, capsys):
    anchors = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 20)}]\n" for n in range(1, 9))
    path = written("a0: &a0 x\n" + anchors + "model: {id: a/b}\nname: x\n")
    assert main(["lint", str(path)]) == 2
    assert "more than" in capsys.readouterr().err


def test_what_the_project_brings_lints_clean():
    files = [*(ROOT / "playbooks").rglob("*.yaml"), *(ROOT / "inventory").glob("*.yaml")]
    linted = lint(sorted(files))
    assert len(files) > 20
    assert [one for one in linted.findings if one.severity == "error"] == []
    assert linted.errors == ()


@pytest.fixture
def log(written, tmp_path):
    bad = written(GOOD.replace("verify:\n", "  quantization: modelopt\n  max-num-seqs: 64\nverify:\n"), "a b/ö.yaml")
    broken = written("model: [\n", "broken.yaml")
    out = tmp_path / "out.sarif"
    assert main(["lint", str(bad), str(broken), "--sarif", str(out)]) == 2
    return json.loads(out.read_text()), bad, broken


def test_sarif_has_what_the_standard_requires(log):
    document, *_ = log
    assert document["version"] == "2.1.0"
    assert document["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = document["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "sparkcluster"
    assert re.fullmatch(r"\d+\.\d+\.\d+([-+.].*)?", driver["semanticVersion"])
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(ids) == len(set(ids))
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"]
        assert rule["defaultConfiguration"]["level"] in {"none", "note", "warning", "error"}
    assert run["results"]
    for result in run["results"]:
        assert ids[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in {"none", "note", "warning", "error"}
        assert result["message"]["text"]
        for location in result["locations"]:
            place = location["physicalLocation"]
            assert re.fullmatch(r"[A-Za-z0-9._~:/%!$&'()*+,;=@-]+", place["artifactLocation"]["uri"])
            assert place["region"]["startLine"] >= 1
            assert place["region"].get("startColumn", 1) >= 1


def test_sarif_says_which_line_of_which_file(log):
    document, bad, broken = log
    results = {one["ruleId"]: one for one in document["runs"][0]["results"]}
    place = results["SM121-041"]["locations"][0]["physicalLocation"]
    assert Path(unquote(place["artifactLocation"]["uri"].removeprefix("file://"))) == bad
    assert place["region"] == {"startLine": 12}
    assert results["SM121-062"]["level"] == "note"
    place = results["SPEC-002"]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"].endswith(broken.name)
    assert "startColumn" in place["region"]
    assert document["runs"][0]["invocations"] == [{"executionSuccessful": False}]


def test_sarif_names_files_below_where_it_was_started(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert sarif.uri("playbooks/a b.yaml") == "playbooks/a%20b.yaml"
    assert sarif.uri(str(tmp_path / "x.yaml")) == "x.yaml"
    assert sarif.uri("/elsewhere/x.yaml") == "file:///elsewhere/x.yaml"


@pytest.mark.parametrize("where", ["", "missing/out.sarif"])
def test_sarif_that_cannot_be_written_is_told_first(written, tmp_path, where):
    path = written(GOOD)
    from sparkcluster.errors import UsageError

    with pytest.raises(UsageError) as caught:
        main(["lint", str(path), "--sarif", str(tmp_path / where)])
    assert caught.value.hint


def test_a_report_takes_no_devices_place(written, tmp_path):
    """Root may rename a file over /dev/stdout, after which nothing on the machine has one."""
    import os
    import stat

    from sparkcluster.errors import UsageError

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="not a regular file"):
        main(["lint", str(written(GOOD)), "--sarif", str(pipe)])
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_report_goes_through_a_link(written, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real.sarif")
    main(["lint", str(written(GOOD)), "--sarif", str(tmp_path / "link")])
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "real.sarif").read_text())["version"] == "2.1.0"


def test_a_key_that_is_set_is_judged_and_named_without_a_line(written, capsys, tmp_path):
    path = written(GOOD)
    assert main(["lint", str(path), "--set", "args.quantization=modelopt", "--sarif", str(tmp_path / "out.sarif")]) == 1
    assert "error: --set args.quantization: SM121-041 " in capsys.readouterr().out
    (result,) = [
        each
        for each in json.loads((tmp_path / "out.sarif").read_text())["runs"][0]["results"]
        if each["level"] == "error"
    ]
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 1}
    assert main(["lint", str(path)]) == 0


@pytest.mark.parametrize(
    ("bounds", "sizes"),
    [("", [1, 2]), ("nodes: {min: 2}\n", [2]), ("nodes: {max: 1}\n", [1]), ("nodes: {min: 3, max: 4}\n", [3])],
)
def test_a_playbook_is_judged_on_as_many_nodes_as_it_may_have(written, monkeypatch, bounds, sizes):
    judged = []
    monkeypatch.setattr(checks, "check_written", lambda spec: judged.append(len(spec.inventory.nodes)) or [])
    lint([written(GOOD.replace("tensor_parallel: 1\n", bounds))])
    assert judged == sizes
