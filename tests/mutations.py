#!/usr/bin/env python3
"""Breaks the code in ways that a tool does not think of, one at a time, and runs the tests that must notice.

    tests/mutations.py [TEXT]     all, or those whose name contains TEXT

Works on a copy of the tree, built under target/mutations. Ends in 1 if a mutation is not noticed, no longer applies or does
not compile. tests/mutants.md says more.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
IDENTITY = "src/message/identity.rs"
LOCK_KEY = "src/lock_key.rs"
VALUES = ["--lib", "--test", "values", "-E", "test(message::) | test(lock_key::) | test(hashes_on_file)"]

AUTHORED = """from sender reply-to to cc subject date message-id in-reply-to references mime-version mail-followup-to
mail-reply-to autocrypt disposition-notification-to return-receipt-to""".split()

# Name, file, text that stands there once, text in its place, what nextest is to run.
MUTATIONS = [
    *(
        (f"{name} is no part of the identity", IDENTITY, f'    b"{name}",\n', f'    b"x-{name}",\n', VALUES)
        for name in AUTHORED
    ),
    ("Content-* is no part of the identity", IDENTITY, 'b"content-", b', 'b"x-content-", b', VALUES),
    ("Resent-* is no part of the identity", IDENTITY, 'b"resent-"]', 'b"x-resent-"]', VALUES),
    ("Content-Length is a part of the identity", IDENTITY, 'b"content-length"', 'b"x-content-length"', VALUES),
    ("Resent-Bcc is a part of the identity", IDENTITY, 'b"resent-bcc"', 'b"x-resent-bcc"', VALUES),
    ("the top-most Received counts", IDENTITY, "!is_our_own(field)).last()?", "!is_our_own(field)).next()?", VALUES),
    *(
        (f"the {name} hashes have another domain", LOCK_KEY, f"onedrop/1/{name}", f"onedrop/2/{name}", VALUES)
        for name in ["message", "content", "copy", "name"]
    ),
]


def main():
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [mutation for mutation in MUTATIONS if wanted in mutation[0]]
    environment = {"CARGO_TARGET_DIR": str(ROOT / "target/mutations"), **os.environ}
    failed = not chosen
    with tempfile.TemporaryDirectory(prefix="onedrop-mutations-") as copy:
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
        for name in filter(None, files.split(b"\0")):
            path = pathlib.Path(copy, os.fsdecode(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / os.fsdecode(name), path, follow_symlinks=False)

        def run(*args):
            command = ["cargo", "nextest", "run", "--cargo-quiet", *args]
            return subprocess.run(command, cwd=copy, env=environment, capture_output=True).returncode == 0

        for tests in {tuple(mutation[4]): None for mutation in chosen}:
            if not run(*tests):
                sys.exit("the tests fail without a mutation: " + " ".join(tests))
        for name, file, text, other, tests in chosen:
            path = pathlib.Path(copy, file)
            original = path.read_text()
            if original.count(text) != 1:
                result = f"DOES NOT APPLY: {text!r} stands {original.count(text)} times in {file}"
            else:
                path.write_text(original.replace(text, other))
                if not run("--no-run", *tests):
                    result = "DOES NOT COMPILE"
                else:
                    result = "NOT NOTICED" if run(*tests) else "noticed"
                path.write_text(original)
            failed |= result != "noticed"
            print(f"{result:12} {name}", flush=True)
    sys.exit(1 if failed else 0)


main()
