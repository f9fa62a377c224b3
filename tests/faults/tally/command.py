#!/usr/bin/env python3
"""A command that runs under a lock and says so, again and again, in a journal that all share.

    command.py FOLDER RUN KIND MILLISECONDS

While it runs it holds byte SLOT of the journal (an open file description lock: its children hold it
as well), which must be free. Each line, `SLOT EPOCH WHAT`, is one write at the journal's end: their
order is the order of time.

KIND: `deep` has a child in a session of its own that heeds no signal it can ignore, and goes on
without an end; `plain` has none; `fenced` may go on after its lease: it touches the journal once,
and then writes the ledger's database under its fence until it is refused.
"""

import fcntl
import os
import signal
import struct
import subprocess
import sys
import time

F_OFD_SETLK = 37
PAUSE = 0.02
# What nobody ends is over then.
LIMIT = 120
FENCED = """BEGIN; SELECT onedrop_assert_lock('{name}', {slot}, {epoch}, '{owner}');
INSERT INTO work (slot, epoch) VALUES ({slot}, {epoch}); COMMIT"""

folder, run, kind, millis = sys.argv[1:]
words = ("NAME", "SLOT", "EPOCH", "OWNER")
name, slot, epoch, owner = (os.environ["ONEDROP_LOCK_" + word] for word in words)
flags = os.O_WRONLY | os.O_APPEND
journal = os.open(f"{folder}/journal", flags)


def say(what):
    os.write(journal, f"{slot} {epoch} {what}\n".encode())


def note(what):
    """For the one who started us."""
    path = f"{folder}/runs/{run}.{what}"
    with open(path + ".new", "w") as file:
        file.write(f"{slot} {epoch}\n")
    os.rename(path + ".new", path)


def write():
    """One transaction under the fence: True, False (refused), or None: the server is away."""
    sql = FENCED.format(name=name, slot=slot, epoch=epoch, owner=owner)
    psql = [os.environ["PSQL"], "-XqAt", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose"]
    command = [*psql, "-d", os.environ["LEDGER"], "-c", sql]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=4)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode == 0:
        return True
    return False if "OD002" in done.stderr else None


def fenced():
    say("fenced")
    note("began")
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        if write() is False:
            note("refused")
            return 3
        time.sleep(0.1)
    return 4


def locked():
    byte = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, int(slot), 1, 0)
    try:
        fcntl.fcntl(journal, F_OFD_SETLK, byte)
    except OSError:
        say("twice")
        return 9
    say("began")
    if kind == "deep" and os.fork() == 0:
        os.setsid()
        for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(one, signal.SIG_IGN)
        go_on("deep", LIMIT)
    note("began")
    write()
    go_on("work", int(millis) / 1000)


def go_on(what, secs):
    end = time.monotonic() + secs
    while time.monotonic() < end:
        say(what)
        time.sleep(PAUSE)
    os._exit(0)


sys.exit(fenced() if kind == "fenced" else locked())
