"""Probing and falling back, on real numactl and on fakes that refuse, hang or print junk."""

import logging
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from numa_launch import StrictError
from numa_launch.apply import probe
from numa_launch.apply.backend import Backend
from numa_launch.apply.numactl import candidates, numactl_args, policy_text
from numa_launch.apply.probe import Found, Outcome, Prober, first_own_line, try_command
from numa_launch.bounded import HUNG, run_bounded
from numa_launch.plan.model import Binding
from tests.apply.conftest import RUN_IT, FakeNumactl
from tests.host import needs_numactl

BINDING = Binding(
    "worker",
    0,
    0,
    nodes=(0,),
    cpus=frozenset(os.sched_getaffinity(0)),
    by_node=True,
    memory_nodes=(0,),
    memory_policy="membind",
)
RANGE = "libnuma: Warning: node argument 9 is out of range"
EPERM = "echo 'set_mempolicy: Operation not permitted' >&2; exit 1"


def arguments(numactl: Path | str, binding: Binding = BINDING, *, auto: bool = False, strict: bool = False) -> Found:
    return Prober().arguments(Backend(str(numactl)), binding, auto=auto, strict=strict)


def tried(numactl: Path) -> list[str]:
    return [line.removesuffix(" true") for line in Path(f"{numactl}.log").read_text().splitlines()]


def test_candidates_in_order() -> None:
    binding = BINDING._replace(cpus=frozenset({0, 1, 5}))
    assert candidates(binding) == [["--cpunodebind=0", "--membind=0"], ["--cpunodebind=0"], ["--physcpubind=0-1,5"]]
    assert candidates(binding._replace(by_node=False, memory_policy=None)) == [["--physcpubind=0-1,5"]]


@pytest.mark.parametrize(
    ("policy", "nodes", "argument", "text"),
    [
        ("membind", (0, 1), "--membind=0,1", "bind:0-1"),
        ("preferred", (3,), "--preferred=3", "prefer:3"),
        ("preferred-many", (0, 2), "--preferred-many=0,2", "prefer (many):0,2"),
        ("interleave", (0, 1), "--interleave=0,1", "interleave:0-1"),
        (None, (), None, None),
    ],
)
def test_policy_as_argument_and_as_the_kernel_shows_it(
    policy: object, nodes: tuple[int, ...], argument: str | None, text: str | None
) -> None:
    binding = BINDING._replace(memory_policy=policy, memory_nodes=nodes)  # type: ignore[arg-type]
    assert numactl_args(binding)[1:] == ([argument] if argument else [])
    assert policy_text(binding) == text


def test_what_is_accepted_is_used_silently(fake_numactl: FakeNumactl, caplog: pytest.LogCaptureFixture) -> None:
    numactl = fake_numactl(RUN_IT)
    assert arguments(numactl) == Found(("--cpunodebind=0", "--membind=0"))
    assert tried(numactl) == ["--cpunodebind=0 --membind=0"]
    assert not caplog.records


@pytest.mark.parametrize(
    ("refused", "kept", "count"),
    [
        ("*--membind*", "--cpunodebind=0", 2),
        ("*--membind*|*--cpunodebind*", "--physcpubind", 3),
        ("*", "", 3),
    ],
)
def test_fallback_with_one_warning_that_says_what_why_and_the_fix(
    fake_numactl: FakeNumactl, caplog: pytest.LogCaptureFixture, refused: str, kept: str, count: int
) -> None:
    numactl = fake_numactl(f'case "$*" in {refused}) {EPERM};; esac; {RUN_IT}')
    prober = Prober()
    for _ in range(2):
        found = prober.arguments(Backend(str(numactl)), BINDING, auto=False, strict=False)
        assert " ".join(found.args).startswith(kept)
        assert bool(found.args) == bool(kept)
    assert len(tried(numactl)) == count
    (record,) = caplog.records
    message = record.getMessage()
    assert record.levelno == logging.WARNING
    assert "set_mempolicy: Operation not permitted" in message
    assert "SYS_NICE" in message
    assert ("only --" if kept else "stays unbound") in message


@pytest.mark.parametrize("refused", ["*--membind*", "*"])
def test_strict_raises_instead(fake_numactl: FakeNumactl, refused: str) -> None:
    numactl = fake_numactl(f'case "$*" in {refused}) {EPERM};; esac; {RUN_IT}')
    with pytest.raises(StrictError, match="Operation not permitted"):
        arguments(numactl, strict=True)


