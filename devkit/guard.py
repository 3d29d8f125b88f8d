"""Runs one command and ends it for certain when the process that asked for it is gone.

    python guard.py FOLDER COMMAND...      FOLDER is removed with the owner; "-" for none

The owner holds the other end of this process's standard input. The kernel closes it however the owner ends, `kill -9`
included; the command is then killed and its folder removed. Should this process itself be killed, the kernel kills the
command. Prints the command's pid; exits as the command does. Uses nothing but the standard library, for a fast start.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading

PR_SET_PDEATHSIG = 1


def main() -> None:
    folder, *command = sys.argv[1:]
    # Both streams of the command go where our standard error goes: the owner's log file.
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        preexec_fn=_die_with_parent,  # noqa: PLW1509  there is no second thread yet
    )
    print(child.pid, flush=True)
    owner_gone = threading.Event()
    threading.Thread(target=_exit_with, args=(child, owner_gone), daemon=True).start()
    while os.read(sys.stdin.fileno(), 1):
        pass
    owner_gone.set()
    child.kill()
    child.wait()
    if folder != "-":
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _exit_with(child: subprocess.Popen[bytes], owner_gone: threading.Event) -> None:
    code = child.wait()
    if not owner_gone.is_set():
        os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
