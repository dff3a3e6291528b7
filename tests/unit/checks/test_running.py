"""Each check of a running cluster on readings with the fault, on lines from public threads, and on near misses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from sparkcluster import checks, topology
from sparkcluster.checks.check import CATALOGUE, Context
from sparkcluster.endpoint.judge import garbage
from sparkcluster.engines.causes import RankEnd, first_failure
from sparkcluster.engines.vllm import ENGINE as VLLM
from sparkcluster.facts.base import Unread
from sparkcluster.facts.model import EnabledFact, LeaseFact, ReleaseFact
from sparkcluster.facts.running import Counters, GpuSample, Observation, RankSeen, Reply, Running, Traffic
from sparkcluster.topology import recorded

GOLDEN = Path(__file__).parents[2] / "golden" / "logs"
CASES: list[dict[str, Any]] = json.loads((GOLDEN / "running.json").read_text())
TWO = {"alpha": "192.168.86.11", "beta": "192.168.86.12"}
PORT_0 = ("enp1s0f0np0", "enP2p1s0f0np0")
MEMBERS = ["192.168.177.11", "192.168.177.12"]
HEALTHY_LOG = (GOLDEN / "vllm-0.20-cuda.log").read_text().splitlines()
ENGINE = ["vllm", "serve", "/m", "--host", "0.0.0.0", "--port", "8000"]


def rank(node: str, number: int, *lines: str, engine: list[str] | None = None, **changes: Any) -> RankSeen:
    role = "worker" if number else "head"
    labels = {
        "io.sparkcluster.group": "default",
        "io.sparkcluster.release": "3",
        "io.sparkcluster.rank": str(number),
        "io.sparkcluster.node": node,
    }
    launcher = {"role": role, "executor": "ray", "group": "default", "members": MEMBERS, "engine": engine or ENGINE}
    base = RankSeen(name=f"pair-3-{node}", state="running", labels=labels, launcher=launcher)
    log = tuple(lines or (HEALTHY_LOG if number == 0 else ("[sparkcluster] phase=ray-start worker",)))
    return base.model_copy(update={"log": log, **changes})


def look(*ranks: RankSeen, **changes: Any) -> Observation:
    idle = GpuSample(at_s=0, utilization_percent=0, power_w=4.1, sm_clock_mhz=208)
    return Observation(ranks=ranks, gpus=(idle, idle), traffic=()).model_copy(update=changes)


def head(*ranks: RankSeen, made: float = 60, **changes: Any) -> Observation:
    counters = (
        Counters(at_s=0, generated=100, running=1, waiting=0),
        Counters(at_s=3, generated=100 + made, running=0 if made else 1, waiting=0),
    )
    given = {"counters": counters, "health": 200, "ray": dict.fromkeys(MEMBERS, True)} | changes
    return look(*ranks, **given)


def reply(**changes: Any) -> Reply:
    told = {"ttft_s": 0.2, "tokens_per_s": 30.0, "tokens": 9, "text": "12 * 17 is 204.", "finish": "stop"} | changes
    return Reply("default", "alpha", limit_s=25, **told)


def silence(problem: str = "timeout", message: str = "no complete answer within 25 s") -> Reply:
    return reply(ttft_s=None, tokens_per_s=None, tokens=None, text="", finish=None, problem=problem, message=message)


UP = LeaseFact(epoch=4, held=True, operator="ann@desk (pid 7)", operation="up")
RECORD = {
    "number": 3,
    "playbook": {"name": "test"},
    "plan": {
        "model": "m",
        "nodes": {
            name: {
                "group": "default",
                "role": role,
                "env": {},
                "containers": [{"name": f"pair-3-{name}", "launcher": {}}],
            }
            for name, role in (("alpha", "head"), ("beta", "worker"))
        },
    },
}


@pytest.fixture
def diagnosed(spark, cluster):
    """Findings of a pair with the given readings; healthy ones by default."""

    def run(
        alpha: Observation | Unread | None = None,
        beta: Observation | Unread | None = None,
        answer: Reply | None = None,
        *,
        facts: dict[str, dict[str, Any]] | None = None,
        playbook: dict[str, Any] | None = None,
        record: dict[str, Any] | None = None,
        runtime: str = "docker",
        **running: Any,
    ) -> list[Any]:
        known = {
            name: spark(
                {PORT_0[0]: f"192.168.177.{11 + at}/24", PORT_0[1]: f"192.168.178.{11 + at}/24"},
                management=f"192.168.86.{11 + at}/24",
            ).model_copy(update=(facts or {}).get(name, {}))
            for at, name in enumerate(TWO)
        }
        spec = cluster(TWO, playbook=playbook, runtime={"kind": runtime})
        written = {**RECORD, "playbook": {"name": spec.playbook.name}} if record is None else record
        observations = {"alpha": alpha or head(rank("alpha", 0)), "beta": beta or look(rank("beta", 1))}
        recorded = ReleaseFact(number=3, plan_hash="x", record=written) if written else None
        seen = Running(observations, {"default": answer or reply()}, recorded, **running)
        found = checks.run_stage(Context(spec, known, topology.build(spec, known), running=seen), ("running",))
        assert all(each.seen and each.why and each.remedy and each.code in CATALOGUE for each in found)
        return found

    return run


def codes(findings: list[Any], *, infos: bool = False) -> set[tuple[str, str | None]]:
    return {(finding.code, finding.node) for finding in findings if infos or finding.severity != "info"}


def test_a_healthy_pair_has_no_finding(diagnosed):
    assert diagnosed() == []


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_log_lines_from_public_threads(case, diagnosed):
    """Each with its public thread: the finding, or that there is none."""
    engine = [*ENGINE, *case.get("engine", [])]
    lines = (*HEALTHY_LOG, *case["lines"]) if case.get("after_start", True) else tuple(case["lines"])
    ended = {"state": "exited", "exit_code": case["exit_code"]} if "exit_code" in case else {}
    alpha = head(rank("alpha", 0, *lines, engine=engine, **ended), **({"counters": None} if ended else {}))
    answer = silence(**case["answer"]) if "answer" in case else None
    kernel = {"alpha": {"kernel_log": tuple(case["kernel"])}} if "kernel" in case else None
    found = diagnosed(alpha, answer=answer, facts=kernel)
    assert codes(found) == {tuple(expected) for expected in case["found"]}, case["source"]
    for finding in found:
        assert case.get("seen", "") in finding.seen


HUNG_GPU = GpuSample(at_s=0, utilization_percent=96, power_w=24.3, sm_clock_mhz=2405)
WEDGED_GPU = GpuSample(at_s=0, utilization_percent=95, power_w=17.2, sm_clock_mhz=799)


def test_constant_token_counters_during_a_request_are_a_hang(diagnosed):
    spinning = look(rank("beta", 1), gpus=(HUNG_GPU, HUNG_GPU))
    found = diagnosed(head(rank("alpha", 0), made=0, gpus=(HUNG_GPU, HUNG_GPU)), spinning, silence())
    assert codes(found) == {("RUN-003", "alpha")}
    assert "100 tokens before and after 3 s, 1 running; a request of doctor had no token in 25 s" in found[0].seen
    assert "96 %, 24 W" in found[0].seen
    idle = diagnosed(head(rank("alpha", 0), made=0, gpus=(HUNG_GPU, HUNG_GPU)), None, silence())
    assert codes(idle) == {("RUN-003", "beta")}, "the rank that idles while the others wait"


@pytest.mark.parametrize(("stalled_s", "hangs"), [(None, False), (1.0, False), (8.0, True)])
def test_tokens_generated_between_the_two_readings_may_have_been_the_last(diagnosed, stalled_s, hangs):
    """On a busy node the counters are first read before the request arrives."""
    stopped = dataclasses.replace(silence(), ttft_s=0.4, text="the", stalled_s=stalled_s, context=4096)
    found = diagnosed(head(rank("alpha", 0), made=3), None, stopped)
    assert codes(found) == ({("RUN-003", "alpha")} if hangs else set())
    assert not hangs or "103 tokens and no further one for 8 s" in found[0].seen


@pytest.mark.parametrize(("stalled_s", "severity"), [(24.0, "warning"), (61.0, "error")])
def test_no_token_is_a_warning_until_the_time_limit_of_a_prefill(diagnosed, stalled_s, severity):
    """Unless a GPU is busy; a prompt of 256K tokens changes no counter for minutes."""
    waiting = dataclasses.replace(silence(), stalled_s=stalled_s, context=4096)
    (found,) = diagnosed(head(rank("alpha", 0), made=0), None, waiting)
    assert (found.code, found.severity) == ("RUN-003", severity)
    assert ("prefill" in found.summary) is (severity == "warning")
    if severity == "warning":
        assert found.remedy[0].startswith("sparkcluster doctor INVENTORY --timeout 80")


def test_an_engine_that_serves_others_is_busy_and_not_hung(diagnosed):
    found = diagnosed(head(rank("alpha", 0)), None, silence())
    assert codes(found) == {("RUN-023", "alpha")}
    assert {finding.severity for finding in found} == {"warning"}


def test_tokens_counted_at_the_end_of_requests_are_no_hang_while_another_counter_changes(diagnosed):
    """SGLang 0.5.5 and llama.cpp count that way."""
    working = dataclasses.replace(silence(), stalled_s=1.0, moved=True, context=4096)
    assert codes(diagnosed(head(rank("alpha", 0), made=0), None, working)) == {("RUN-023", "alpha")}


def test_a_running_release_is_checked_by_the_rules_of_its_engine_even_if_the_inventory_has_another(diagnosed):
    served = {**RECORD, "playbook": {"name": "test", "engine": "sglang"}}
    (found,) = [each for each in diagnosed(None, None, silence(), record=served) if each.code == "RUN-023"]
    assert "max-running-requests" in found.remedy[0]


def test_power_is_stuck_only_if_both_readings_say_so(diagnosed):
    assert diagnosed(None, look(rank("beta", 1), gpus=(HUNG_GPU, WEDGED_GPU))) == []
    found = diagnosed(None, look(rank("beta", 1), gpus=(WEDGED_GPU, WEDGED_GPU)))
    assert codes(found) == {("RUN-015", "beta")}


@pytest.mark.parametrize("text", ["!!! !!!!! !!!!!!!!!! !!!", "�" * 30, "mult" * 10, "\n".join(["the"] * 30)])
def test_answers_that_are_garbage(text, diagnosed):
    assert codes(diagnosed(answer=reply(text=text))) == {("RUN-004", "alpha")}


@pytest.mark.parametrize(
    "text", ["204", "!", "ha ha ha ha ha", "北京是中国的首都 也是一座历史悠久的城市", "0, 1, 1, 2, 3, 5, 8, 13, 21, 34"]
)
def test_answers_that_are_language_or_too_short_to_judge(text):
    assert garbage(text) is None


def test_an_empty_answer(diagnosed):
    found = diagnosed(answer=reply(ttft_s=None, text=""))
    assert codes(found) == {("RUN-004", "alpha")}
    assert found[0].seen == "9 tokens without text"
    assert "marlin" not in " ".join(found[0].remedy), "no output, so no wrong output"


def test_garbage_on_marlin_blames_the_weights_and_otherwise_the_kernel(diagnosed):
    line = "INFO [nvfp4.py:222] Using '{}' NvFp4 MoE backend out of potential backends: ['VLLM_CUTLASS', 'MARLIN']."
    for kernel, remedy in (("VLLM_CUTLASS", "moe-backend: marlin"), ("MARLIN", "weights --verify")):
        found = diagnosed(head(rank("alpha", 0, *HEALTHY_LOG, line.format(kernel))), answer=reply(text="!" * 40))
        assert codes(found) == {("RUN-004", "alpha")}
        assert remedy in found[0].remedy[0]


CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [192.168.177.12]:30890"


@pytest.mark.parametrize(("oom_killed", "code"), [(False, "RUN-005"), (True, "RUN-014")])
def test_a_killed_worker_is_named_and_gloos_message_on_the_head_is_ignored(diagnosed, oom_killed, code):
    alpha = rank("alpha", 0, CLOSED, state="exited", exit_code=1, finished_at="2026-01-01T00:00:00Z")
    killed = {"exit_code": 137, "oom_killed": oom_killed, "finished_at": "2026-01-01T00:00:01Z"}
    beta = rank("beta", 1, state="exited", **killed)
    found = diagnosed(head(alpha, counters=None), look(beta), silence("refused", "nothing listens"))
    assert (code, "beta") in codes(found)
    assert {node for _, node in codes(found)} == {"beta"}


def test_a_rank_blamed_only_by_the_log_of_another(diagnosed):
    alpha = rank("alpha", 0, CLOSED, state="exited", exit_code=1)
    beta = rank("beta", 1)
    for each, address in ((alpha, MEMBERS[0]), (beta, MEMBERS[1])):
        each.launcher["address"] = address
    found = diagnosed(head(alpha, counters=None), look(beta), silence("refused", "nothing listens"))
    assert codes(found) == {("RUN-021", "beta")}
    assert "according to the log of alpha: the connection to the rank at 192.168.177.12 broke" in found[0].summary


@pytest.mark.parametrize("dead", [False, True])
def test_a_cut_cable_is_reported_and_not_the_resulting_hang_or_deaths(diagnosed, spark, cluster, dead):
    facts = {
        name: spark({port: f"192.168.{177 + rail}.{11 + at}/24" for rail, port in enumerate(PORT_0)})
        for at, name in enumerate(TWO)
    }
    spec = cluster(TWO)
    group = topology.build(spec, facts).groups[0]
    record = {
        **RECORD,
        "playbook": {"name": spec.playbook.name},
        "groups": {"default": {"network": recorded.document(group)}},
    }
    cut = tuple(
        interface.model_copy(update={"carrier": False, "operstate": "down"}) if interface.name in PORT_0 else interface
        for interface in facts["beta"].interfaces
    )
    ended = {"state": "exited", "exit_code": 134} if dead else {}
    alpha = head(rank("alpha", 0, *((CLOSED,) if dead else ()), **ended), made=0, gpus=(HUNG_GPU, HUNG_GPU),
                 ray={MEMBERS[0]: True, MEMBERS[1]: False})  # fmt: skip
    beta = look(rank("beta", 1, **ended), gpus=(HUNG_GPU, HUNG_GPU))
    found = diagnosed(alpha, beta, silence(), facts={"beta": {"interfaces": cut}}, record=record)
    assert codes(found) == {("RUN-025", "beta")}
    assert found[0].summary.startswith(f"beta has no carrier on {PORT_0[0]}: the cable is out")
    assert found[0].remedy[0].startswith("check the cable")
    assert not any("down INVENTORY" in remedy for remedy in found[0].remedy)


def test_a_recorded_rank_that_is_missing_on_its_node(diagnosed):
    found = diagnosed(None, look(), silence("refused", "nothing listens"))
    assert codes(found) == {("RUN-005", "beta")}
    assert "its container no longer exists" in found[0].summary


@pytest.mark.parametrize(("runtime", "code", "told"), [("docker", 255, "255"), ("process", None, "unknown")])
def test_rays_banner_is_not_a_cause_and_a_reboot_is_reported(diagnosed, runtime, code, told):
    line = "This command will now block forever until terminated by a signal."
    beta = look(rank("beta", 1, "loading", line, state="exited", exit_code=code))
    dead = "EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."
    alpha = head(rank("alpha", 0, dead, state="exited", exit_code=0), counters=None)
    (finding,) = diagnosed(alpha, beta, silence("refused", ""), runtime=runtime)
    assert finding.code == "RUN-005"
    assert finding.node == "beta", "this killed the head's engine"
    assert "Ray" not in finding.seen
    assert "SIG" not in finding.seen.upper()
    assert finding.summary.endswith(f"it exited with code {told}, as after a reboot")
    assert finding.remedy[0] == "sparkcluster up INVENTORY"
    assert finding.remedy[1].startswith("sparkcluster enable INVENTORY ")


def sent(rdma: int, sockets: int) -> dict[str, Any]:
    at = [
        Traffic(at_s=0, rdma_bytes={"rocep1s0f0": 10}, socket_bytes={"enp1s0f0np0": 5}),
        Traffic(at_s=3, rdma_bytes={"rocep1s0f0": 10 + rdma}, socket_bytes={"enp1s0f0np0": 5 + sockets}),
    ]
    return {"traffic": tuple(at)}


def test_tokens_over_sockets_only_are_tcp_although_no_log_says_so(diagnosed):
    found = diagnosed(head(rank("alpha", 0), **sent(0, 40_000_000)), look(rank("beta", 1), **sent(9_000_000, 9_000)))
    assert codes(found) == {("RUN-008", "alpha")}
    assert "sent 0 bytes" in found[0].seen
    assert diagnosed(head(rank("alpha", 0), **sent(0, 90_000))) == []
    record = json.loads(json.dumps(RECORD)) | {"playbook": {}}
    record["plan"]["nodes"]["alpha"]["env"]["NCCL_IB_DISABLE"] = "1"
    assert diagnosed(head(rank("alpha", 0), **sent(0, 40_000_000)), record=record) == [], "it was planned without RDMA"


def test_a_container_without_its_gpu(diagnosed):
    lost = rank("beta", 1, gpu="Failed to initialize NVML: Unknown Error")
    assert codes(diagnosed(None, look(lost))) == {("RUN-013", "beta")}
    assert diagnosed(None, look(rank("beta", 1, gpu=Unread(unread="no nvidia-smi in the container")))) == []


def test_a_past_out_of_memory_of_the_driver_is_a_note_while_the_model_answers(diagnosed):
    line = "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from _m"
    facts = {"beta": {"kernel_log": (line,)}}
    noted = diagnosed(facts=facts)
    assert codes(noted) == set()
    assert codes(noted, infos=True) == {("RUN-014", "beta")}
    stuck = diagnosed(head(rank("alpha", 0), made=0), None, silence(), facts=facts)
    assert ("RUN-014", "beta") in codes(stuck)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (
            "pcieport 0002:00:00.0: AER: Multiple Uncorrectable (Non-Fatal) error message received from 0002:00:00.0",
            "PCIe",
        ),
        ("mlx5_core 0002:01:00.1: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer", "PCIe"),
        (
            "mlx5_core 0000:01:00.1: print_health_info:430:(pid 0): Health issue observed, firmware internal error",
            "ConnectX",
        ),
        ("mlx5_core 0002:01:00.0: mlx5_health_try_recover:335:(pid 9): handling bad device here", "ConnectX"),
        ("watchdog: BUG: soft lockup - CPU#11 stuck for 48s! [irq/51-aerdrv:131]", "lockup"),
        ("Internal error: Oops: 0000000086000004 [#3] PREEMPT SMP", "Oops"),
        ("pcieport 0002:00:00.0: AER: Correctable error message received from 0002:01:00.0", None),
        ("pcieport 0004:00:00.0: AER: Uncorrectable (Fatal) error message received from 0004:01:00.0", None),
        ("mlx5_core 0000:01:00.0: Detected insufficient power on the PCIe slot (27W).", None),
        ("mlx5_core 0000:01:00.1 enp1s0f1np1: Link up", None),
    ],
)
def test_a_fault_in_the_kernel_log_is_a_finding_of_its_node(diagnosed, line, word):
    """An error if the model does not answer; corrected errors, other devices and lines of every Spark are ignored."""
    for answer, severity in ((None, "warning"), (silence("refused", "nothing listens"), "error")):
        found = diagnosed(answer=answer, facts={"beta": {"kernel_log": (f"2026-09-21T08:14:02Z {line}",)}})
        faults = [each for each in found if each.code == "RUN-026"]
        assert [(each.node, each.severity) for each in faults] == ([("beta", severity)] if word else [])
        assert all(word in each.summary and line in each.seen for each in faults)


@pytest.mark.parametrize("xid", [31, 43])
def test_an_xid_caused_by_a_rank_counts_only_after_the_ranks_start(diagnosed, xid):
    log = {
        "beta": {"kernel_log": (f"2026-09-21T08:14:02Z NVRM: Xid (PCI:000f:01:00): {xid}, pid=71, name=VLLM::Worker",)}
    }
    for started_at, expected in (("2026-09-21T08:10:00.5Z", {("RUN-026", "beta")}), ("2026-09-21T09:00:00Z", set())):
        assert codes(diagnosed(None, look(rank("beta", 1, started_at=started_at)), facts=log)) == expected
    assert codes(diagnosed(None, look(rank("beta", 1)), facts=log)) == set(), "the start time of its rank is unknown"


def test_a_boot_that_ended_without_shutdown_is_reported_with_its_last_lines(diagnosed):
    lines = (
        "…T08:14:01 kernel: watchdog: BUG: soft lockup - CPU#7 stuck for 22s! [python3:9]",
        "…T08:14:02 kernel: usb 1-1: x",
    )
    (found,) = [each for each in diagnosed(facts={"beta": {"boot_before": lines}}) if each.code == "RUN-027"]
    assert (found.node, found.severity) == ("beta", "info")
    assert "lockup" in found.summary
    assert lines[0] in found.seen
    unread = {"beta": {"boot_before": Unread(unread="journalctl exit 1: no output")}}
    assert diagnosed(facts=unread) == [], "the model answers"
    (found,) = [each for each in diagnosed(answer=silence(), facts=unread) if each.code == "RUN-027"]
    assert "sudo journalctl -b -1 -k -n 50 --no-pager" in found.remedy


def test_launch_and_doctor_name_the_same_cause(diagnosed):
    """Every recorded line with a distinct cause, as the log of an exited rank."""
    for case in json.loads((GOLDEN / "causes.json").read_text()):
        launch = first_failure(VLLM, [RankEnd("alpha", MEMBERS[0], case["lines"], 1, case["exit_code"])]).cause
        if launch is None or not launch.line or launch.consequence or case["name"] == "tcp":
            continue
        ended = rank("alpha", 0, *case["lines"], state="exited", exit_code=case["exit_code"])
        found = diagnosed(look(ended), answer=silence("refused", "nothing listens"))
        (same,) = [each for each in found if launch.summary in each.summary]
        assert launch.hint is None or launch.hint in same.remedy, case["name"]


def test_almost_no_free_memory_and_swapping(diagnosed, spark):
    """Both are fixed by a smaller model; `swapoff` while it serves would move its pages back into the full memory."""
    have = spark().memory.model_copy(update={"available_bytes": 10**9, "swap_free_bytes": 10**8})
    assert codes(diagnosed(facts={"alpha": {"memory": have}})) == {("RUN-014", "alpha")}
    moving = (Traffic(at_s=0, swapped_pages=5), Traffic(at_s=3, swapped_pages=50_000))
    found = diagnosed(None, look(rank("beta", 1), traffic=moving))
    assert codes(found) == {("RUN-014", "beta")}
    assert found[0].remedy == (VLLM.memory_hint, "sparkcluster down INVENTORY && sparkcluster up INVENTORY")


def test_no_running_ranks(diagnosed):
    found = diagnosed(look(), look(), record={})
    assert ("RUN-001", None) in codes(found)
    assert next(finding for finding in found if finding.code == "RUN-001").remedy == ("sparkcluster up INVENTORY",)
    failed = diagnosed(look(), look(), record={}, failed="failed 2 h ago: why; /x/alpha.log:7: line")
    finding = next(finding for finding in failed if finding.code == "RUN-001")
    assert "/x/alpha.log:7: line" in finding.seen
    assert finding.remedy == ("sparkcluster logs INVENTORY --failed", "sparkcluster up INVENTORY")
    busy = diagnosed(look(), look(), record={}, lease=UP)
    assert {finding.severity for finding in busy if finding.code == "RUN-001"} == {"warning"}


def test_ranks_of_two_releases(diagnosed):
    other = rank("beta", 1)
    other = other.model_copy(update={"labels": other.labels | {"io.sparkcluster.release": "2"}})
    assert ("RUN-020", None) in codes(diagnosed(None, look(other)))


def test_a_node_or_playbook_no_longer_in_the_inventory(diagnosed):
    plan = {**RECORD["plan"], "nodes": {**RECORD["plan"]["nodes"], "gamma": {**RECORD["plan"]["nodes"]["beta"]}}}
    found = diagnosed(record={**RECORD, "plan": plan, "groups": {"default": {"selected": {"playbook": "older"}}}})
    assert [finding.code for finding in found] == ["RUN-020", "RUN-020"]
    assert "gamma" in found[0].summary
    assert "differs from inventory.yaml: playbook" in found[1].summary


def test_a_secret_changed_since_the_start(diagnosed):
    """Clients notice a changed API key; both secrets are used from the next start."""
    found = diagnosed(rotated={"default": ("VLLM_API_KEY", "HF_TOKEN"), "other": ()})
    assert [(finding.code, finding.severity, finding.summary) for finding in found] == [
        ("RUN-020", "warning", "VLLM_API_KEY has changed since atlas was started"),
        ("RUN-020", "warning", "HF_TOKEN has changed since atlas was started"),
    ]
    assert ["HTTP 401" in finding.seen for finding in found] == [True, False]


def test_a_guard_that_gave_up_is_reported_with_the_command_that_starts_the_group(diagnosed):
    why = "it gave up: the engine hung again after a restart: HTTP 500; sparkcluster up INVENTORY starts it"
    found = diagnosed(facts={"alpha": {"enabled": EnabledFact(runs=True, waits=why)}})
    assert [(each.code, each.node, each.seen) for each in found] == [("RUN-028", "alpha", why)]
    assert diagnosed(facts={"alpha": {"enabled": EnabledFact(runs=True, waits="beta: not reachable")}}) == []


def test_a_node_that_could_not_be_observed(diagnosed):
    assert codes(diagnosed(None, Unread(unread="beta did not end within 9 s"))) == {("RUN-022", "beta")}


def test_an_endless_line_is_read_up_to_a_limit(diagnosed):
    """With backtracking patterns doctor would hang while it searches for hangs."""
    lines = ["Using 'x" * 500 + " scale nan" * 300] * 60
    diagnosed(head(rank("alpha", 0, *lines)), None, silence())
