-- The ledger: what came in, where its copies are, and who tried to deliver it.
-- Times are seconds since 1970 (recorded_at whole, others with fractions), UTC. Numbers of messages,
-- copies and attempts are never used again (AUTOINCREMENT): a late process names rows by them.
CREATE TABLE onedrop_schema (
    version    INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    sha256     BLOB NOT NULL,
    applied_at REAL NOT NULL
);

-- One row: about the ledger as a whole.
CREATE TABLE onedrop_ledger (
    one             INTEGER PRIMARY KEY CHECK (one = 1),
    remembers_since REAL NOT NULL,           -- what was recorded since then is on record: its birth,
                                             -- and moved on by each purge with its deletes
    facts_since     REAL NOT NULL DEFAULT 0, -- facts of messages recorded before have been erased
    purged_at       REAL                     -- when a purge last came to its end
);
INSERT INTO onedrop_ledger (one, remembers_since)
VALUES (1, (julianday('now') - 2440587.5) * 86400.0);

CREATE TABLE onedrop_message (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    id_hash       BLOB NOT NULL,             -- of the Message-ID, or of the digest where there is none
    digest        BLOB NOT NULL,             -- SHA-256 over what the author wrote
    message_id    BLOB,                      -- raw bytes
    message_id_text TEXT,
    sender        TEXT NOT NULL,             -- envelope sender of the first attempt, '' for the null sender
    subject       TEXT,
    date          INTEGER,                   -- the Date field
    in_reply_to   TEXT,
    reference_ids TEXT,
    size_bytes    INTEGER NOT NULL,
    collision     INTEGER NOT NULL DEFAULT 0, -- another message has this Message-ID and other content
    raw           BLOB,
    nul_runs      BLOB,                      -- where NUL bytes stand: runs of offset and length
    looks_back    INTEGER NOT NULL DEFAULT 0, -- older than what the ledger remembers, or forgotten
    recorded_at   INTEGER NOT NULL,
    UNIQUE (id_hash, digest)
);

CREATE TABLE onedrop_address (
    message_id INTEGER NOT NULL REFERENCES onedrop_message (id) ON DELETE CASCADE,
    position   INTEGER NOT NULL,
    role       TEXT NOT NULL,                -- from, sender, reply-to, to, cc, bcc
    name       TEXT,
    address    TEXT,
    PRIMARY KEY (message_id, position)
) WITHOUT ROWID;

CREATE TABLE onedrop_part (
    message_id   INTEGER NOT NULL REFERENCES onedrop_message (id) ON DELETE CASCADE,
    position     INTEGER NOT NULL,
    path         TEXT NOT NULL,              -- as IMAP numbers body parts
    content_type TEXT NOT NULL,
    name         TEXT,
    size_bytes   INTEGER NOT NULL,
    PRIMARY KEY (message_id, position)
) WITHOUT ROWID;

CREATE TABLE onedrop_copy (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    value         BLOB,                      -- random: a claim names the row by it
    message_id    INTEGER NOT NULL REFERENCES onedrop_message (id) ON DELETE CASCADE,
    account       TEXT NOT NULL,
    mailbox       TEXT NOT NULL,
    shared        INTEGER NOT NULL,
    epoch         INTEGER NOT NULL,          -- how often it was leased
    owner         TEXT NOT NULL,             -- host:pid of the last lease
    lease_value   BLOB,                      -- random value of the attempt that has or had the lease
    lease_ms      INTEGER NOT NULL DEFAULT 0,
    leased_until  REAL,                      -- seconds since the host's boot; null: given back or placed
    lease_boot    TEXT,                      -- of which boot
    in_doubt      INTEGER NOT NULL,          -- a lease began; nothing proved that nothing was written
    prior_doubt   INTEGER NOT NULL,          -- in_doubt before the last lease
    looks_back    INTEGER NOT NULL DEFAULT 0, -- it may be older than its row: no bound for a look
    placed_at     REAL,
    placed_epoch  INTEGER NOT NULL DEFAULT 0, -- epoch of the claim that confirmed
    uid_validity  INTEGER,
    uid           INTEGER,
    file_name     TEXT,
    nul_replaced  INTEGER NOT NULL DEFAULT 0,
    found_by_look INTEGER NOT NULL DEFAULT 0,
    by_sender     INTEGER NOT NULL DEFAULT 0, -- the receipt is that of the sender's own mail program
    due_at        REAL,                      -- from then on settle has it; stays when it is placed
    settled_at    REAL,                      -- when a look after the last lease found one copy at most
    UNIQUE (message_id, account, mailbox)
);
CREATE INDEX onedrop_copy_unsettled ON onedrop_copy (account, id)
    WHERE placed_at IS NOT NULL AND (epoch > 1 OR prior_doubt) AND settled_at IS NULL;
