"""``numa-launch --nproc N -- COMMAND`` as a program: bound copies, their output, their ends, and none that is left."""

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from numa_launch.launchers.local import REPEATED_WITHIN_S
from tests.cli.test_run import NUMA_LAUNCH, error_of, run
from tests.host import ALLOWED, CPU_A, CPU_B, may_bind, needs_numactl, node_of
from tests.live import AS_ROOT, needs_namespaces

TWO = ["--nproc", "2", "--numa-cpus", str(CPU_A), "--numa-cpus", str(CPU_B)]
TIME_LIMIT_S = 60
NEVER_S = 1000


def shell(script: str) -> list[str]:
    return ["--", "/bin/sh", "-c", script]


def start(*args: str, **options: Any) -> "subprocess.Popen[str]":
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([NUMA_LAUNCH, *args], **{**pipes, **options}, text=True)


def finish(launcher: "subprocess.Popen[str]") -> "subprocess.CompletedProcess[str]":
    out, err = launcher.communicate(timeout=TIME_LIMIT_S)
    return subprocess.CompletedProcess(launcher.args, launcher.returncode, out, err)


def lines_until(launcher: "subprocess.Popen[str]", count: int) -> list[str]:
    """Return the next lines that the ranks print, once there are so many."""
    assert launcher.stdout
    return [launcher.stdout.readline().strip() for _ in range(count)]


