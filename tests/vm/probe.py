"""Runs inside a guest: plans, starts processes in every way there is, and prints what the kernel shows as JSON lines.

Example: ``python -m tests.vm.probe auto cpuset-part`` runs two scenarios. Nothing is judged here: the host compares.
A scenario runs in a fork of this process, so that the slow imports are made once, under limits that end with it.
"""

import contextlib
import io
import json
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker, spawn
from pathlib import Path
from typing import Any, NamedTuple

from numa_launch import (
    ConfigError,
    LaunchConfig,
    StrictError,
    bind_current_process,
    configure_subprocess,
    process_pool,
)
from numa_launch.apply import builtin
from numa_launch.apply import spawn as spawn_module
from numa_launch.apply.builtin import set_mempolicy
from numa_launch.apply.numactl import candidates
from numa_launch.apply.swap import ours_now
from numa_launch.cli import status_of
from numa_launch.idsets import format_ids
from numa_launch.machine import driver
from numa_launch.machine.read import read_machine
from numa_launch.plan.decide import plan
from tests.stubs.build import AMDSMI, describe, stub_environment
from tests.vm import seccomp, truth

CONTEXT = multiprocessing.get_context("spawn")
ROOT = Path(__file__).parents[2]
CGROUPS = Path("/sys/fs/cgroup")
NEW_NUMACTL = ROOT / ".cache/numactl-new/bin"
STUBS = ROOT / ".cache/stubs"

Limit = Callable[[], "contextlib.AbstractContextManager[None]"]


class Scenario(NamedTuple):
    """A limit to live under, what to ask for on the command line and in a config, and the ways to start processes."""

    limit: Limit = contextlib.nullcontext
    args: tuple[str, ...] = ()
    config: dict[str, Any] = {}  # noqa: RUF012 - read only
    ways: tuple[str, ...] = ("engine", "command")


# --- Limits


@contextlib.contextmanager
def cpuset(cpus: str, mems: str) -> Iterator[None]:
    """Live in a cgroup (v2) with these CPUs and memory nodes."""
    (CGROUPS / "cgroup.subtree_control").write_text("+cpuset")
    own = CGROUPS / f"tested-{os.getpid()}"
    own.mkdir()
    (own / "cpuset.cpus").write_text(cpus)
    (own / "cpuset.mems").write_text(mems)
    (own / "cgroup.procs").write_text(str(os.getpid()))
    yield


@contextlib.contextmanager
def taskset(*cpus: int) -> Iterator[None]:
    os.sched_setaffinity(0, cpus)
    yield


@contextlib.contextmanager
def offline(*cpus: int) -> Iterator[None]:
    for cpu in cpus:
        Path(f"/sys/devices/system/cpu/cpu{cpu}/online").write_text("0")
    yield
    for cpu in cpus:
        Path(f"/sys/devices/system/cpu/cpu{cpu}/online").write_text("1")


@contextlib.contextmanager
def no_memory_policy(numactl: Path | None = None) -> Iterator[None]:
    if numactl:
        os.environ["PATH"] = f"{numactl}:{os.environ['PATH']}"
    seccomp.refuse_memory_policy()
    yield


@contextlib.contextmanager
def noexec() -> Iterator[None]:
    """Mount the wrapper's directory again without the right to execute."""
    place = os.path.dirname(spawn_module.WRAPPER)
    subprocess.run(["mount", "--bind", place, place], check=True)
    subprocess.run(["mount", "-o", "remount,bind,noexec", place], check=True)
    yield
    subprocess.run(["umount", place], check=True)


@contextlib.contextmanager
def no_numactl() -> Iterator[None]:
    os.environ["PATH"] = "/nowhere"
    yield


@contextlib.contextmanager
def policy_set_before() -> Iterator[None]:
    set_mempolicy("interleave", (0, 1))
    yield


def use_driver(library: Path, gpus: list[dict[str, Any]], python_path: Path | None = None) -> None:
    """Let this process and what it starts find a vendor's library that describes the GPUs so."""
    description = Path(tempfile.mkdtemp()) / "description"
    description.write_text(describe(gpus))
    os.environ.update(stub_environment(library, description, python_path))
    if python_path:
        sys.path.append(str(python_path))
    driver._answers.clear()