CREATE INDEX onedrop_copy_due ON onedrop_copy (due_at)
    WHERE due_at IS NOT NULL AND placed_at IS NULL;
CREATE INDEX onedrop_copy_watched ON onedrop_copy (placed_at)
    WHERE due_at IS NOT NULL AND placed_at IS NOT NULL;

CREATE TABLE onedrop_attempt (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id  INTEGER REFERENCES onedrop_message (id) ON DELETE CASCADE,
    id_hash     BLOB NOT NULL,
    recipient   TEXT NOT NULL,
    sender      TEXT NOT NULL,
    queue_id    TEXT NOT NULL,
    host        TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    started_at  REAL NOT NULL,
    duration_ms INTEGER,                     -- without one: still running, or killed
    outcome     TEXT,                        -- delivered, tempfail, permfail
    status      TEXT,
    detail      TEXT
);
CREATE INDEX onedrop_attempt_message ON onedrop_attempt (message_id);
CREATE INDEX onedrop_attempt_queue_id ON onedrop_attempt (queue_id) WHERE queue_id <> '';
CREATE INDEX onedrop_attempt_recipient ON onedrop_attempt (recipient);

-- The bytes of shared copies (Sent) that could not be placed; gone once they are.
CREATE TABLE onedrop_kept (
    message_id INTEGER PRIMARY KEY REFERENCES onedrop_message (id) ON DELETE CASCADE,
    why        TEXT NOT NULL,                -- what the mail store said at the last try
    kept_at    REAL NOT NULL,
    bytes      BLOB NOT NULL                 -- last: what stands behind it is read through it
);

-- Mail servers that were seen to heed for whom a login acts; nothing is written through others.
CREATE TABLE onedrop_proof (
    server     TEXT NOT NULL,
    login_user TEXT NOT NULL,
    way        TEXT NOT NULL,                -- how the account is named at login (store.login)
    host       TEXT NOT NULL,                -- which host has seen it
    proven_at  REAL NOT NULL,
    PRIMARY KEY (server, login_user, way)
) WITHOUT ROWID;

-- Named locks for every program on the host (`onedrop with-lock`). A lock of N slots is up to N
-- rows; they outlive their release, so that epochs only grow.
CREATE TABLE onedrop_lock (
    name_hash   BLOB NOT NULL,
    slot        INTEGER NOT NULL,
    name        TEXT NOT NULL,
    epoch       INTEGER NOT NULL,               -- how often the slot was claimed or stolen: a fencing token
    slots       INTEGER NOT NULL DEFAULT 0,     -- of how many slots the holder wanted one
    host        TEXT NOT NULL DEFAULT '',
    pid         INTEGER NOT NULL DEFAULT 0,
    command     TEXT NOT NULL DEFAULT '',       -- the program that runs under the lock, without its arguments
    note        TEXT NOT NULL DEFAULT '',       -- what the holder said with --note, or why the lock was stolen
    acquired_at REAL,                           -- when the slot was claimed or stolen
    PRIMARY KEY (name_hash, slot)
) WITHOUT ROWID;

CREATE TABLE onedrop_lock_lease (
    name_hash   BLOB NOT NULL,
    slot        INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    owner       BLOB,                           -- random value of the claim, or of the steal
    lease_ms    INTEGER NOT NULL DEFAULT 0,
    renewed_at  REAL,
    lease_until REAL,                           -- seconds since the host's boot; null: given back or stolen
    boot_id     TEXT NOT NULL DEFAULT '',       -- of which boot
    PRIMARY KEY (name_hash, slot),
    FOREIGN KEY (name_hash, slot) REFERENCES onedrop_lock ON DELETE CASCADE
) WITHOUT ROWID;