def ask_again(ask: Callable[[], object], launcher: "subprocess.Popen[Any]") -> None:
    """Ask a launcher that has heard it once to end, when that is no longer taken for the same request."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        launcher.wait(1.5 * REPEATED_WITHIN_S)
    ask()


def wait_for_error(launcher: "subprocess.Popen[str]", text: str) -> None:
    assert launcher.stderr
    assert any(text in line for line in launcher.stderr), f"it ended without {text!r}"


def pids_in(lines: list[str]) -> list[int]:
    return [int(line.split()[-1]) for line in lines]


def all_end(pids: list[int]) -> bool:
    """Wait until the processes have ended; return whether they have."""
    poll = select.poll()
    open_pids = {}
    for pid in pids:
        try:
            open_pids[os.pidfd_open(pid)] = pid
        except ProcessLookupError:
            continue
    for fd in open_pids:
        poll.register(fd, select.POLLIN)
    until = time.monotonic() + TIME_LIMIT_S
    left = dict(open_pids)
    while left and time.monotonic() < until:
        for fd, _ in poll.poll(1000):
            poll.unregister(fd)
            del left[fd]
    for fd in open_pids:
        os.close(fd)
    return not left


@pytest.fixture
def stubborn(tmp_path: Path) -> Iterator[str]:
    """Return a script that prints ``ready PID`` and lasts, whatever SIGTERM and SIGINT say."""
    path = tmp_path / "stubborn"
    path.write_text(f"#!/bin/sh\ntrap '' TERM INT\necho ready $$\nwhile :; do sleep {NEVER_S}; done\n")
    path.chmod(0o755)
    yield str(path)


# Who a rank is, and where.


def test_each_rank_knows_who_it_is_and_where_to_meet() -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    done = run("--nproc", "3", *shell("echo " + " ".join(f"${name}" for name in (*names, "MASTER_PORT"))))
    assert (done.returncode, sorted(line[: len("[0] 0 0 3 3 127.0.0.1")] for line in done.stdout.splitlines())) == (
        0,
        [f"[{rank}] {rank} {rank} 3 3 127.0.0.1" for rank in range(3)],
    )
    ports = {int(line.split()[-1]) for line in done.stdout.splitlines()}
    assert len(ports) == 1
    assert 1024 <= ports.pop() <= 65535


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "29500"}, "10.1.2.3 29500"),
        ({"MASTER_ADDR": "host"}, r"host \d+"),
        ({"MASTER_PORT": "7"}, "127.0.0.1 7"),
        ({"MASTER_ADDR": "", "MASTER_PORT": ""}, r"127.0.0.1 \d+"),
    ],
)
def test_a_meeting_point_that_is_given_is_kept(given: dict[str, str], wanted: str) -> None:
    done = run("--nproc", "1", *shell("echo $MASTER_ADDR $MASTER_PORT"), env=given)
    assert re.fullmatch(rf"\[0\] {wanted}\n", done.stdout)


def test_the_launchers_around_it_do_not_say_which_rank_it_is() -> None:
    env = {"LOCAL_RANK": "5", "RANK": "9", "WORLD_SIZE": "10", "OMPI_COMM_WORLD_LOCAL_RANK": "3"}
    done = run(*TWO, *shell("echo $RANK $LOCAL_RANK $WORLD_SIZE"), env=env)
    assert sorted(done.stdout.splitlines()) == ["[0] 0 0 2", "[1] 1 1 2"]


def test_nothing_else_changes_for_a_rank(tmp_path: Path) -> None:
    odd = ["", "a b", "--", "*", "--nproc", "\udcff"]
    program = (
        "import json, os, sys; print(json.dumps([sys.argv[1:], sorted(os.listdir('/proc/self/fd')),"
        "{k: v for k, v in os.environ.items() if 'RANK' not in k and 'WORLD' not in k and 'MASTER' not in k},"
        # 32 and 33 are the C library's own, which its posix_spawn leaves ignored
        "[int(l.split()[1], 16) & ~(3 << 31) for l in open('/proc/self/status') if l.startswith(('SigI', 'SigB'))],"
        "os.getcwd(), os.umask(0)]))"
    )
    command = [sys.executable, "-c", program, *odd]
    environ = {**os.environ, "ODD": "\udcfe\n=", "LC_ALL": "C"}
    plain = subprocess.run(command, capture_output=True, env=environ, cwd=tmp_path, stdin=subprocess.DEVNULL)
    ranked = subprocess.run(
        [NUMA_LAUNCH, "--nproc", "1", "--no-prefix", "--", *command],
        capture_output=True,
        env=environ,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
    )
    assert json.loads(ranked.stdout) == json.loads(plain.stdout)


@needs_numactl
@pytest.mark.skipif(len(ALLOWED) < 2, reason="one CPU")
@pytest.mark.parametrize("backend", ["numactl", "builtin"])
def test_each_rank_is_bound_before_it_starts_and_the_report_shows_it(backend: str) -> None:
    script = "grep Cpus_allowed_list /proc/self/status; head -n 1 /proc/self/numa_maps | cut -d ' ' -f 2"
    launcher = start("-q", *TWO, "--report", "--backend", backend, *shell(f"{script}; sleep {NEVER_S}"))
    told = lines_until(launcher, 4)
    assert launcher.stderr
    reports = "".join(sorted(launcher.stderr.readline() for _ in range(2)))
    for rank, cpu in ((0, CPU_A), (1, CPU_B)):
        assert [line.split(maxsplit=1)[1] for line in told if line.startswith(f"[{rank}]")] == [
            f"Cpus_allowed_list:\t{cpu}",
            f"bind:{node_of(cpu)}",
        ]
    assert re.fullmatch(
        "".join(
            rf"numa-launch: rank {rank} \(PID \d+\): policy bind:{node_of(cpu)}, CPUs {cpu}, nodes {node_of(cpu)} .*\n"
            for rank, cpu in ((0, CPU_A), (1, CPU_B))
        ),
        reports,
    )
    launcher.terminate()
    finish(launcher)


def test_the_report_of_ranks_that_stay_unbound() -> None:
    launcher = start("-q", "--nproc", "2", "--no-bind", "--report", *shell(f"sleep {NEVER_S}"))
    assert launcher.stderr
    for _ in range(2):
        assert re.match(r"numa-launch: rank \d \(PID \d+\): policy ", launcher.stderr.readline())
    launcher.terminate()
    assert finish(launcher).returncode == 128 + signal.SIGTERM


def test_the_report_shows_a_rank_or_says_that_it_had_ended_before() -> None:
    done = run("--nproc", "1", "--report", "--", "true")
    assert re.search(
        r"^numa-launch: rank 0 (had ended before it could be looked at|\(PID \d+\): policy)", done.stderr, re.MULTILINE
    )


@needs_numactl
def test_a_rank_can_bind_its_own_command_again() -> None:
    inner = f"{NUMA_LAUNCH} --numa-cpus {CPU_A} --numa-cpus {CPU_B} -- grep Cpus_allowed_list /proc/self/status"
    done = run(*TWO, *shell(inner))
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] Cpus_allowed_list:\t{cpu}" for rank, cpu in ((0, CPU_A), (1, CPU_B))
    ]


# Output and input.


def test_lines_stand_behind_their_rank_whole_and_in_columns() -> None:
    done = run("--nproc", "11", *shell("printf '%s\\n\\nlast' first; echo error >&2"))
    wanted = [f"[{rank:2}] {line}" for rank in range(11) for line in ("", "first", "last")]
    assert sorted(done.stdout.splitlines()) == sorted(wanted)
    errors = [line for line in done.stderr.splitlines() if not line.startswith("numa-launch: ")]
    assert sorted(errors) == [f"[{rank:2}] error" for rank in range(11)]


def test_no_prefix_passes_bytes_on_as_they_are() -> None:
    done = subprocess.run(
        [NUMA_LAUNCH, "--nproc", "1", "--no-prefix", *shell(r"printf 'a\377\nb\000c'")], capture_output=True
    )
    assert done.stdout == b"a\xff\nb\x00c"


def test_log_files_hold_each_ranks_output_as_it_is(tmp_path: Path) -> None:
    logs = tmp_path / "new" / "logs"
    (tmp_path / "new" / "logs").mkdir(parents=True)
    (logs / "rank-0.out").write_text("older " * 100)
    done = run("--nproc", "2", "--log-dir", str(logs), *shell("printf 'out %s' $RANK; printf 'err %s' $RANK >&2"))
    assert sorted(done.stdout.splitlines()) == ["[0] out 0", "[1] out 1"]
    assert {path.name: path.read_text() for path in logs.iterdir()} == {
        f"rank-{rank}.{name}": f"{name} {rank}" for rank in (0, 1) for name in ("out", "err")
    }


def test_a_log_directory_is_made(tmp_path: Path) -> None:
    done = run("--nproc", "1", "--log-dir", str(tmp_path / "a" / "b"), *shell("echo x"))
    assert (done.returncode, (tmp_path / "a/b/rank-0.out").read_text()) == (0, "x\n")


@pytest.mark.parametrize("prefix", [[], ["--no-prefix"]])
def test_much_output_of_one_rank_while_another_is_silent(prefix: list[str], tmp_path: Path) -> None:
    size = 200_000_000
    flood = f"head -c {size} /dev/zero | tr '\\0' x | fold -w 99"
    done = tmp_path / "done"
    with subprocess.Popen(
        [NUMA_LAUNCH, "--nproc", "2", *prefix, *shell(f"if [ $RANK = 0 ]; then {flood}; fi; echo $RANK >> {done}")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as launcher:
        assert launcher.stdout
        count = 0
        while chunk := launcher.stdout.read(1 << 20):
            count += chunk.count(b"x")
        _, status, usage = os.wait4(launcher.pid, 0)
        launcher.returncode = os.waitstatus_to_exitcode(status)
    assert (launcher.returncode, count) == (0, size)
    assert usage.ru_maxrss < 150_000  # KiB
    assert sorted(done.read_text().split()) == ["0", "1"]


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    with subprocess.Popen(
        [NUMA_LAUNCH, "--nproc", "1", *shell("head -c 100000000 /dev/zero")], stdout=subprocess.PIPE
    ) as launcher:
        assert launcher.stdout
        count = 0
        while chunk := launcher.stdout.read(1 << 20):
            count += chunk.count(b"\0")
        _, status, usage = os.wait4(launcher.pid, 0)
        launcher.returncode = os.waitstatus_to_exitcode(status)
    assert (launcher.returncode, count) == (0, 100_000_000)
    assert usage.ru_maxrss < 150_000


def test_a_reader_that_stops_early_does_not_stop_the_ranks(tmp_path: Path) -> None:
    script = f"i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; echo $RANK >> {tmp_path}/done"
    with start("--nproc", "2", *shell(script)) as launcher:
        assert launcher.stdout
        launcher.stdout.readline()
        launcher.stdout.close()
        assert launcher.stderr
        said = launcher.stderr.read()
        assert launcher.wait(TIME_LIMIT_S) == 0
    assert sorted((tmp_path / "done").read_text().split()) == ["0", "1"]
    assert said.count("standard output: Broken pipe") == 1


def test_a_reader_that_waits_does_not_keep_the_ranks_from_being_ended() -> None:
    launcher = start(
        "--nproc", "2", "--grace", "0.1", *shell("[ $RANK = 0 ] && exec yes; echo up >&2; exec sleep 1000")
    )
    wait_for_error(launcher, "[1] up")
    launcher.terminate()  # while standard output is full, as nobody reads it
    wait_for_error(launcher, "is passed on")
    done = finish(launcher)
    assert done.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors(closed: str, tmp_path: Path) -> None:
    inner = f'read line; echo "got $line" >> {tmp_path}/out; echo visible; echo error >&2'
    line = f'exec "$0" --no-bind --nproc 2 -- /bin/sh -c "$1" {closed}'
    done = subprocess.run(
        ["/bin/sh", "-c", line, NUMA_LAUNCH, inner],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
    )
    assert done.returncode == 0
    assert (tmp_path / "out").read_text() == "got \n" * 2
    assert done.stdout.count("visible") == (0 if ">&- " in closed or closed == ">&-" else 2)
    assert done.stderr.count("error") == (0 if "2>" in closed else 2)
    assert "Traceback" not in done.stderr


@needs_namespaces
def test_a_full_disk_under_the_log_directory_does_not_stop_the_ranks(tmp_path: Path) -> None:
    small = f"mount -t tmpfs -o size=64k none {tmp_path}"
    script = "head -c 300000 /dev/zero | tr '\\0' x | fold -w 99; echo; echo end"
    line = f'{small} && exec "$0" --no-bind --nproc 2 --log-dir {tmp_path} -- /bin/sh -c "$1"'
    done = subprocess.run(
        [*AS_ROOT, "/bin/sh", "-c", line, NUMA_LAUNCH, script], capture_output=True, text=True, timeout=TIME_LIMIT_S
    )
    assert done.returncode == 0
    assert done.stdout.count("x") == 600_000
    assert done.stdout.count(" end\n") == 2
    for rank in range(2):
        assert done.stderr.count(f"rank-{rank}.out: No space left on device") == 1


def test_standard_input_is_rank_0s_alone() -> None:
    done = run("--nproc", "3", *shell("cat"), input="for the first\n")
    assert done.stdout == "[0] for the first\n"


def test_a_file_is_rank_0s_input_itself(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("one\ntwo\n")
    with open(tmp_path / "in") as given:
        done = subprocess.run(
            [NUMA_LAUNCH, "--nproc", "2", *shell("stat -Lc %i /dev/stdin; cat")],
            stdin=given,
            capture_output=True,
            text=True,
        )
    inode = (tmp_path / "in").stat().st_ino
    assert [line for line in done.stdout.splitlines() if line.startswith("[0]")] == [
        f"[0] {inode}",
        "[0] one",
        "[0] two",
    ]


needs_setsid = pytest.mark.skipif(shutil.which("setsid") is None, reason="no setsid (util-linux)")


class Terminal:
    """A terminal in whose foreground a command runs."""

    def __init__(self, *command: str) -> None:
        self.leader, follower = pty.openpty()
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *command], stdin=follower, stdout=follower, stderr=follower
        )
        os.close(follower)
        self.shown = b""

    def type(self, text: bytes) -> None:
        os.write(self.leader, text)

    def wait_for(self, text: bytes) -> None:
        while text not in self.shown:
            assert select.select([self.leader], [], [], TIME_LIMIT_S)[0], self.shown
            self.shown += os.read(self.leader, 65536)

    def status(self) -> int:
        status = self.process.wait(TIME_LIMIT_S)
        os.close(self.leader)
        return status


@needs_setsid
def test_what_is_typed_reaches_rank_0_and_control_d_ends_it() -> None:
    terminal = Terminal(NUMA_LAUNCH, "--no-bind", "--nproc", "2", *shell("while read line; do echo got $line; done"))
    terminal.type(b"hello\n")
    terminal.wait_for(b"[0] got hello")
    terminal.type(b"again\n\x04")
    terminal.wait_for(b"[0] got again")
    assert terminal.status() == 0


@needs_setsid
def test_control_c_is_passed_on_once_and_a_second_one_kills() -> None:
    script = "trap 'echo interrupted $RANK' INT; echo ready; while :; do sleep 0.01; done"
    terminal = Terminal(NUMA_LAUNCH, "--no-bind", "--nproc", "2", *shell(script))
    terminal.wait_for(b"[0] ready")
    terminal.wait_for(b"[1] ready")
    terminal.type(b"\x03")
    terminal.wait_for(b"interrupted 0")
    terminal.wait_for(b"interrupted 1")
    terminal.type(b"\x03")  # as a parent may repeat it at once
    ask_again(lambda: terminal.type(b"\x03"), terminal.process)
    assert terminal.status() == 128 + signal.SIGKILL
    assert terminal.shown.count(b"] interrupted") == 2


@needs_setsid
def test_a_terminal_that_takes_no_more_does_not_keep_the_ranks_from_being_ended() -> None:
    terminal = Terminal(NUMA_LAUNCH, "--no-bind", "--nproc", "1", *shell("echo $$; exec yes"))
    terminal.wait_for(b"[0] y")
    pid = int(terminal.shown.partition(b"[0] ")[2].split()[0])
    while terminal.process.poll() is None:  # nobody reads what it prints
        ask_again(terminal.process.terminate, terminal.process)
    # The second where it is only the error that waits to be written.
    assert terminal.status() in (128 + signal.SIGTERM, -signal.SIGTERM)
    assert all_end([pid])


# How it ends.


@pytest.mark.parametrize(
    ("end", "status", "how"),
    [
        ("exit 5", 5, "exited with status 5"),
        ("kill -SEGV $$", 128 + signal.SIGSEGV, "was killed by SIGSEGV"),
        ("exec /nonexistent", 127, "exited with status 127"),
    ],
)
def test_the_first_failure_ends_the_others_and_is_named(end: str, status: int, how: str) -> None:
    script = f"if [ $RANK = 1 ]; then echo to stdout; echo to stderr >&2; {end}; fi; sleep {NEVER_S}"
    done = run("--nproc", "3", *shell(script))
    lines = done.stderr.splitlines()
    assert (done.returncode, lines[-1]) == (status, f"Error: rank 1 {how}")
    at = lines.index("numa-launch: the last lines of rank 1:")
    assert {"  to stdout", "  to stderr"} <= set(lines[at + 1 : -1])


def test_the_last_lines_are_few_and_short_and_quiet_leaves_them() -> None:
    script = "i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); done; head -c 3000 /dev/zero | tr '\\0' y; exit 3"
    done = run("-q", "--nproc", "1", *shell(script))
    lines = done.stderr.splitlines()
    wanted = ["numa-launch: the last lines of rank 0:", *(f"  line {i}" for i in range(91, 100)), "  " + "y" * 500]
    assert (done.returncode, lines) == (3, [*wanted, "Error: rank 0 exited with status 3"])


def test_a_rank_that_ends_well_does_not_end_the_others(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    first = f"echo $$ >{tmp_path}/fifo"
    second = f"read pid <{tmp_path}/fifo; while kill -0 $pid; do :; done 2>/dev/null; echo later"
    done = run("--nproc", "2", *shell(f"if [ $RANK = 0 ]; then {first}; else {second}; fi"))
    assert (done.returncode, done.stdout) == (0, "[1] later\n")


def test_who_ignores_sigterm_is_killed_when_its_time_is_over(stubborn: str) -> None:
    launcher = start(
        "--nproc", "2", "--grace", "0.2", *shell(f"[ $RANK = 0 ] && {{ read go; exit 4; }}; exec {stubborn}")
    )
    pids = pids_in(lines_until(launcher, 1))
    assert launcher.stdin
    launcher.stdin.write("go\n")
    launcher.stdin.flush()
    done = finish(launcher)
    assert done.returncode == 4
    assert "killing what has not ended within 0.2 s" in done.stderr
    assert all_end(pids)


def test_a_grace_of_nothing_kills_at_once(stubborn: str) -> None:
    launcher = start("--nproc", "1", "--grace", "0", "--", stubborn)
    lines_until(launcher, 1)
    launcher.terminate()
    assert finish(launcher).returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals_are_passed_on_and_ranks_may_end_well(number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo got {name}; exit 0' {name}; echo ready; while :; do sleep 0.01; done"
    launcher = start("--nproc", "2", *shell(script))
    lines_until(launcher, 2)
    launcher.send_signal(number)
    done = finish(launcher)
    assert (done.returncode, sorted(done.stdout.split("\n"))) == (0, ["", f"[0] got {name}", f"[1] got {name}"])


def test_a_signal_that_ranks_die_of_is_the_exit_status() -> None:
    launcher = start("--nproc", "2", *shell("echo ready; exec sleep 1000"))
    lines_until(launcher, 2)
    launcher.send_signal(signal.SIGINT)
    done = finish(launcher)
    assert done.returncode == 128 + signal.SIGINT
    assert re.search(r"^Error: rank \d was killed by SIGINT$", done.stderr, re.MULTILINE)


def test_user_signals_are_passed_on_each_time() -> None:
    script = "trap 'echo got' USR1; trap 'exit 0' USR2; echo ready; while :; do sleep 0.01; done"
    launcher = start("--nproc", "1", *shell(script))
    lines_until(launcher, 1)
    for _ in range(3):
        launcher.send_signal(signal.SIGUSR1)
        assert lines_until(launcher, 1) == ["[0] got"]
    launcher.send_signal(signal.SIGUSR2)
    assert finish(launcher).returncode == 0


def test_what_the_shell_ignores_the_ranks_ignore_too() -> None:
    command = f'trap "" HUP; exec {NUMA_LAUNCH} --no-bind --nproc 1 -- grep SigIgn /proc/self/status'
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True)
    assert int(done.stdout.split()[-1], 16) & 1 << (signal.SIGHUP - 1)


def test_a_second_signal_kills(stubborn: str) -> None:
    launcher = start("--nproc", "2", "--", stubborn)
    pids = pids_in(lines_until(launcher, 2))
    launcher.terminate()
    wait_for_error(launcher, "is passed on")
    ask_again(launcher.terminate, launcher)
    assert finish(launcher).returncode == 128 + signal.SIGKILL
    assert all_end(pids)


def test_the_same_signal_from_a_parent_right_behind_kills_nothing() -> None:
    launcher = start("--nproc", "1", *shell("trap 'read line; exit 6' TERM; echo ready; while :; do sleep 0.01; done"))
    lines_until(launcher, 1)
    launcher.terminate()
    launcher.send_signal(signal.SIGINT)
    wait_for_error(launcher, "is passed on")
    assert launcher.stdin
    launcher.stdin.write("go\n")
    assert finish(launcher).returncode in (6, 128 + signal.SIGINT)  # whichever was the first


def test_a_signal_while_ranks_are_being_started_is_not_lost(tmp_path: Path) -> None:
    for _ in range(10):
        launcher = start("--nproc", "16", *shell(f"echo $$ >> {tmp_path}/pids; exec sleep {NEVER_S}"))
        while not children(launcher.pid):
            assert launcher.poll() is None
        launcher.terminate()
        assert finish(launcher).returncode == 128 + signal.SIGTERM
    assert all_end([int(pid) for pid in (tmp_path / "pids").read_text().split()])


def test_a_stopped_keeper_does_not_keep_the_ranks_from_being_ended() -> None:
    launcher = start("--nproc", "2", *shell(f"echo $$; exec sleep {NEVER_S}"))
    pids = pids_in(lines_until(launcher, 2))
    (keeper,) = children(launcher.pid)
    os.kill(keeper, signal.SIGSTOP)
    launcher.terminate()
    assert finish(launcher).returncode == 128 + signal.SIGTERM
    assert all_end([*pids, keeper])


def test_a_rank_that_has_left_its_group_is_signalled_too() -> None:
    program = (
        "import os, signal\nos.setpgid(0, os.getpgid(os.getppid()))\n"
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(6))\nprint('ready', flush=True)\nsignal.pause()"
    )
    launcher = start("--nproc", "1", "--", sys.executable, "-c", program)
    lines_until(launcher, 1)
    launcher.terminate()
    assert finish(launcher).returncode == 6


def test_all_of_many_ranks_start_and_end() -> None:
    done = run("--nproc", "64", *shell("echo $RANK"))
    assert sorted(int(line.split()[-1]) for line in done.stdout.splitlines()) == list(range(64))


# Nothing is left.

LEFT = {
    "the rank": "exec {stubborn}",
    "a child": "{stubborn} & wait",
    "a grandchild": "sh -c '{stubborn} & wait' & wait",
    "an orphan": "sh -c '{stubborn} &'; sleep 1000",
    "a group of its own": "timeout 1000 {stubborn} & wait",
    "a session of its own": "setsid {stubborn} & wait",
    "an orphan in a session of its own": "sh -c 'setsid {stubborn} &'; sleep 1000",
}


@pytest.mark.parametrize("kill", ["launcher", "group", "keeper", "SIGTERM twice"])
@pytest.mark.parametrize("what", LEFT)
def test_no_process_of_a_rank_outlives_the_launcher(what: str, kill: str, stubborn: str) -> None:
    script = LEFT[what].format(stubborn=stubborn)
    launcher = start("--nproc", "2", *shell(script), start_new_session=True)
    pids = pids_in(lines_until(launcher, 2))
    keepers = children(launcher.pid)
    assert len(keepers) == 1
    ranks = children(keepers[0])
    assert len(ranks) >= 2
    if kill == "launcher":
        launcher.kill()
    elif kill == "group":
        os.killpg(launcher.pid, signal.SIGKILL)
    elif kill == "keeper":
        os.kill(keepers[0], signal.SIGKILL)
    else:
        launcher.terminate()
        wait_for_error(launcher, "is passed on")
        ask_again(launcher.terminate, launcher)
    done = finish(launcher)
    of_ranks = {128 + signal.SIGTERM, 128 + signal.SIGKILL}  # whichever got to them
    assert done.returncode in {"keeper": {1}, "SIGTERM twice": of_ranks}.get(kill, {-signal.SIGKILL})
    assert all_end([*pids, *ranks, *keepers])


def test_a_keeper_that_is_killed_while_it_starts_ranks_leaves_none_and_is_no_success(tmp_path: Path) -> None:
    script = f"echo $$ >> {tmp_path}/pids; [ $RANK = 0 ] && kill -KILL $PPID; exec sleep {NEVER_S}"
    done = run("-q", "--nproc", "32", *shell(script))
    assert "as the process that keeps the ranks was" in error_of(done, 1)
    assert all_end([int(pid) for pid in (tmp_path / "pids").read_text().split()])


def test_children_that_the_launcher_had_before_are_left_alone(tmp_path: Path) -> None:
    line = (
        f'sleep {NEVER_S} & echo $!; exec "$0" --no-bind --nproc 1 -- /bin/sh -c "kill -KILL \\$PPID; exec sleep 999"'
    )
    with subprocess.Popen(["/bin/sh", "-c", line, NUMA_LAUNCH], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout
        pid = int(launcher.stdout.readline())
        assert launcher.wait(TIME_LIMIT_S) == 1
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        os.kill(pid, signal.SIGKILL)
    assert state == "S"


@needs_namespaces
def test_ranks_are_ended_where_proc_shows_other_processes() -> None:
    line = [*AS_ROOT, "--pid", "--fork", NUMA_LAUNCH, "--no-bind", "--nproc", "2", "--grace", "0.1"]
    script = f"trap '' TERM; echo up; [ $RANK = 0 ] && {{ read go; exit 3; }}; while :; do sleep {NEVER_S}; done"
    with subprocess.Popen(
        [*line, *shell(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as launcher:
        lines_until(launcher, 2)
        launcher.communicate("go\n", timeout=TIME_LIMIT_S)
    assert launcher.returncode == 3


@needs_namespaces
def test_what_ranks_leave_is_ended_too_where_proc_shows_other_processes() -> None:
    line = [*AS_ROOT, "--pid", "--fork", NUMA_LAUNCH, "--no-bind", "--nproc", "1", "--grace", "0.1"]
    left = f"sh -c 'trap \"\" TERM; while :; do sleep {NEVER_S}; done' >&- 2>&- & exit 0"
    done = subprocess.run([*line, *shell(left)], capture_output=True, text=True, timeout=TIME_LIMIT_S)
    assert done.returncode == 0
    assert "ending 1 process that they left behind" in done.stderr


def test_output_that_waits_when_the_time_to_end_is_over_is_not_lost() -> None:
    flood = "head -c 200000 /dev/zero | tr '\\0' x | fold -w 99; exit 3"
    launcher = start("--nproc", "2", "--grace", "0.2", *shell(f"[ $RANK = 1 ] && exec sleep {NEVER_S}; {flood}"))
    wait_for_error(launcher, "the last lines of rank 0")  # all have ended, and what waits is more than a pipe takes
    with pytest.raises(subprocess.TimeoutExpired):
        launcher.wait(0.5)
    done = finish(launcher)
    assert (done.returncode, done.stdout.count("x")) == (3, 200_000)
    assert "killing" not in done.stderr


def test_the_exit_status_counts_though_nobody_reads_the_error() -> None:
    with start("--nproc", "1", *shell("read line; exit 5")) as launcher:
        assert launcher.stderr
        launcher.stderr.close()
        assert launcher.stdin
        launcher.stdin.close()
        assert launcher.wait(TIME_LIMIT_S) == 5


def test_a_variable_without_a_name_is_left_out() -> None:
    given = "import ctypes, os, sys; libc = ctypes.CDLL(None)\n"
    program = given + (
        "array = ctypes.c_char_p * 3\n"
        "argv = [os.fsencode(each) for each in sys.argv[1:]]\n"
        "libc.execve(argv[0], (ctypes.c_char_p * (len(argv) + 1))(*argv, None), array(b'=x', b'A=b', None))"
    )
    for options in (["--nproc", "1", "--no-prefix"], []):
        command = [sys.executable, "-c", program, NUMA_LAUNCH, "--no-bind", *options, *shell("echo $A")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "b\n"), done.stderr


def test_a_log_file_that_would_wait_for_a_reader_is_refused(tmp_path: Path) -> None:
    for name, problem in (("rank-0.out", "No such device"), ("rank-0.err", "no regular file")):
        logs = tmp_path / name
        logs.mkdir()
        os.mkfifo(logs / name)
        reader = os.open(logs / name, os.O_RDONLY | os.O_NONBLOCK) if "regular" in problem else None
        done = run("-q", "--nproc", "1", "--log-dir", str(logs), "--", "true")
        assert f"{name}: " in error_of(done, 1)
        assert problem in done.stderr
        if reader is not None:
            os.close(reader)


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("how", ["{stubborn} & read line < {fifo}", "setsid {stubborn} & read line < {fifo}"])
def test_what_ranks_leave_behind_when_they_end_well_is_ended(how: str, stubborn: str, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    launcher = start("--nproc", "1", "--grace", "0.1", *shell(how.format(stubborn=stubborn, fifo=fifo)))
    pids = pids_in(lines_until(launcher, 1))
    fifo.write_text("go\n")
    done = finish(launcher)
    assert done.returncode == 0
    # Its sleep too, where that had started.
    assert re.search("all ranks have ended: ending (1 process|2 processes) that they left behind", done.stderr)
    assert all_end(pids)


def test_too_few_descriptors_start_no_rank(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"ulimit -n 24; exec {NUMA_LAUNCH} -q --no-bind --nproc 40 -- touch {tmp_path}/started"],
        capture_output=True,
        text=True,
    )
    error_of(done, 1)
    assert "40 ranks cannot be started: Too many open files (ulimit -n)" in done.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("args", "status", "text"),
    [
        (["--nproc", "2", "--", "no-such-command"], 127, "no-such-command: command not found"),
        (["--nproc", "2", "--", "/etc/passwd"], 126, "may not be executed"),
        (["--nproc", "0", "--", "true"], 2, "--nproc"),
        (["--nproc", "2", "--rank", "0", "--", "true"], 2, "--rank"),
        (["--nproc", "2", "--kind", "EngineCore", "--", "true"], 2, "--kind EngineCore"),
        (["--nproc", "2", "--nnodes", "2", "--", "true"], 2, "--nnodes"),
        (["--nproc", "3", "--tp", "2", "--", "true"], 2, "--tp 2"),
        (["--nproc", "3", "--pp", "2", "--", "true"], 2, "3 workers"),
        (["--nproc", "2", "--json", "--", "true"], 2, "--dry-run"),
        (["--nproc", "2", "--grace", "-1", "--", "true"], 2, "--grace"),
        (["--nproc", "2", "--grace", "nan", "--", "true"], 2, "--grace"),
        (["-q", "--nproc", "2", "--log-dir", "/dev/null/x", "--", "true"], 1, "/dev/null/x: Not a directory"),
        (["--nproc", "2", "--log-dir", "/etc/passwd", "--", "true"], 2, "--log-dir"),
        (["--nproc", "2", "--numa-cpus", str(CPU_A), "--", "true"], 2, "entry 1"),
        (["--nproc", "2", "--strict", "--numa-cpus=9999", "--numa-cpus=9999", "--", "true"], 1, "9999"),
        (["--log-dir", "x", "--", "true"], 2, "--nproc"),
        (["--no-prefix", "--", "true"], 2, "--nproc"),
        (["--report", "--", "true"], 2, "--nproc"),
        (["--grace", "3", "--", "true"], 2, "--nproc"),
    ],
)
def test_bad_input_is_one_sentence_with_the_right_status(args: list[str], status: int, text: str) -> None:
    assert text in error_of(run(*args), status)


@pytest.mark.skipif(not may_bind(), reason="numactl cannot bind here")
def test_a_numactl_that_refuses_leaves_the_ranks_running_and_strict_starts_none(tmp_path: Path) -> None:
    broken = tmp_path / "numactl"
    broken.write_text("#!/bin/sh\necho 'set_mempolicy: Operation not permitted' >&2\nexit 1\n")
    broken.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = run(*TWO, *shell("echo ran"), env=env)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["[0] ran", "[1] ran"])
    assert "SYS_NICE" in done.stderr
    strict = run(*TWO, "--strict", *shell("echo ran"), env=env)
    assert (strict.stdout, error_of(strict, 1)[:5]) == ("", "Error")
