"""Keeps one process ready to become the first Python kernel.

The first kernel of a server is the one that somebody waits for, while a new page loads. Only a
start that this process is indistinguishable from takes it: the plain Python kernel of this
environment, with the variables that the process was started with, as long as no package was
installed since. Every other start, and every later one, is as it always was.
"""

import json
import os
import site
import subprocess
import sys
import threading

# The program of the process that waits.
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernel_standby.py")
# What a kernel is told that the process that waits cannot know.
TOLD = "JPY_SESSION_NAME"
# Arguments of a start that the process that waits can follow.
FOLLOWED = {"cwd", "env"}


def packages():
    """When something was last installed or removed, for each folder of packages."""

    def changed(folder):
        try:
            return os.stat(folder).st_mtime_ns
        except OSError:
            return None

    folders = [site.getusersitepackages(), *site.getsitepackages()]
    return [(folder, changed(folder)) for folder in folders]


def without_told(variables):
    return {name: value for name, value in variables.items() if name != TOLD}


class FirstKernel:
    """The process that waits, until it is taken."""

    def __init__(self):
        # Held while the process is started, so that who can see it can also take it.
        self.lock = threading.Lock()
        self.process = None
        self.over = False

    def watch(self):
        """Sees every start of a kernel from now on. Call it before the server can start one."""
        from jupyter_client.provisioning import local_provisioner

        launch = local_provisioner.launch_kernel

        def launch_kernel(command, **arguments):
            taken = self.take(command, arguments)
            return launch(command, **arguments) if taken is None else taken

        local_provisioner.launch_kernel = launch_kernel

    def start(self):
        """Starts the process, unless a kernel has been started before it."""
        with self.lock:
            if self.over:
                return
            # A kernel looks whether this process, its parent, still lives.
            self.variables = {**os.environ, "JPY_PARENT_PID": str(os.getpid())}
            self.packages = packages()
            # As a kernel is started: its own session, so that an interrupt reaches what it starts.
            self.process = subprocess.Popen(
                [sys.executable, PROGRAM],
                stdin=subprocess.PIPE,
                env=self.variables,
                start_new_session=True,
            )

    def follows(self, command, arguments):
        wanted = dict(arguments.get("env") or os.environ)
        wanted["JPY_PARENT_PID"] = str(os.getpid())
        others = {name for name, value in arguments.items() if value} - FOLLOWED
        return (
            command[:3] == [sys.executable, "-m", "ipykernel_launcher"]
            and not others
            and without_told(wanted) == without_told(self.variables)
            and self.packages == packages()
        )

    def take(self, command, arguments):
        """The process as the kernel that was asked for; None where it cannot be that."""
        with self.lock:
            process, self.process = self.process, None
            # Never for the restart of a kernel: it would answer before the server's sockets have
            # found it again, and what it says until then would be lost.
            self.over = True
        if process is None:
            return None
        if process.poll() is not None or not self.follows(command, arguments):
            process.kill()
            process.wait()
            process.stdin.close()
            return None
        order = {
            "command": command,
            "cwd": str(arguments.get("cwd") or os.getcwd()),
            "told": {TOLD: arguments["env"][TOLD]} if TOLD in (arguments.get("env") or {}) else {},
        }
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.close()
        except OSError:
            process.kill()
            process.wait()
            return None
        return process