-- INSERT INTO onedrop_assert_lock (name, slot, epoch, owner) VALUES ('nightly', 1, 7, '0123...')
-- fails unless nobody has claimed or stolen the slot since, or given it back; without an owner the
-- epoch alone counts. SQL has no clock of the boot, so a lease that has run out and was claimed by
-- nobody still counts. Until the transaction ends nobody else can write the ledger, to renew a lock
-- either.
CREATE VIEW onedrop_assert_lock AS
    SELECT k.name, k.slot, k.epoch, lower(hex(l.owner)) AS owner
    FROM onedrop_lock k JOIN onedrop_lock_lease l ON l.name_hash = k.name_hash AND l.slot = k.slot;
CREATE TRIGGER onedrop_assert_lock INSTEAD OF INSERT ON onedrop_assert_lock
BEGIN
    SELECT RAISE(ABORT, 'the lock is not held') WHERE NOT EXISTS (
        SELECT 1 FROM onedrop_lock k JOIN onedrop_lock_lease l ON l.name_hash = k.name_hash AND l.slot = k.slot
        WHERE k.name = NEW.name AND k.slot = NEW.slot AND k.epoch = NEW.epoch AND l.lease_until IS NOT NULL
          AND (NEW.owner IS NULL OR lower(hex(l.owner)) = lower(NEW.owner)));
END;

-- Jobs (`onedrop jobs`): their state and their runs. That one process at a time runs a job is a
-- named lock's affair. Times are seconds since 1970, to the millisecond.
CREATE TABLE onedrop_job (
    name             TEXT PRIMARY KEY NOT NULL,
    revision         INTEGER NOT NULL,              -- how often the row was changed: each change names the one it has seen
    value            BLOB NOT NULL,                 -- random value of the last change
    schedule         TEXT NOT NULL,                 -- schedule and time zone that next_due was computed by
    paused_at        REAL,                          -- since when nothing starts; null: not paused
    pause_note       TEXT NOT NULL,
    last_paused_at   REAL,                          -- beginning of the last pause that has ended, at resumed_at
    resumed_at       REAL,
    epoch            INTEGER NOT NULL,              -- of the lock jobs/NAME under which the last run began
    open_due         REAL,                          -- due time of the run that has begun and not ended
    open_try         INTEGER NOT NULL,
    next_due         REAL,
    next_try         INTEGER NOT NULL,
    retry_at         REAL,                          -- when the run for next_due is tried again
    first_seen       REAL NOT NULL,
    seen_at          REAL NOT NULL,                 -- when a configuration last had it, to the hour
    last_start       REAL,
    last_end         REAL,
    last_success     REAL,
    last_success_due REAL,                          -- newest due time that it has succeeded for
    last_exit        INTEGER,                       -- exit status; 128 + n: ended by signal n
    last_error       TEXT NOT NULL,
    errors           INTEGER NOT NULL,              -- failures since the last success
    runs             INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE onedrop_job_run (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    job          TEXT NOT NULL REFERENCES onedrop_job ON DELETE CASCADE,
    due_at       REAL NOT NULL,                     -- the time that it runs for; of skips the first
    try          INTEGER NOT NULL,
    triggered_by TEXT NOT NULL,                     -- schedule, retry, backfill or manual
    epoch        INTEGER NOT NULL,                  -- of the lock jobs/NAME
    host         TEXT NOT NULL,
    pid          INTEGER NOT NULL,
    started_at   REAL NOT NULL,
    ended_at     REAL,
    outcome      TEXT,                              -- ok, failed, timeout, lost, crashed, marked, skipped_late, _missed,
                                                    -- _busy, _paused, _dependency or _most; null: not ended
    exit_status  INTEGER,
    exit_signal  INTEGER,
    output       TEXT NOT NULL,                     -- the last 4 KiB of what it wrote
    reason       TEXT NOT NULL,                     -- why it was skipped, or failed
    last_due_at  REAL NOT NULL,                     -- of skips the last time
    occurrences  INTEGER NOT NULL,                  -- how many due times it stands for
    begin_value  BLOB NOT NULL,                     -- random value of the change that added it
    end_value    BLOB,                              -- of the one that ended it
    UNIQUE (job, due_at, try)
);
CREATE INDEX onedrop_job_run_job ON onedrop_job_run (job, id);
CREATE INDEX onedrop_job_run_ended_at ON onedrop_job_run (ended_at);
