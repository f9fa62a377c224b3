#!/usr/bin/env python3
"""Breaks the code in ways that a tool does not think of, one at a time, and runs the tests that
must notice.

    tests/mutations.py [--check] [TEXT...]     all, or those whose name contains a TEXT

Works on a copy of the tree, built under target/mutations. Ends in 1 if a mutation is not noticed,
no longer applies or does not compile. `--check` builds nothing and looks only whether each still
applies. tests/mutants.md says more.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
IDENTITY = "crates/core/src/message/identity.rs"
LOCK_KEY = "crates/core/src/lock_key.rs"
COPIES, RECORD = "crates/ledger/src/sql/claims.rs", "crates/ledger/src/sql/record.rs"
BY = "crates/ledger/src/sql/attempts.rs"
SQLITE_CLOCK = "crates/ledger/src/sqlite/clock.rs"
SQLITE = "crates/ledger/src/sqlite/dialect.rs"
HASHES = "test(message::) | test(keys::) | test(hashes_on_file)"
VALUES = ["--lib", "--test", "values", "-E", HASHES]
LEDGER = ["--test", "ledger_contract", "-E", "test(/^(on_sqlite::|sqlite::a_second|clocks::|claims_table::)/)"]

CLAIMS_OF_POSTGRES = ["--test", "ledger_contract", "-E", "test(/^claims_table::on_postgres|^on_postgres::what_is_kept_goes/)"]

LEDGER_JOBS = ["--test", "ledger_contract", "-E", "test(/^on_sqlite::.*(job|revision)/)"]
ROWS_OF_LOCKS = ["--test", "ledger_contract", "-E", "test(/^on_sqlite::.*(lock|lease)/)"]
TALLY = ["--test", "faults", "-E", "test(tally::)"]
# What the tally meets by chance alone.
GUARDED = ["--test", "locks", "-E", "not test(/^tally::/)"]

AUTHORED = """from sender reply-to to cc subject date message-id in-reply-to references mime-version
mail-followup-to mail-reply-to autocrypt disposition-notification-to return-receipt-to""".split()

# The statements of a claim, a receipt and a release: no tool breaks the words of SQL. That value
# and epoch are as they were read is true as long as the row is locked: no mutation of those.
CLAIMS = [
    (
        "a lease of another boot is over",
        SQLITE_CLOCK, '" ELSE ", $lease_ms, " / 1000.0 END)"', '" ELSE 0 END)"',
    ),
    (
        "a lease of another boot counts as if it were of this one",
        SQLITE_CLOCK, '" ELSE ", $lease_ms, " / 1000.0 END)"', '" ELSE ", $until, " END)"',
    ),
    (
        "a lease that may be of this boot is taken for another's",
        SQLITE_CLOCK, '" THEN max(", $until, ", ", $lease_ms, " / 1000.0)"', '" THEN ", $lease_ms, " / 1000.0"',
    ),
    (
        "a second lease counts by the wall clock",
        SQLITE, '"leased_until = :boot + @', '"leased_until = :now + @',
    ),
    ("a lease counts by the wall clock", SQLITE, '":boot + @', '":now + @'),
    ("a claim keeps the epoch", COPIES, '"epoch = ?1, shared', '"epoch = epoch + 0 * ?1, shared'),
    ("a later claim makes no copy shared", COPIES, "shared = ?2", "shared = shared"),
    ("a second claim has the first one's length", COPIES, "lease_ms = ?4", "lease_ms = lease_ms"),
    ("a second claim has no value", COPIES, "lease_value = ?5", "lease_value = lease_value"),
    ("a second claim leaves no doubt", COPIES, "in_doubt = ?6", "in_doubt = 0 * ?6"),
    ("a second claim has no owner", COPIES, 'prior_doubt = ?7, owner = ?8"', 'prior_doubt = ?7"'),
    ("a first claim leaves no doubt", COPIES, "(?8)}}, ?9, ?10", "(?8)}}, 0 * ?9, ?10"),
    ("a copy that was leased before is not looked at", COPIES, "extend(look);", "extend(None::<Sql<'_>>); drop(look);"),
    (
        "a later look takes the place of a sooner one",
        COPIES, "ELSE onedrop_unsettled.look_at END", "ELSE {new(look_at)} END",
    ),
    ("a receipt has no epoch", COPIES, "placed_epoch = ?6", "placed_epoch = 0 * ?6"),
    ("a receipt leaves a lease", COPIES, "in_doubt = ?7, {no_lease}", "in_doubt = ?7"),
    ("a second receipt keeps the epoch", COPIES, '"epoch = ?1, settled_at', '"settled_at'),
    ("a second receipt leaves it settled", COPIES, '?1, settled_at = NULL"', '?1"'),
    ("a release keeps the lease", COPIES, '"{no_lease}, in_doubt = ?1', '"in_doubt = ?1'),
    ("a release keeps the doubt", COPIES, "in_doubt = ?1", "in_doubt = in_doubt + 0 * ?1"),
    (
        "kept bytes stay after the receipt",
        COPIES, '"DELETE FROM onedrop_kept WHERE message_id', '"DELETE FROM onedrop_kept WHERE 0',
    ),
    ("bytes go that another copy needs", COPIES, "AND c.shared AND", "AND 0 AND"),
    (
        "any message with its Message-ID collides",
        RECORD, "AND digest <> ?2", "AND (1 OR digest <> ?2)",
    ),
    (
        "without a Message-ID there is a collision",
        RECORD, "?3 AND EXISTS", "(1 OR ?3) AND EXISTS",
    ),
    (
        "a message is known by its Message-ID alone",
        RECORD, "AND {digested(digest, ?2)}", "AND (1 OR digest = ?2)",
    ),
]

# Where an attempt is on record, and what is left of it.
ATTEMPTS = [
    ("an attempt with more to say ends in its copy's row", BY, 'place.contains("; ")', "false"),
    ("an attempt's end is forgotten with its copy", BY, "c.attempt_ms IS NOT NULL\"", 'FALSE"'),
    ("an account is erased but for attempts in copies' rows", BY, "c.message_id IN ({messages})", "c.id < 0 AND c.message_id IN ({messages})"),
    ("an attempt ends in the row of another's copy", BY, '"c.id = ?1 AND {OURS}"', '"c.id = ?1"'),
]

# Postgres' two functions, which write as the rules say without asking them.
BASE = "crates/ledger/src/migrations/postgres/0010_base.sql"
FAST_WAYS = [
    (
        "Postgres: a new copy is no doubt",
        BASE, "* interval '1 millisecond', true, false,", "* interval '1 millisecond', false, false,",
    ),
    (
        "Postgres: a new copy's lease is over as it begins",
        BASE, "clock_timestamp() + p_lease_ms * i", "clock_timestamp() + 0 * p_lease_ms * i",
    ),
    (
        "Postgres: a first receipt leaves a lease",
        BASE, "placed_at = clock_timestamp(), leased_until = NULL,", "placed_at = clock_timestamp(),",
    ),
    ("Postgres: a first receipt leaves a doubt", BASE, "in_doubt = false, lease_value = NULL,", "lease_value = NULL,"),
    ("Postgres: a first receipt has no epoch", BASE, "placed_epoch = p_epoch,", "placed_epoch = 0 * p_epoch,"),
    (
        "Postgres: a receipt goes to a row of another value",
        BASE, "AND c.value = p_value AND c.placed_at", "AND c.placed_at",
    ),
    (
        "Postgres: a second receipt takes the first one's place",
        BASE, "AND c.value = p_value AND c.placed_at IS NULL", "AND c.value = p_value",
    ),
    (
        "Postgres: what is kept goes that another copy needs",
        BASE,
        "AND NOT EXISTS (SELECT FROM onedrop_copy c WHERE c.message_id = k.message_id\n",
        "AND NOT EXISTS (SELECT FROM onedrop_copy c WHERE false AND c.message_id = k.message_id\n",
    ),
]

IDENTITIES = [
    *(
        (f"{name} is no part of the identity", IDENTITY, f' b"{name}",\n', f' b"x-{name}",\n')
        for name in AUTHORED
    ),
    ("Content-* is no part of the identity", IDENTITY, 'b"content-", b', 'b"x-content-", b'),
    ("Resent-* is no part of the identity", IDENTITY, 'b"resent-"]', 'b"x-resent-"]'),
    ("Content-Length is authored", IDENTITY, 'b"content-length"', 'b"x-content-length"'),
    ("Resent-Bcc is authored", IDENTITY, 'b"resent-bcc"', 'b"x-resent-bcc"'),
    ("the newest Received counts", IDENTITY, "our_own(field)).last()?", "our_own(field)).next()?"),
    *(
        (f"the {name} hashes have another domain", LOCK_KEY, f"/1/{name}", f"/2/{name}")
        for name in ["message", "content", "copy", "name"]
    ),
]

POSTGRES, GUARDIAN = "crates/ledger/src/postgres/dialect.rs", "crates/locks/src/lock/guardian.rs"

LOCKS = [
    (
        "a lock's lease ends as it begins",
        POSTGRES, "lease_until = clock_timestamp() + @ *", "lease_until = clock_timestamp() + 0 * @ *",
    ),
    (
        "a lock's guardian heeds no end of the lease",
        GUARDIAN, "if now >= ends_at && self", "if now > Duration::MAX && self",
    ),
    (
        "a lock's guardian only asks the command to end",
        GUARDIAN, "signal_all(Signal::SIGKILL, command);", "signal_all(Signal::SIGTERM, command);",
    ),
    (
        "a lock's end counts by the wall clock",
        "crates/core/src/clock.rs", "ClockId::CLOCK_BOOTTIME", "ClockId::CLOCK_REALTIME",
    ),
    ("a lock's fence only warns", BASE, "RAISE EXCEPTION 'the lock", "RAISE NOTICE 'the lock"),
]

LOCKS_SQL = "crates/ledger/src/sql/locks.rs"
LEASES = ["--test", "ledger_contract", "-E", "test(/^locks::a_lease_that_another_got/)"]

# Rows of a lease that two claims make for a slot at once: the lock on the row comes too late.
LOCK_ROWS = [
    (
        "a lock's lease is taken whoever has it",
        LOCKS_SQL,
        "renewed_at = {now}, {lock_lasts(?5)}\nWHERE name_hash = ?1 AND slot = ?2 AND (lease_until IS NULL OR {lock_left()} <= 0)",
        "renewed_at = {now}, {lock_lasts(?5)}\nWHERE name_hash = ?1 AND slot = ?2",
    ),
]

JOBS_SQL = "crates/ledger/src/sql/jobs.rs"

# The lock and the unique key hide it from the ticks.
JOB_ROWS = [
    (
        "a job's row is changed whatever it says",
        JOBS_SQL, "is_made || !is_as_seen ||", "is_made || !is_as_seen && false ||",
    ),
]
JOBS = [
    (
        "a job's lock ends as it begins",
        SQLITE, "lease_until = :boot + @,", "lease_until = :boot + 0 * @,",
    ),
]

LMTP_STORE = ["--test", "peers", "-E", "test(/^lmtp_store::/)"]
EVERYWHERE = ["--test", "peers", "-E", "test(/^imap_everywhere::/)"]
UNINDEXED = ["--test", "peers", "-E", "test(unindexed)"]
FILED = ["--test", "protocol", "-E", "test(/^filed::/)"]
SETTLED = ["--test", "protocol", "-E", "test(/^settle::/)"]
REPLIES, ANYWHERE = "crates/store/src/lmtp/replies.rs", "crates/store/src/imap/all_mailboxes.rs"
LMTP, SEARCH = "crates/store/src/lmtp.rs", "crates/store/src/imap/unindexed.rs"
TRANSACTION, STAND_IN = "crates/store/src/lmtp/transaction.rs", "crates/core/src/deliver/stand_in.rs"

HAND_OVERS = [
    (
        "a handed copy: what is refused after the dot was not stored",
        REPLIES, "_ => StoreError::InDoubt,", "_ => StoreError::NotStored,",
    ),
    (
        "a handed copy: no answer after the dot is no doubt",
        TRANSACTION,
        "HandOffError::Refused(StoreError::InDoubt(why))",
        "HandOffError::Refused(StoreError::NotStored(why))",
    ),
    (
        "a handed copy: several go to one account at a time",
        "crates/store/src/lmtp/account_turns.rs",
        "Some(mine) => self.wait(account, &mine, until),", "Some(_) => true,",
    ),
    (
        "a handed copy: a server that has another delivery is in trouble",
        REPLIES, "            StoreError::Contended\n", "            StoreError::NotStored\n",
    ),
    (
        "a handed copy: Sent and what is filed are handed over as well",
        "crates/core/src/store/port.rs",
        '!destination.shared && destination.place() == "INBOX"',
        "!destination.shared",
    ),
    (
        "a handed copy: any server is sent what may end a message",
        TRANSACTION,
        "!self.is_dovecot() && mail.may_be_cut()", "!self.is_dovecot() && mail.may_be_cut() && false",
    ),
    (
        "a handed copy: a yes before the end is a no",
        TRANSACTION, "2 => StoreError::InDoubt(why),", "2 => StoreError::NotStored(why),",
    ),
    (
        "a handed copy: by IMAP what was found is written again",
        LMTP,
        "if let Some(found) = self.found.take() {", "if let Some(found) = self.found.take().filter(|_| false) {",
    ),
]
LOOKS_EVERYWHERE = [
    (
        "a look everywhere takes an equal message",
        ANYWHERE, "if one.sought.looks_back {", "if true {",
    ),
    (
        "a look everywhere takes any value",
        ANYWHERE,
        "marks[*uid].value == value.as_bytes()",
        "!marks[*uid].value.is_empty() || value.is_empty()",
    ),
    (
        "a look everywhere takes the last value",
        ANYWHERE,
        "fields(header).find(|field| field.is(name))",
        "fields(header).filter(|field| field.is(name)).last()",
    ),
    (
        "a look everywhere passes by a mailbox that has moved",
        ANYWHERE, "self.is_one_gone |= opened.is_none();", "",
    ),
    (
        "a look everywhere believes every search",
        ANYWHERE, "match self.is_trusted {\n            true => self.hits_in",
        "match true {\n            true => self.hits_in",
    ),
    (
        "a look everywhere that looks back reads what is new",
        ANYWHERE, "looks_back || date.is_none_or", "date.is_none_or",
    ),
]
LOOKS_UNINDEXED = [
    (
        "an unindexed look believes every server",
        SEARCH, "TrustSearch::Never => return Ok(false)", "TrustSearch::Never => return Ok(true)",
    ),
    (
        "an unindexed look believes a server with an index",
        SEARCH, 'session.capabilities().has("SEARCH=FUZZY")', "false",
    ),
    (
        "an unindexed look begins behind a receipt of other numbers",
        SEARCH, "validity == opened.validity && opened", "validity != 0 && opened",
    ),
    ("an unindexed look heeds no receipt", SEARCH, "*uid > above && may_be", "may_be"),
    (
        "an unindexed look that looks back reads what is new",
        SEARCH, "sought.looks_back || sought.by_id", "sought.by_id",
    ),
    (
        "an unindexed look that looks back begins behind the receipt",
        "crates/core/src/store.rs", "Some(receipt) if !self.looks_back =>", "Some(receipt) =>",
    ),
]
FALLBACKS = [
    (
        "elsewhere: a row that says so is as good as placed",
        "crates/core/src/deliver/endings.rs",
        "                && !receipt.is_elsewhere()\n", "",
    ),
    (
        "elsewhere: it goes there though another has the right to the copy",
        STAND_IN,
        "Ok(Turn::EpochGone) => return Ok(CopyState::Busy)",
        "Ok(Turn::EpochGone) => return Ok(CopyState::Placed(instead.clone()))",
    ),
    (
        "elsewhere: it goes there though another receipt was first",
        STAND_IN, "Confirmed::Superseded { by } => by,", "Confirmed::Superseded { .. } => instead.clone(),",
    ),
    (
        "elsewhere: it is not put on record",
        STAND_IN, "match open.confirm(&one, until)? {", "match { drop(open); let _ = &one; Confirmed::Recorded } {",
    ),
    (
        "elsewhere: another's turn ends it",
        STAND_IN,
        "Err(LedgerError::Contended) => return Ok(CopyState::Claimed(*claim)),",
        "Err(error @ LedgerError::Contended) => return Err(LedgerError::Broken(error.to_string())),",
    ),
    (
        "elsewhere: INBOX, which this delivery means as well, is claimed twice",
        "crates/core/src/deliver/copy.rs",
        "job.destinations.iter().position(same)",
        "job.destinations.iter().position(|_| false)",
    ),
]
SETTLES = [
    (
        "settle writes under the lease from before its look",
        "crates/core/src/verify/settle.rs",
        "let state = self.claim_kept(copy, terms)?;", "let state = CopyState::Claimed(claim);",
    ),
]

# Name, file, text that stands there once, text in its place, what nextest is to run.
MUTATIONS = [
    *((*mutation, VALUES) for mutation in IDENTITIES),
    *((*mutation, LEDGER) for mutation in CLAIMS),
    *((*mutation, LEDGER) for mutation in ATTEMPTS),
    *((*mutation, CLAIMS_OF_POSTGRES) for mutation in FAST_WAYS),
    *((*mutation, GUARDED if GUARDIAN in mutation else TALLY) for mutation in LOCKS),
    *((*mutation, LEASES) for mutation in LOCK_ROWS),
    *((*mutation, LEDGER_JOBS) for mutation in JOB_ROWS),
    *((*mutation, ROWS_OF_LOCKS) for mutation in JOBS),
    *((*mutation, LMTP_STORE) for mutation in HAND_OVERS),
    *((*mutation, EVERYWHERE) for mutation in LOOKS_EVERYWHERE),
    *((*mutation, UNINDEXED) for mutation in LOOKS_UNINDEXED),
    *((*mutation, FILED) for mutation in FALLBACKS),
    *((*mutation, SETTLED) for mutation in SETTLES),
]


def refusal(path, text):
    """What keeps a mutation from its place; empty if nothing does."""
    count = path.read_text().count(text) if path.exists() else 0
    return "" if count == 1 else f"DOES NOT APPLY: {text!r} stands {count} times in {path}"


def check(chosen):
    refused = [
        f"{why}: {name}" for name, file, text, *_ in chosen if (why := refusal(ROOT / file, text))
    ]
    print("\n".join(refused) or f"{len(chosen)} mutations apply")
    sys.exit(1 if refused or not chosen else 0)


def main():
    is_check = "--check" in sys.argv
    wanted = [arg for arg in sys.argv[1:] if arg != "--check"] or [""]
    chosen = [one for one in MUTATIONS if any(text in one[0] for text in wanted)]
    if is_check:
        check(chosen)
    # One line changes at a time, and nobody reads a backtrace.
    quick = {"CARGO_INCREMENTAL": "1", "CARGO_PROFILE_DEV_DEBUG": "0"}
    target = {"CARGO_TARGET_DIR": str(ROOT / "target/mutations")}
    environment = {**target, **os.environ, **quick}
    failed = not chosen
    with tempfile.TemporaryDirectory(prefix="onedrop-mutations-") as copy:
        files = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT)
        for name in filter(None, files.split(b"\0")):
            path = pathlib.Path(copy, os.fsdecode(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            # With the time of now, or the last run's last mutation would pass for built already.
            shutil.copy(ROOT / os.fsdecode(name), path, follow_symlinks=False)

        def run(*args):
            command = ["cargo", "nextest", "run", "--cargo-quiet", *args]
            ran = subprocess.run(command, cwd=copy, env=environment, capture_output=True)
            return ran.returncode == 0

        for tests in {tuple(mutation[4]): None for mutation in chosen}:
            if not run(*tests):
                sys.exit("the tests fail without a mutation: " + " ".join(tests))
        for name, file, text, other, tests in chosen:
            path = pathlib.Path(copy, file)
            result = refusal(path, text)
            if not result:
                original = path.read_text()
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
