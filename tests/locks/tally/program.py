"""A program that takes a lock in its midst, again and again, and works in a journal that all share.

    program.py HOW SLOTS TTL

HOW: `sql`, by the client of docs/locks-clients.md; `statements`, by those of the page for SQLite;
`pipe`, by that of docs/locks-programs.md. Each line of standard input, `KIND MILLISECONDS`, is one
turn: `began` is said when it has the lock, and how it ended. KIND: `work`, for so long; `late`: it
does not renew and goes on until what it writes under the fence is refused.
"""

import fcntl
import hashlib
import os
import sqlite3
import sys
import time

sys.path.insert(0, ".")
how, slots, ttl = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
journal = os.open("journal", os.O_WRONLY | os.O_APPEND)
WAIT = 300
LIMIT = 10


class Statements:
    """Those of the page, of slot 1."""

    def __init__(self, db):
        self.db = db
        text = open("statements.sql").read()
        texts = [part.split("\n", 1)[1] for part in text.split("-- ")[1:]]
        self.parts = dict(zip(("take", "renew", "back"), texts))
        boot_id = open("/proc/sys/kernel/random/boot_id").read().strip()
        name = hashlib.sha256(b"onedrop/1/name\0mixed").digest()
        self.values = {"hash": name, "name": "mixed", "ttl": ttl, "boot_id": boot_id}
        self.slot = 1

    def does(self, what):
        changed = []
        for one in self.parts[what].split(";")[:-1]:
            self.values.update(boot=time.clock_gettime(time.CLOCK_BOOTTIME), owner=self.bytes)
            changed.append(self.db.execute(one, self.values).rowcount)
        return changed[3 if what == "take" else 0] == 1

    def __enter__(self):
        self.bytes = os.urandom(16)
        self.owner = self.bytes.hex()
        while not self.does("take"):
            time.sleep(0.01)
        row = "SELECT epoch FROM onedrop_lock_lease WHERE name_hash = :hash AND slot = 1"
        self.epoch = self.db.execute(row, self.values).fetchone()[0]
        return self

    def __exit__(self, kind, *_):
        if not self.does("back") and kind is None:
            raise Lost


def sqlite():
    return sqlite3.connect("ledger.db", isolation_level=None, timeout=60)


if how == "pipe":
    from held import Held

    Lost = RuntimeError
elif how == "statements":
    connect = sqlite

    class Lost(Exception):
        pass
else:
    from connects import connect
    from onedrop_lock import Lost, OnedropLock


def lock(db):
    if how == "pipe":
        return Held("mixed", "--wait", f"{WAIT}s", "--slots", str(slots), "--ttl", "6s", "--grace", "0")
    return Statements(db) if how == "statements" else OnedropLock(db, "mixed", ttl, WAIT, slots)


def hear(word):
    print(word, flush=True)


def write(db, at, owner):
    """Under the fence: whether it was let through."""
    cursor = db.cursor()
    kind = type(db).__module__.split(".")[0]
    calls, marks = {
        "sqlite3": ("INSERT INTO onedrop_assert_lock (name, slot, epoch, owner) VALUES", "?"),
        "psycopg2": ("SELECT onedrop_assert_lock", "%s"),
        "pymysql": ("CALL onedrop_assert_lock", "%s"),
    }[kind]
    cursor.execute("BEGIN")
    try:
        cursor.execute(f"{calls} ({', '.join([marks] * 4)})", ("mixed", *at, owner))
        cursor.execute(f"INSERT INTO work (slot, epoch) VALUES ({marks}, {marks})", at)
        cursor.execute("COMMIT")
        return True
    except Exception as error:
        cursor.execute("ROLLBACK")
        if "not held" not in str(error):
            raise
        return False


def works(own, at, kind, secs, db):
    def say(what):
        os.write(journal, f"{at[0]} {at[1]} {what}\n".encode())

    end = time.monotonic() + secs
    if kind == "late":
        say("fenced")
        hear("began")
        end = time.monotonic() + ttl + LIMIT
        while time.monotonic() < end:
            if not write(db, at, own.owner):
                return "refused"
            time.sleep(0.05)
        # On SQLite the lease of one that nobody follows is let through.
        return "refused" if how == "statements" else "let through"
    with open(f"slot.{at[0]}", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("twice")
            return "twice"
        say("began")
        hear("began")
        if db is not None and not write(db, at, own.owner):
            return "refused too early"
        while time.monotonic() < end:
            if how == "pipe":
                own.check()
            say("work")
            time.sleep(0.01)
    return "ok"


def turn(db, kind, secs):
    said = None
    try:
        with lock(db) as own:
            at = (own.slot, own.epoch) if how != "pipe" else own.token.rsplit("#", 1)[1].split(":")
            said = works(own, at, kind, secs, db)
    except Lost:
        return said if kind == "late" and said else "lost"
    return said


db = None if how == "pipe" else connect()
for line in sys.stdin:
    kind, millis = line.split()
    try:
        hear(turn(db, kind, int(millis) / 1000))
    except Exception as error:
        # The session was ended.
        print(repr(error), file=sys.stderr)
        hear("gone")
        db = None if how == "pipe" else connect()
