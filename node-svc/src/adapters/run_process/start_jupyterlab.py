"""Starts JupyterLab as `python -m jupyterlab` does, without work that no server needs.

Each saving is an offer: where JupyterLab or one of its libraries is built in another way, it is
left out, and JupyterLab starts as it always does. Nothing here reaches kernels and terminals,
which are processes of their own.
"""

import os
import sys
import threading
import time
import types

FOLDER = os.path.dirname(os.path.abspath(__file__))
# How often it is looked whether the server listens, in seconds.
LOOK = 0.02
# For how long a list of packages is taken to be the present one, in seconds.
REMEMBERED = 5


def check_addresses_when_asked():
    """Defers the grammar of international addresses to the first address that is checked.

    `jsonschema` imports `rfc3987_syntax`, which builds its parser at once: a second of
    processor time, for a check that none of the schemas of Jupyter's events asks for.
    """
    name = "rfc3987_syntax"

    def is_valid_syntax(term, value):
        from rfc3987_syntax import is_valid_syntax as checks

        return checks(term=term, value=value)

    deferred = types.ModuleType(name)
    deferred.is_valid_syntax = is_valid_syntax
    # A missing library must stay missing, so that its user takes another.
    from importlib.util import find_spec

    if find_spec(name) is None:
        return
    sys.modules[name] = deferred
    try:
        import jsonschema  # noqa: F401
    finally:
        # Whoever imports it later gets the library itself.
        if sys.modules.get(name) is deferred:
            del sys.modules[name]


def build_nothing():
    """Leaves out the start of Node.js that asks yarn for its settings.

    They matter only to a build of JupyterLab's own page, which the read-only environment rules
    out; the packaged page is used.
    """
    from jupyterlab import commands

    if hasattr(commands, "_yarn_config"):
        commands._yarn_config = lambda logger: {"yarn config": {}, "npm config": {}}


def find_exporters_once():
    """Makes short what a new notebook's menu asks for, since that holds up the notebook's kernel.

    The formats of a notebook's export are imported before somebody asks. And for one answer the
    packages of the environment are looked through once, not thirty times.
    """
    from nbconvert.exporters import base

    look_through = base.entry_points
    remembered = {}

    def entry_points(**selection):
        key, now = tuple(sorted(selection.items())), time.monotonic()
        at, found = remembered.get(key, (None, None))
        if at is None or now - at > REMEMBERED:
            found = look_through(**selection)
            remembered[key] = (now, found)
        return found

    base.entry_points = entry_points


def prepare_first_notebook(first):
    """Uses the moments between the server's start and its first visitor's first click."""
    while not os.path.exists(os.path.join(FOLDER, "jupyter.sock")):
        time.sleep(LOOK)
    if first is not None:
        attempt(first.start)
    attempt(find_exporters_once)


def attempt(saving):
    """Whether it could be done."""
    try:
        saving()
    except Exception as error:  # noqa: BLE001
        print(f"{saving.__name__}: left out: {error}", file=sys.stderr)
        return False
    return True


def main():
    # Beside this file only where the node is configured to keep a process for the first kernel.
    try:
        from first_kernel import FirstKernel

        first = FirstKernel()
    except ImportError:
        first = None
    # The folder of this file is no place for other modules.
    del sys.path[0]
    attempt(check_addresses_when_asked)
    attempt(build_nothing)
    if first is not None and not attempt(first.watch):
        first = None
    threading.Thread(target=prepare_first_notebook, args=[first], daemon=True).start()
    from jupyterlab.labapp import main as jupyterlab

    sys.exit(jupyterlab())


if __name__ == "__main__":
    main()
