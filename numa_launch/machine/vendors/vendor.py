"""What a vendor's file must say: which PCI devices are its GPUs, which variables choose among them, whom else to ask.

Example: ``nvidia.VENDOR`` is one. A new vendor is a file with such a VENDOR, and a line in ``vendors/__init__.py``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from numa_launch.machine.gpu import Gpu
from numa_launch.machine.pci import normal_bdf
from numa_launch.machine.visible import Visible


class DriverGpu(NamedTuple):
    """A GPU as its vendor's library describes it; what it does not know is None.

    `numa_node` is the GPU's own node, `cpu_affinity` the CPUs near it (node scope), `mig` the UUIDs of its MIG
    slices. `problem` says why the library knows less than it should: ``"GPU is lost: reset it, or reboot"``. `vendor`
    is None where an answer does not tell.
    """

    bdf: str | None
    uuid: str | None = None
    name: str | None = None
    numa_node: int | None = None
    cpu_affinity: frozenset[int] | None = None
    mig: tuple[str, ...] = ()
    problem: str | None = None
    vendor: str | None = None


class FileFacts(NamedTuple):
    """What files of the driver say of a GPU: UUID, model, and the device node that a container must be given."""

    uuid: str | None = None
    name: str | None = None
    device_node: str | None = None


class UnansweredError(Exception):
    """A library says nothing: why, and after a colon what to do."""


class Library(NamedTuple):
    """A vendor's library, asked through a Python `package` whose module is `module`.

    `ask` runs in a process of its own, as a driver may hang or crash. It gets the highest CPU id that a mask must
    hold, and returns a dictionary for each GPU with the keys of gpus.json and perhaps ``problem``; it raises
    UnansweredError where there is no answer. `signs` are files that show the driver to be there where PCI shows no
    device. `cpus_source` and `node_source` name what it says in a GPU's `source`, None: it does not say that. The node
    it names may be the GPU's own memory, as on Grace, which says nothing of where the CPUs are. `ask_processes` runs
    and fails as `ask` does; it returns a dictionary for each GPU: ``bdf``, ``pids`` of the processes that hold it, and
    perhaps ``problem``.
    """

    name: str
    package: str
    module: str
    ask: Callable[[int], list[dict[str, Any]]]
    signs: tuple[str, ...]
    cpus_source: str | None
    node_source: str | None
    node_may_be_its_own: bool = False
    ask_processes: Callable[[], list[dict[str, Any]]] | None = None


class Vendor(NamedTuple):
    """A vendor of GPUs.

    `pci_id` is as sysfs writes it. `classes` are groups of PCI classes (class and subclass, ``0x0302``): a later group
    counts only where no device is of an earlier one. `variables` are those that `visible` reads. `read_facts` returns
    what the driver's files below a root say of the GPUs at these PCI addresses; ``facts_path`` is the file of one GPU,
    with ``{bdf}`` for its address, that a capture must have for that.
    """

    name: str
    pci_id: str
    classes: tuple[tuple[int, ...], ...]
    variables: tuple[str, ...]
    visible: Callable[[Sequence[Gpu], Mapping[str, str]], Visible]
    read_facts: Callable[[str, Sequence[str]], dict[str, FileFacts]]
    facts_path: str | None = None
    library: Library | None = None


class Questions:
    """Asks a binding one question after the other; what it cannot answer is None, and the first `problem` is kept.

    `errors` are the exceptions by which it refuses (`refusals` are their codes), and `explain` returns what one says,
    None for a plain "not supported here".
    """

    def __init__(self, binding: Any, errors: tuple[type[Exception], ...], explain: Callable[[Any], str | None]) -> None:
        self.binding, self.errors, self.explain = binding, errors, explain
        self.problem: str | None = None
        self.refusals: set[int | None] = set()

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return what the function of this name answers; an older binding may not have it."""
        function = getattr(self.binding, name, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except self.errors as error:
            self.refusals.add(getattr(error, "value", None))
            self.problem = self.problem or self.explain(error)
        except ValueError as error:  # a text that is no UTF-8
            self.problem = self.problem or f"{name} gives no text ({error}): update the driver"
        return None

    def address(self, text: str | None) -> str | None:
        """Return a PCI address as sysfs has it, None for what is none."""
        try:
            return None if text is None else normal_bdf(text)
        except ValueError as error:
            self.problem = self.problem or f"{error}: update the driver"
            return None
