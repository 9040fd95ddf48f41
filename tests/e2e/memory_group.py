"""Control groups with a memory limit, for tests of memory use: the kernel kills a process that
exceeds it."""

import contextlib
import os

import pytest

ROOTS = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup")  # versions 1 and 2


def _limit(group, size):
    """Set the limit of a new group; raise OSError where the machine does not allow it."""
    for name, value in (
        ("memory.limit_in_bytes", size),
        ("memory.memsw.limit_in_bytes", size),
        ("memory.max", size),
        ("memory.swap.max", 0),
    ):
        path = os.path.join(group, name)
        if os.path.exists(path):
            with open(path, "w") as f:
                f.write(str(size if value else 0))
            yield name


@contextlib.contextmanager
def memory_group(size):
    """Make a group of `size` bytes; yield a preexec_fn that moves a process into it."""
    root = next((r for r in ROOTS if os.path.exists(os.path.join(r, "cgroup.procs"))), None)
    if root is None:
        pytest.skip("no control groups are mounted")
    group = os.path.join(root, f"llmc-test-{os.getpid()}")
    try:
        os.mkdir(group)
    except OSError as e:
        pytest.skip(f"a control group cannot be made: {e}")
    try:
        try:
            if not list(_limit(group, size)):
                pytest.skip("control groups here have no limit of memory")
        except OSError as e:
            pytest.skip(f"a control group cannot be limited: {e}")

        def enter():
            with open(os.path.join(group, "cgroup.procs"), "w") as f:
                f.write("0")

        yield enter
    finally:
        os.rmdir(group)
