"""What the kernel shows of a process: the truth that plans are held against. It imports little, as guests are slow.

Example: ``python tests/vm/truth.py`` prints ``{"cpus": "2-3", "threads": ["2-3"], "policy": "prefer:1", …}``.
"""

import contextlib
import json
import mmap
import os
import re
import threading
from typing import Any

PAGES = 64


def allowed_cpus(task: str) -> str:
    """Return Cpus_allowed_list of a task directory of /proc."""
    with open(f"{task}/status") as status:
        return next(line.split()[1] for line in status if line.startswith("Cpus_allowed_list:"))


def policy(task: str = "/proc/self") -> str:
    """Return the memory policy in the first line of a task's numa_maps."""
    with open(f"{task}/numa_maps") as maps:
        found = re.match(r"\S+ (prefer \(many\)\S*|\S+)", maps.readline())
    return found[1] if found else ""


def page_nodes() -> dict[str, int]:
    """Return node → number of PAGES fresh pages that lie there. Shared, so that no other mapping is merged with it."""
    with mmap.mmap(-1, PAGES * mmap.PAGESIZE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS) as fresh:
        for page in range(PAGES):
            fresh[page * mmap.PAGESIZE] = 1
        with open("/proc/self/numa_maps") as maps:
            lines = [line for line in maps if "zero" in line and f"dirty={PAGES}" in line]
    return {node: int(count) for node, count in re.findall(r"\bN(\d+)=(\d+)", lines[0])} if lines else {}


def state() -> dict[str, Any]:
    """Return what the kernel shows of the calling process, with one more thread than it had."""
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append(allowed_cpus("/proc/thread-self")))
    thread.start()
    thread.join()
    tasks = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(
            FileNotFoundError, ProcessLookupError
        ):  # the thread that was joined may go while it is looked at
            tasks.append(allowed_cpus(f"/proc/self/task/{task}"))
    return {
        "cpus": allowed_cpus("/proc/thread-self"),
        "threads": sorted({*tasks, *seen}),
        "policy": policy(),
        "pages": page_nodes(),
        "variables": sorted(name for name in os.environ if name.startswith("NUMA_LAUNCH_WRAP")),
    }


def ranked_state(_: object) -> dict[str, Any]:
    """Return the state of a pool's worker, its PID, and the rank that it is told."""
    return {"rank": int(os.environ["LOCAL_RANK"]), "pid": os.getpid(), "state": state()}


def report(path: str, process: dict[str, Any]) -> None:
    """Add a line with this process's identity and state to a file."""
    line = json.dumps({**process, "state": state()}) + "\n"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode())
    os.close(fd)


if __name__ == "__main__":
    print(json.dumps(state()))