@contextlib.contextmanager
def amd_driver(*nodes: int) -> Iterator[None]:
    """Have AMD SMI say on which nodes the GPUs are, of which the firmware says nothing."""
    gpus = [{"bdf": gpu.bdf, "node": node} for gpu, node in zip(read_machine().gpus, nodes, strict=True)]
    use_driver(STUBS / "amdsmi", gpus, AMDSMI)
    yield


@contextlib.contextmanager
def nvidia_driver(*cpus: str) -> Iterator[None]:
    """Have the GPUs be NVIDIA's, and NVML say which CPUs each is near."""
    devices = [f"/sys/bus/pci/devices/{gpu.bdf}" for gpu in read_machine().gpus]
    vendor = Path(tempfile.mkdtemp()) / "vendor"
    vendor.write_text("0x10de\n")
    for device in devices:
        subprocess.run(["mount", "--bind", str(vendor), f"{device}/vendor"], check=True)
    gpus = [{"bdf": os.path.basename(device), "cpus": near} for device, near in zip(devices, cpus, strict=True)]
    use_driver(STUBS / "nvml", gpus)
    yield
    for device in devices:
        subprocess.run(["umount", f"{device}/vendor"], check=True)


# --- Ways to start processes, each leaving lines of truth in a file


def engine(config: LaunchConfig, path: str, shard: int, count: int) -> None:
    """An EngineCore: says what it is, then starts its own workers from the config it was given."""
    truth.report(path, {"kind": "EngineCore", "local_rank": 0, "dp_local_rank": shard, "way": "engine"})
    processes = []
    for rank in range(count):
        with configure_subprocess(config, rank, shard, context=CONTEXT):
            worker = {"kind": "worker", "local_rank": rank, "dp_local_rank": shard, "way": "engine"}
            processes.append(CONTEXT.Process(target=truth.report, args=(path, worker)))
            processes[-1].start()
    for process in processes:
        process.join()


def by_engine(config: LaunchConfig, path: str, shards: dict[int, int]) -> None:
    for shard, count in shards.items():
        with configure_subprocess(config, 0, shard, "EngineCore", context=CONTEXT):
            process = CONTEXT.Process(target=engine, args=(config, path, shard, count))
            process.start()
        process.join()


def by_spawn(config: LaunchConfig, path: str, shards: dict[int, int]) -> None:
    processes = []
    for shard, count in shards.items():
        for rank in range(count):
            with configure_subprocess(config, rank, shard):
                worker = {"kind": "worker", "local_rank": rank, "dp_local_rank": shard, "way": "spawn"}
                processes.append(CONTEXT.Process(target=truth.report, args=(path, worker)))
                processes[-1].start()
    for process in processes:
        process.join()


def by_current(config: LaunchConfig, path: str, shards: dict[int, int]) -> None:
    """Workers that bind themselves after a fork."""
    for shard, count in shards.items():
        for rank in range(count):
            pid = os.fork()
            if not pid:
                bind_current_process(config, rank, shard)
                worker = {"kind": "worker", "local_rank": rank, "dp_local_rank": shard, "way": "current"}
                truth.report(path, worker)
                os._exit(0)
            os.waitpid(pid, 0)


WAYS = {"spawn": by_spawn, "engine": by_engine, "current": by_current}


