"""Becomes a host: bound to the life of its worker, limited in memory, then the program that its arguments name."""

import ctypes
import os
import resource
import signal
import sys


def main() -> None:
    parent, data, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(parent):
        sys.exit("the worker is gone")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Not the address space: V8 reserves far more of it than it ever uses.
    resource.setrlimit(resource.RLIMIT_DATA, (int(data), int(data)))
    os.execv(command[0], command)  # noqa: S606 - by argument list


if __name__ == "__main__":
    main()