def test_in_auto_mode_a_failure_is_remembered_for_the_other_ranks(fake_numactl: FakeNumactl) -> None:
    numactl = fake_numactl(EPERM)
    prober = Prober()
    for node in range(3):
        found = prober.arguments(Backend(str(numactl)), BINDING._replace(nodes=(node,)), auto=True, strict=False)
        assert found.args == ()
        assert found.dropped
        assert found.dropped.code == "probe-failed"
    assert len(tried(numactl)) == 3


def test_in_auto_mode_a_fallback_is_no_failure(fake_numactl: FakeNumactl) -> None:
    numactl = fake_numactl(f'case "$*" in *--membind*) {EPERM};; esac; {RUN_IT}')
    prober = Prober()
    for node in range(2):
        args = prober.arguments(Backend(str(numactl)), BINDING._replace(nodes=(node,)), auto=True, strict=False).args
        assert args == (f"--cpunodebind={node}",)


def test_a_numactl_that_hangs_is_ended_with_all_it_started(
    fake_numactl: FakeNumactl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(probe, "TIME_LIMIT_S", 0.3)
    os.mkfifo(tmp_path / "held")
    reader = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    numactl = fake_numactl(f"exec 3>{tmp_path}/held; sleep 600 & exec sleep 600")
    found = arguments(numactl)
    assert found.args == ()
    assert found.dropped
    assert "no answer in 0.3 s" in found.dropped.message
    # Every process of the fake holds the FIFO open for writing: it hangs up when the last of them has ended.
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    assert poll.poll(10_000) == [(reader, select.POLLHUP)]
    os.close(reader)


def test_a_numactl_that_hung_once_is_not_waited_for_again(
    fake_numactl: FakeNumactl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "TIME_LIMIT_S", 0.2)
    numactl = fake_numactl("exec sleep 600")
    prober = Prober()
    for node in range(3):
        found = prober.arguments(Backend(str(numactl)), BINDING._replace(nodes=(node,)), auto=False, strict=False)
        assert found.args == ()
    assert len(tried(numactl)) == 1


def test_a_numactl_that_prints_without_end_fills_no_memory(fake_numactl: FakeNumactl) -> None:
    numactl = fake_numactl("exec yes refused")
    status, output = run_bounded([str(numactl), "true"], 0.5, most=1000)
    assert status == HUNG
    assert len(output) == 1000


def test_what_a_command_leaves_behind_is_ended(tmp_path: Path) -> None:
    """Also after a good end; the pipe tells when the last process that has it is gone."""
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    status, _ = run_bounded(["sh", "-c", f"exec 3> {fifo}; sleep 1000 & true"], 10)
    assert status == 0
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    assert [event & select.POLLHUP for _, event in poll.poll(10_000)] == [select.POLLHUP]
    os.close(reader)


@pytest.mark.parametrize("delay_us", [100, 300, 1000, 3000])
def test_an_interrupt_leaves_no_child(delay_us: int) -> None:
    program = f"""
import os, signal, sys
from numa_launch.bounded import run_bounded
def interrupt(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
for _ in range(40):
    try:
        signal.setitimer(signal.ITIMER_REAL, {delay_us} / 1e6)
        run_bounded(["sleep", "1000"], 20)
        sys.exit("an interrupt was lost")
    except KeyboardInterrupt:
        pass
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
        sys.exit("a child is left")
    except ChildProcessError:
        pass
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


SIGCHLD_TAKEN = {
    "ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "reaped by a thread": """
def reap():
    while True:
        try: os.waitpid(-1, 0)
        except ChildProcessError: pass
threading.Thread(target=reap, daemon=True).start()
""",
}


@pytest.mark.parametrize("how", SIGCHLD_TAKEN)
@pytest.mark.parametrize(("script", "accepted"), [(RUN_IT, True), ("exit 1", False), (EPERM, False)])
def test_an_exit_status_that_somebody_else_takes_is_not_success(
    fake_numactl: FakeNumactl, how: str, script: str, accepted: bool
) -> None:
    numactl = fake_numactl(script)
    program = f"""
import os, signal, threading
from numa_launch.apply.probe import try_command
{SIGCHLD_TAKEN[how]}
os.write(1, b"accepted" if try_command(["{numactl}", "--membind=0", "true"]).problem is None else b"refused")
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == ("accepted" if accepted else "refused"), done.stderr


def test_without_a_writable_directory_it_probes_all_the_same(fake_numactl: FakeNumactl) -> None:
    numactl = fake_numactl(RUN_IT)
    program = f"""
import os, tempfile
from numa_launch.apply.probe import try_command
tempfile.tempdir = "/nowhere"
print(try_command(["{numactl}", "--membind=0", "true"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{Outcome(None)}\n", done.stderr


def test_another_ld_preload_is_probed_anew(fake_numactl: FakeNumactl, monkeypatch: pytest.MonkeyPatch) -> None:
    numactl = fake_numactl(RUN_IT)
    prober = Prober()
    for preload in ("", "/nowhere/a.so", "/nowhere/b.so", "/nowhere/a.so"):
        monkeypatch.setenv("LD_PRELOAD", preload)
        prober.outcome([str(numactl), "--membind=0", "true"], None)
    assert len(tried(numactl)) == 3


def test_strict_raises_also_where_another_rank_had_failed(fake_numactl: FakeNumactl) -> None:
    numactl = fake_numactl(EPERM)
    prober = Prober()
    prober.arguments(Backend(str(numactl)), BINDING, auto=True, strict=False)
    with pytest.raises(StrictError):
        prober.arguments(Backend(str(numactl)), BINDING, auto=True, strict=True)


def test_junk_is_one_printable_line(fake_numactl: FakeNumactl) -> None:
    numactl = fake_numactl("printf '\\033[31m\\377junk\\007\\nmore\\n' >&2; exit 3")
    found = arguments(numactl)
    assert found.dropped
    assert "junk" in found.dropped.message
    assert found.dropped.message.isprintable()


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (f"{RANGE}\n\n<9> is invalid\nusage: numactl [--all | -a]\n", RANGE),
        (f"<9> is invalid\n{RANGE}\n", RANGE),
        ("usage: numactl [--all]\n", None),
        ("", None),
        ("numactl: requested without kernel support", "numactl: requested without kernel support"),
    ],
)
def test_numactls_own_first_line(output: str, line: str | None) -> None:
    assert first_own_line(output) == line


def test_a_silent_failure_shows_its_status(fake_numactl: FakeNumactl) -> None:
    found = arguments(fake_numactl("exit 5"))
    assert found.dropped
    assert "exit status 5" in found.dropped.message


def test_a_numactl_that_cannot_be_run(tmp_path: Path) -> None:
    assert try_command([str(tmp_path / "none"), "true"]).problem == "No such file or directory"
    (tmp_path / "no-program").write_bytes(b"\x7fELF")
    (tmp_path / "no-program").chmod(0o755)
    assert try_command([str(tmp_path / "no-program"), "true"]).problem == "Exec format error"


@needs_numactl
def test_real_numactl_takes_what_this_process_may_use_and_refuses_the_rest() -> None:
    cpu = min(BINDING.cpus)
    assert try_command(["numactl", f"--physcpubind={cpu}", "--membind=0", "true"]) == Outcome(None)
    refused = try_command(["numactl", "--membind=4095", "true"]).problem
    assert refused == "libnuma: Warning: node argument 4095 is out of range"


@needs_numactl
def test_a_change_of_affinity_is_probed_anew() -> None:
    cpus = sorted(BINDING.cpus)
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    prober = Prober()
    command = ["numactl", f"--physcpubind={cpus[0]}", "true"]
    assert prober.outcome(command, frozenset(cpus)).problem is None
    os.sched_setaffinity(0, {cpus[1]})
    assert prober.outcome(command, frozenset({cpus[1]})).problem


@needs_numactl
def test_where_our_launcher_holds_this_process_elsewhere_all_is_added() -> None:
    cpus = sorted(BINDING.cpus)
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    os.sched_setaffinity(0, {cpus[1]})
    binding = BINDING._replace(cpus=frozenset({cpus[0]}), by_node=False, memory_policy=None)
    assert arguments("numactl", binding).args == ("--all", f"--physcpubind={cpus[0]}")


def test_interrupted_probing_leaves_nothing_running(fake_numactl: FakeNumactl, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pid")
    numactl = fake_numactl(f"echo $$ >{tmp_path}/pid; exec sleep 600")
    program = f"from numa_launch.apply.probe import try_command; try_command(['{numactl}', 'true'])"
    child = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    pid = int((tmp_path / "pid").read_text())
    child.send_signal(signal.SIGINT)
    assert child.wait(30) == -signal.SIGINT
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