def by_command(args: tuple[str, ...]) -> dict[str, Any]:
    """Return what COMMAND found itself to be, with its launcher's exit status and messages."""
    script = str(ROOT / "tests/vm/truth.py")
    command = [sys.executable, "-m", "numa_launch", *args, "--", sys.executable, "-S", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    state = json.loads(done.stdout) if done.returncode == 0 else None
    return {"status": done.returncode, "stderr": done.stderr, "state": state}


# --- One scenario


def dry_run(args: tuple[str, ...]) -> dict[str, Any]:
    """Return what ``--dry-run --json`` prints, or its error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = status_of(["--dry-run", "--json", *args])
    return {"error": err.getvalue(), "status": status} if status else dict(json.loads(out.getvalue()))


def shards_of(printed: dict[str, Any]) -> dict[int, int]:
    """Return shard → number of workers of a printed plan."""
    shards: dict[int, int] = {}
    for process in printed["processes"]:
        if process["kind"] == "worker":
            shards[process["dp_local_rank"]] = shards.get(process["dp_local_rank"], 0) + 1
    return shards


def tracker_state() -> str:
    resource_tracker.ensure_running()
    return truth.allowed_cpus(f"/proc/{resource_tracker._resource_tracker._pid}")  # type: ignore[attr-defined]


def own_state() -> dict[str, Any]:
    return {**truth.state(), "executable": os.fsdecode(spawn.get_executable()), "ours": ours_now()}


def run_scenario(scenario: Scenario) -> dict[str, Any]:
    """Return the plan, the truth of every process that was started, and this process before and after."""
    result: dict[str, Any] = {}
    with scenario.limit(), tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/truth"
        result["plan"] = printed = dry_run(scenario.args)
        listen()
        result["before"] = own_state()
        config = LaunchConfig(**scenario.config)
        for way in scenario.ways:
            if way in WAYS:
                try:
                    WAYS[way](config, path, shards_of(printed) if "processes" in printed else {0: 1})
                except (ConfigError, StrictError) as error:
                    result["raised"] = f"{type(error).__name__}: {error}"
        if "command" in scenario.ways:
            result["command"] = by_command(scenario.args)
        result["after"] = own_state()
        result["tracker"] = tracker_state()
        lines = Path(path).read_text().splitlines() if os.path.exists(path) else []
        result["seen"] = [json.loads(line) for line in lines]
        result["said"] = list(SAID)
    return result


SAID: list[str] = []


class Listener(logging.Handler):
    """Keeps what the library says."""

    def emit(self, record: logging.LogRecord) -> None:
        SAID.append(record.getMessage())


def listen() -> None:
    """Hear the library from now on; the command line, which a dry run is, sets up logging of its own."""
    logger = logging.getLogger("numa_launch")
    logger.handlers[:] = [Listener()]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def in_fork(name: str, work: Callable[[], Any]) -> None:
    """Run in a fork of this process and print one line with the result, or with what went wrong."""
    began = time.monotonic()
    pid = os.fork()
    if not pid:
        try:
            result = work()
        except BaseException:
            result = {"traceback": traceback.format_exc()}
        print(
            json.dumps({"scenario": name, "seconds": round(time.monotonic() - began, 1), "result": result}), flush=True
        )
        os._exit(0)
    os.waitpid(pid, 0)


# --- Faults, and arguments that real numactl must accept


def threads_of_their_own_rank(count: int) -> dict[str, Any]:
    """Return what workers got whose 16 starters overlapped, each starting the worker of its own rank."""
    machine = read_machine()
    nodes = [machine.nodes_with_cpus[rank % len(machine.nodes_with_cpus)] for rank in range(count)]
    config = LaunchConfig(numa_bind_nodes=nodes, tensor_parallel_size=count)
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/truth"
        together = threading.Barrier(count)

        def start(rank: int) -> None:
            together.wait()
            with configure_subprocess(config, rank):
                process = CONTEXT.Process(target=truth.report, args=(path, {"rank": rank}))
                process.start()
            process.join()

        threads = [threading.Thread(target=start, args=(rank,)) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen = [json.loads(line) for line in Path(path).read_text().splitlines()]
    cpus = {line["rank"]: line["state"]["cpus"] for line in seen}
    wanted = {rank: format_ids(machine.node_of_id[node].cpus) for rank, node in enumerate(nodes)}
    return {"seen": cpus, "wanted": wanted}


def pool_of_ranks(count: int) -> dict[str, Any]:
    """Return what each worker of a pool got, two for each rank: workers wait for one another, then do one task."""
    args = ("--bind",)
    planned = dry_run(args)
    before = own_state()
    config = LaunchConfig(numa_bind=True, tensor_parallel_size=count)
    together = CONTEXT.Barrier(count)
    with process_pool(config, count, max_tasks_per_child=1, initializer=together.wait) as pool:
        seen = list(pool.map(truth.ranked_state, range(2 * count)))
    return {"plan": planned, "seen": seen, "before": before, "after": own_state(), "tracker": tracker_state()}


def killed_in_mid_start() -> dict[str, Any]:
    """Return what is left after workers were killed while numactl or Python was starting."""
    config = LaunchConfig(numa_bind_nodes=[1])
    before = own_state()
    statuses = []
    for delay_s in (0, 0.02, 0.1, 0.3):
        with configure_subprocess(config, 0):
            process = CONTEXT.Process(target=signal.pause)
            process.start()
        process.join(delay_s)
        process.kill()
        process.join()
        statuses.append(process.exitcode)
    left = [name for name in os.listdir("/proc") if name.isdigit() and parent_of(name) == os.getpid()]
    tracker = resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]
    return {
        "statuses": statuses,
        "before": before,
        "after": own_state(),
        "left": [p for p in left if int(p) != tracker],
    }


def parent_of(pid: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return 0


SHOW_STATE = ["sh", "-c", "grep Cpus_allowed_list /proc/self/status; head -n 1 /proc/self/numa_maps | cut -d' ' -f2-3"]


def by_numactl(args: list[str]) -> str:
    """Return what a command under real numactl shows of itself, or numactl's own words."""
    done = subprocess.run(["numactl", *args, *SHOW_STATE], capture_output=True, text=True)
    return done.stdout + done.stderr


def by_builtin(args: list[str]) -> str:
    """Return the same under the built-in backend, in a fork of this process, as Python's start is slow here."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(writer, 1)
        try:
            builtin.main([*args, "--", *SHOW_STATE])
        except BaseException as error:
            os.write(1, repr(error).encode())
        os._exit(1)
    os.close(writer)
    with open(reader) as shown:
        text = shown.read()
    os.waitpid(pid, 0)
    return text


def copies(count: int) -> dict[str, Any]:
    """Return what ``--nproc`` started: the state that each rank printed, what was reported of it, and the plan."""
    args = (f"--nproc={count}",)
    done = subprocess.run(
        [sys.executable, "-m", "numa_launch", *args, "--report", "--", sys.executable, truth.__file__],
        capture_output=True,
        text=True,
    )
    states = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    return {
        "plan": dry_run(args),
        "states": {rank: json.loads(state) for rank, state in states.items()},
        "status": done.returncode,
        "said": done.stderr,
    }


def accepted_by_both(seed: int, count: int) -> dict[str, Any]:
    """Return argument strings of random plans, made under random affinities, and what real numactl and the built-in
    backend leave a command with.

    Every plan may be tried as it is: what an argument names is allowed to this process, which is what plans promise.
    """
    chosen = random.Random(seed)
    every = sorted(os.sched_getaffinity(0))
    said: dict[str, list[str]] = {}
    while len(said) < count:
        os.sched_setaffinity(0, every)
        os.sched_setaffinity(0, chosen.sample(every, chosen.randint(1, len(every))))
        machine = read_machine()
        size = chosen.randint(1, 4)
        lists: dict[str, Any] = {"numa_bind_nodes": chosen.choices(machine.nodes_with_cpus, k=size)}
        if chosen.random() < 0.3:
            cpus = [chosen.sample(every, chosen.randint(1, len(every))) for _ in range(size)]
            lists["numa_bind_cpus"] = [format_ids(own) for own in cpus]
        policy = chosen.choice(["auto", "membind", "preferred", "interleave", "none"])
        config = LaunchConfig(tensor_parallel_size=size, memory_policy=policy, **lists)  # type: ignore[arg-type]
        for binding in plan(machine, config).processes:
            for args in candidates(binding)[:1] if binding.bound else []:
                key = f"{format_ids(os.sched_getaffinity(0))}: {' '.join(args)}"
                if key not in said:
                    said[key] = [by_numactl(args), by_builtin(args)]
    os.sched_setaffinity(0, every)
    nodes = range(max(node.id for node in read_machine().nodes) + 2)
    table = [f"--{option}={node}" for option in ("cpunodebind", *builtin.MODES) for node in nodes]
    return {"said": said, "one by one": {arg: [by_numactl([arg]), by_builtin([arg])] for arg in table}}


def in_fork_of_its_own(work: Callable[[], Any]) -> Any:
    """Return what `work` returns in a fork of this process, whose limits end with it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            result = work()
        except BaseException:
            result = traceback.format_exc()
        with open(writer, "w") as out:
            json.dump(result, out)
        os._exit(0)
    os.close(writer)
    with open(reader) as shown:
        result = json.load(shown)
    os.waitpid(pid, 0)
    return result


def doctor_under(limit: Limit, *args: str) -> Any:
    """Return the exit status and the findings of doctor under a limit."""

    def examined() -> Any:
        with limit():
            status, text = printed_by("doctor", "--json", *args)
            return {"status": status, **json.loads(text)}

    return in_fork_of_its_own(examined)


NO_LIMIT: Limit = contextlib.nullcontext

DOCTORS: dict[str, tuple[Limit, list[str], Limit, list[str]]] = {
    "seccomp": (no_memory_policy, [], no_memory_policy, ["--memory=none"]),
    "cpuset": (lambda: cpuset("4-7", "1"), [], lambda: cpuset("0-7", "0-1"), []),
    "taskset": (lambda: taskset(0, 1, 4, 5), [], lambda: taskset(0, 1, 4, 5), ["--bind"]),
    "noexec": (noexec, [], NO_LIMIT, []),
    "numactl": (no_numactl, ["--backend=numactl"], no_numactl, ["--backend=auto"]),
    "policy": (policy_set_before, [], policy_set_before, ["--bind"]),
}
"""Limit → the limit and options to examine under, and those under which its fix was applied."""


def doctors(names: list[str]) -> dict[str, Any]:
    """Return what doctor finds without a limit, in auto and explicit mode, and under each: before and after the fix."""
    found = {"none": [doctor_under(NO_LIMIT), doctor_under(NO_LIMIT, "--bind")]}
    for name in names:
        limit, args, fixed, fixed_args = DOCTORS[name]
        found[name] = [doctor_under(limit, *args), doctor_under(fixed, *fixed_args)]
    return found


def printed_by(*args: str) -> list[Any]:
    """Return the exit status of a command line of ours, and what it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = status_of(list(args))
    return [status, out.getvalue()]


def captured_here(limit: Limit) -> dict[str, Any]:
    """Return what topo and a dry run print here, and what they print on a capture of here."""
    with limit(), tempfile.TemporaryDirectory() as directory:
        file = f"{directory}/captured.tar.gz"
        commands = (("topo",), ("topo", "--json"), ("--dry-run", "--json"), ("--dry-run", "--bind"))
        status, _ = printed_by("capture", file)
        here = [printed_by(*command) for command in commands]
        captured = [printed_by(*command, "--root", file) for command in commands]
    return {"status": status, "here": here, "captured": captured}


SCENARIOS: dict[str, Scenario] = {
    "auto": Scenario(ways=("spawn", "engine", "command", "current")),
    "explicit": Scenario(args=("--bind",), config={"numa_bind": True}, ways=("engine", "command", "current")),
    "lists": Scenario(
        args=("--numa-nodes=0,1", "--numa-cpus=1-2", "--numa-cpus=5", "--tp=2"),
        config={"numa_bind_nodes": [0, 1], "numa_bind_cpus": ["1-2", "5"], "tensor_parallel_size": 2},
    ),
    "shards": Scenario(
        args=("--dp=2", "--dp-local=2", "--tp=2"),
        config={"data_parallel_size": 2, "data_parallel_size_local": 2, "tensor_parallel_size": 2},
    ),
    "interleave": Scenario(
        args=("--bind", "--memory=interleave"), config={"numa_bind": True, "memory_policy": "interleave"}
    ),
    "off": Scenario(args=("--no-bind",), config={"numa_bind": False}),
    "taskset-auto": Scenario(lambda: taskset(0, 1, 4, 5, 6, 7)),
    "taskset-explicit": Scenario(lambda: taskset(0, 1, 4, 5, 6, 7), ("--bind",), {"numa_bind": True}),
    "taskset-elsewhere": Scenario(lambda: taskset(4, 5), ("--bind",), {"numa_bind": True}),
    "policy-set": Scenario(policy_set_before),
    "cpuset-part": Scenario(lambda: cpuset("1-6", "0-1")),
    "cpuset-part-explicit": Scenario(lambda: cpuset("1-6", "0-1"), ("--bind",), {"numa_bind": True}),
    "cpuset-one-node": Scenario(lambda: cpuset("4-7", "1")),
    "cpuset-one-node-explicit": Scenario(lambda: cpuset("4-7", "1"), ("--bind",), {"numa_bind": True}),
    "cpuset-fewer-mems": Scenario(lambda: cpuset("0-7", "0"), ("--bind",), {"numa_bind": True}),
    "offline-one": Scenario(lambda: offline(3)),
    "offline-node": Scenario(lambda: offline(1, 2, 3), ("--bind",), {"numa_bind": True}),
    "seccomp": Scenario(no_memory_policy, ("--bind",), {"numa_bind": True}),
    "seccomp-auto": Scenario(no_memory_policy),
    "seccomp-new": Scenario(lambda: no_memory_policy(NEW_NUMACTL), ("--bind",), {"numa_bind": True}),
    "seccomp-strict": Scenario(no_memory_policy, ("--bind", "--strict"), {"numa_bind": True, "strict": True}),
    "noexec": Scenario(noexec, ("--bind",), {"numa_bind": True}, ("engine",)),
    "numactl-missing": Scenario(no_numactl, ("--backend=numactl",), {"backend": "numactl"}),
    "numactl-missing-explicit": Scenario(
        no_numactl, ("--bind", "--backend=numactl"), {"numa_bind": True, "backend": "numactl"}
    ),
    "builtin": Scenario(no_numactl),
    "builtin-explicit": Scenario(no_numactl, ("--bind",), {"numa_bind": True}),
    "seccomp-builtin": Scenario(
        no_memory_policy, ("--bind", "--backend=builtin"), {"numa_bind": True, "backend": "builtin"}
    ),
    "nodes": Scenario(
        args=("--numa-nodes=1,0", "--tp=2"), config={"numa_bind_nodes": [1, 0], "tensor_parallel_size": 2}
    ),
    "amd-driver": Scenario(lambda: amd_driver(1, 0)),
    "nvidia-driver": Scenario(lambda: nvidia_driver("2-3", "0-1")),
    "spread": Scenario(args=("--bind", "--map=rank", "--nproc=3"), ways=()),
}

OTHERS: dict[str, Callable[[], Any]] = {
    "threads": lambda: threads_of_their_own_rank(16),
    "killed": killed_in_mid_start,
    "pool": lambda: pool_of_ranks(len(read_machine().visible)),
    "capture": lambda: captured_here(contextlib.nullcontext),
    "capture-cpuset": lambda: captured_here(lambda: cpuset("1-6", "0-1")),
    "doctor": lambda: doctors([]),
    "doctor-limits": lambda: doctors(list(DOCTORS)),
    "copies": lambda: copies(8),
    "accepted": lambda: accepted_by_both(seed=1, count=40),
}


def with_workers(scenario: Scenario) -> Scenario:
    """Return the scenario with as many workers as there are GPUs, where its config does not say how many."""
    gpus = len(read_machine().visible)
    return scenario._replace(config={"tensor_parallel_size": max(1, gpus), **scenario.config})


def main() -> None:
    for name in sys.argv[1:]:
        if name in OTHERS:
            in_fork(name, OTHERS[name])
        else:
            scenario = with_workers(SCENARIOS[name])
            in_fork(name, lambda scenario=scenario: run_scenario(scenario))  # type: ignore[misc]


if __name__ == "__main__":
    main()
