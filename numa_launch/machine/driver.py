"""Ask a vendor's library, in a process of its own: what it knows of the GPUs, once in a process, and who holds them.

Example: ``ask_driver(VENDORS["nvidia"], 223).gpus`` are the GPUs as NVML knows them.
A driver may hang or crash, and a thread that is stuck in the kernel keeps its process from ending and from exec.
"""

import os
import re
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from numa_launch.bounded import HUNG, NOT_STARTED, run_bounded
from numa_launch.machine.answers import Answer, ProcessAnswer, parse_gpus, parse_problem, parse_processes
from numa_launch.machine.vendors import VENDORS
from numa_launch.machine.vendors.vendor import UnansweredError, Vendor

T = TypeVar("T")
Said = tuple[T | None, str | None, bool]
"""What a library said, else why it said nothing and whether that is serious: the fields of an Answer."""

TIME_LIMIT_S = 10
MAX_ANSWER = 16 << 20

_answers: dict[tuple[str, int], Answer] = {}
_asking = threading.Lock()


def _ask_anew() -> None:
    """Let a child made by fork ask: the thread that held the lock is not in it."""
    global _asking
    _asking = threading.Lock()


os.register_at_fork(after_in_child=_ask_anew)


def ask_driver(vendor: Vendor, highest_cpu: int) -> Answer:
    """Return what the vendor's library says, or why it says nothing; a process asks once, whoever wants to know.

    `highest_cpu` is the highest CPU id that a mask must hold.
    """
    key = (vendor.name, highest_cpu)
    with _asking:
        if key not in _answers and vendor.library:
            _answers[key] = Answer(*asked(vendor, parse_gpus, "ask", highest_cpu))
        return _answers.get(key, Answer())


def ask_processes(vendor: Vendor) -> ProcessAnswer:
    """Return which processes hold each GPU, or why the vendor's library does not say; it is asked each time.

    A library that hangs takes TIME_LIMIT_S each time.
    """
    if vendor.library is None or vendor.library.ask_processes is None:
        return ProcessAnswer()
    gpus, problem, _ = asked(vendor, parse_processes, "ask_processes")
    return ProcessAnswer(gpus, problem)


def asked(vendor: Vendor, parse: Callable[[Any], T], question: str, *arguments: int) -> Said[T]:
    """Return what the vendor's library says when this question of its Library is called; `parse` reads it."""
    if vendor.library and not is_installed(vendor.library.module):
        package = vendor.library.package
        return None, f"the Python package {package} is missing: pip install {package}", False
    return asked_in_a_child(vendor, parse, question, *arguments)


def is_installed(module: str) -> bool:
    """Return whether the module could be imported, without importing it."""
    from importlib.util import find_spec

    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def asked_in_a_child(vendor: Vendor, parse: Callable[[Any], T], question: str, *arguments: int) -> Said[T]:
    if getattr(sys, "frozen", False) or "py" not in os.path.basename(sys.executable or "").lower():
        return None, "this program is no plain python, so nothing asks it: pass --numa-nodes", False
    # Without site, which costs a third of the start: all that it would add is in sys.path already.
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = [path for path in (*sys.path, here) if isinstance(path, str)]
    program = (
        f"import sys; sys.path[:] = {paths!a}; "
        f"from numa_launch.machine.driver import answer; answer{(vendor.name, question, *arguments)!a}"
    )
    own = ["-I"] if sys.flags.isolated else ["-E"] if sys.flags.ignore_environment else []
    command = [sys.executable, "-S", *own, "-W", "ignore", "-c", program]
    return parsed(*run_bounded(command, TIME_LIMIT_S, MAX_ANSWER, errors=False), parse)


def parsed(status: int | None, output: str, parse: Callable[[Any], T]) -> Said[T]:
    """Return the answer that a child printed before it ended with this status."""
    if output and status in (0, None):
        return parsed_json(output, parse)
    if status == HUNG:
        problem = f"it gave no answer in {TIME_LIMIT_S} s: look for GPU errors in dmesg"
    elif status == NOT_STARTED:
        problem = f"it could not be asked ({output}): make room for that, or pass --numa-nodes"
    elif status and status < 0:
        problem = f"it crashed (signal {-status}): look for GPU errors in dmesg"
    elif status:
        problem = f"the Python that asks it ended with {status}: check PYTHONHOME and PYTHONPATH"
    else:
        problem = "it ended without an answer: update the driver"
    return None, problem, True


def parsed_json(output: str, parse: Callable[[Any], T]) -> Said[T]:
    import json

    try:
        said = json.loads(output)
        if "gpus" in said:
            return parse(said["gpus"]), None, False
        silent = parse_problem(said)
        return None, silent.problem, silent.serious
    except (ValueError, TypeError, RecursionError) as error:
        return None, f"its answer is broken ({' '.join(str(error).split())}): update the driver", True


def answer(vendor: str, question: str, *arguments: int) -> None:
    """Print what the library says and end: what the child does. Whatever the library prints itself is dropped.

    It ends itself too, as whoever started it may have been killed meanwhile.
    """
    import json
    import signal

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.alarm(TIME_LIMIT_S + 1)
    own = os.dup(1)
    os.dup2(2, 1)
    said: dict[str, Any]
    library = VENDORS[vendor].library
    try:
        said = {"gpus": getattr(library, question)(*arguments)}
    except UnansweredError as error:
        said = {"problem": without_paths(str(error)), "serious": True}
    except ImportError as error:
        why = without_paths(str(error))
        said = {"problem": f"its Python package cannot be imported ({why}): install it again", "serious": True}
    except Exception as error:
        why = without_paths(f"{type(error).__name__}: {error}")
        said = {"problem": f"it failed ({why}): update the driver and its Python package", "serious": True}
    with os.fdopen(own, "w", encoding="utf-8") as out:
        json.dump(said, out)
    os._exit(0)  # without the library's own ways to end, which may hang


def without_paths(text: str) -> str:
    """Return a message on one line and without directories, which name users in captures and bug reports."""
    return re.sub(r"/[^\s'\"]*/", "", " ".join(text.split()))
