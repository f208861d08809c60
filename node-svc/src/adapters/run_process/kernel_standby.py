"""A process that has imported what every Python kernel imports, and waits to become one.

It reads one line from its standard input: with which command and in which folder the kernel was
to be started, and which variables it has beyond those of this process. It ends when the line does
not come, which is when the server ends.
"""

import json
import os
import sys
from importlib import import_module
from importlib.util import find_spec

# What a kernel has imported when it is idle for the first time.
MODULES = (
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "ipykernel.debugger",
    "tornado.platform.asyncio",
    "tornado.queues",
    "IPython.core.completerlib",
    "IPython.core.logger",
    "IPython.extensions.storemagic",
    "sqlite3",
)


class Errors:
    """Standard error for a library that keeps it: the one of the moment, and none before.

    The debugger writes a warning when it is imported and keeps where it wrote it. In a kernel that
    is the notebook, where at that moment nobody listens yet.
    """

    def __init__(self):
        self.listens = False

    def write(self, text):
        return sys.stderr.write(text) if self.listens else len(text)

    def flush(self):
        if self.listens:
            sys.stderr.flush()

    def __getattr__(self, name):
        return getattr(sys.__stderr__, name)


def import_all():
    errors = Errors()
    sys.stderr = errors
    for name in MODULES:
        try:
            import_module(name)
        except ImportError:
            # Another version: what the kernel needs, it imports itself.
            pass
    sys.stderr = sys.__stderr__
    errors.listens = True


def read_line():
    # Unbuffered: what follows is the kernel's own standard input.
    line = bytearray()
    while not line.endswith(b"\n"):
        read = os.read(0, 65536)
        if not read:
            return None
        line += read
    return line


def main():
    # The folder of this file is no place for modules; `ipykernel_launcher` takes out its own.
    del sys.path[0]
    import_all()
    line = read_line()
    if line is None:
        return
    order = json.loads(line)
    os.chdir(order["cwd"])
    os.environ.update(order["told"])
    sys.orig_argv = order["command"]
    # The first three are `python -m ipykernel_launcher`.
    sys.argv = [find_spec("ipykernel_launcher").origin, *order["command"][3:]]
    from ipykernel import kernelapp

    kernelapp.launch_new_instance()


if __name__ == "__main__":
    main()
