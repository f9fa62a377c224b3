-- The ledger: what came in, where its copies are, and who tried to deliver it.
-- Times are seconds since 1970 (recorded_at whole, others with fractions), UTC. Numbers of messages,
-- copies and attempts are never used again (AUTOINCREMENT): a late process names rows by them.
CREATE TABLE onedrop_schema (
    version    INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    sha256     BLOB NOT NULL,
    steps      INTEGER NOT NULL,             -- how many of its steps are done
    applied_at REAL                          -- null: not all of them
);

-- What holds for the whole ledger: one row.
CREATE TABLE onedrop_ledger (
    version         INTEGER NOT NULL,        -- of the schema; onedrop_schema has its history
    oldest_program  INTEGER NOT NULL,        -- lowest schema version of a program that may write
    remembers_since REAL NOT NULL,           -- what was recorded since is on record: its birth,
                                             -- and moved on by each purge with its deletes
    facts_since     REAL NOT NULL DEFAULT 0, -- facts of messages before have been erased
    purged_at       REAL,                    -- when a purge last came to its end
    config          TEXT,                    -- JSON of the configuration keys that all hosts must
                                             -- have alike; null: not set
    one_row         INTEGER PRIMARY KEY DEFAULT 1 CHECK (one_row = 1)
);
INSERT INTO onedrop_ledger (version, oldest_program, remembers_since)
VALUES (10, 10, (julianday('now') - 2440587.5) * 86400.0);

CREATE TABLE onedrop_message (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    id_hash       BLOB NOT NULL,             -- of the Message-ID, or of the digest if it has none
    digest        BLOB NOT NULL,             -- SHA-256 over what the author wrote
    message_id    BLOB,                      -- raw bytes
    sender        TEXT NOT NULL,             -- envelope sender of the first attempt, or ''
    subject       TEXT,
    date          INTEGER,                   -- the Date field
    in_reply_to   TEXT,                      -- empty: the last of reference_ids
    reference_ids TEXT,
    size_bytes    INTEGER NOT NULL,
    collision     INTEGER NOT NULL DEFAULT 0, -- another has this Message-ID and other content
    addresses     TEXT,                      -- [["from","lisa@x","Lisa"],...]
    parts         TEXT,                      -- [["1.2","text/plain",123,"a.txt"],...]
    recorded_at   INTEGER NOT NULL,
    looks_back    INTEGER NOT NULL DEFAULT 0, -- older than what the ledger remembers, or forgotten
    nul_runs      BLOB                       -- where NUL bytes stand: runs of offset and length
);
-- 128 bits of a digest are unique as well: that two of 10^10 messages share them is less likely than
-- one in 10^18, and to find a message that shares those of a given one takes 2^128 tries. The table
-- has the hashes whole, and they are compared whole: a message whose halves are another's would be
-- refused for now, and never taken for the other.
CREATE UNIQUE INDEX onedrop_message_key
    ON onedrop_message (substr(id_hash, 1, 8), substr(digest, 1, 16));
CREATE INDEX onedrop_message_recorded_at ON onedrop_message (recorded_at);

CREATE VIEW onedrop_message_text AS
SELECT id, CAST(message_id AS TEXT) AS message_id, sender, subject, date,
       CASE in_reply_to
            WHEN '' THEN substr(reference_ids,
                                length(rtrim(reference_ids, replace(reference_ids, ' ', ''))) + 1)
            ELSE in_reply_to END AS in_reply_to,
       reference_ids, size_bytes, collision, recorded_at
FROM onedrop_message;

CREATE VIEW onedrop_address AS
SELECT m.id AS message_id, a.key + 1 AS position, a.value->>0 AS role, a.value->>2 AS name,
       a.value->>1 AS address
FROM onedrop_message m, json_each(m.addresses) a;

CREATE VIEW onedrop_part AS
SELECT m.id AS message_id, p.value->>0 AS path, p.value->>1 AS content_type, p.value->>3 AS name,
       p.value->>2 AS size_bytes
FROM onedrop_message m, json_each(m.parts) p;

-- The bytes of messages as received (ledger.keep_raw).
CREATE TABLE onedrop_raw (
    message_id INTEGER PRIMARY KEY REFERENCES onedrop_message (id) ON DELETE CASCADE,
    kept_at    REAL NOT NULL,
    bytes      BLOB NOT NULL
);

CREATE TABLE onedrop_copy (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    value         BLOB NOT NULL DEFAULT (randomblob(16)), -- a claim names the row by it
    message_id    INTEGER NOT NULL REFERENCES onedrop_message (id) ON DELETE CASCADE,
    account       TEXT NOT NULL,
    mailbox       TEXT NOT NULL,
    shared        INTEGER NOT NULL,
    epoch         INTEGER NOT NULL,          -- how often it was leased
    owner         TEXT,                      -- host:pid of the last lease; null: placed
    lease_value   BLOB,                      -- random value of the attempt with the last lease
    lease_ms      INTEGER NOT NULL DEFAULT 0,
    leased_until  REAL,                      -- seconds since the host's boot; null: not leased
    lease_boot    TEXT,                      -- of which boot
    in_doubt      INTEGER NOT NULL,          -- nothing proves that the last lease wrote nothing
    prior_doubt   INTEGER NOT NULL,          -- in_doubt before the last lease
    looks_back    INTEGER NOT NULL DEFAULT 0, -- older than the ledger's memory: no bound of date
    placed_at     REAL,
    placed_epoch  INTEGER NOT NULL DEFAULT 0, -- epoch of the claim that confirmed
    receipt_kind  TEXT,                      -- uid (IMAP), name (Maildir), lmtp (handed over),
                                             -- unnamed, or instead: no such mailbox
    receipt       TEXT,                      -- UIDVALIDITY/UID, the file's unique name, a name of
                                             -- the delivery, or the mailbox that has the copy
    began_at      REAL,                      -- when the attempt began that recorded the message
    attempt_ms    INTEGER,                   -- how long it took to store the copy; null: another
                                             -- stored it, or it has no end
    pid           INTEGER,
    host          TEXT,
    queue_id      TEXT,
    recipient     TEXT,                      -- null: that attempt has a row of its own, or was
                                             -- erased, or several copies were recorded
    nul_replaced  INTEGER NOT NULL DEFAULT 0,
    found_by_look INTEGER NOT NULL DEFAULT 0,
    wrapped       INTEGER NOT NULL DEFAULT 0, -- attached to a message of ours
    by_sender     INTEGER NOT NULL DEFAULT 0, -- the receipt is that of the sender's mail program
    due_at        REAL,                      -- from then on settle has it; stays when it is placed
    settled_at    REAL,                      -- when a look after the last lease found one at most
    UNIQUE (message_id, account, mailbox)
);
CREATE INDEX onedrop_copy_account ON onedrop_copy (account, message_id);
CREATE INDEX onedrop_copy_recipient ON onedrop_copy (recipient, message_id)
    WHERE recipient IS NOT NULL;
CREATE INDEX onedrop_copy_queue_id ON onedrop_copy (queue_id) WHERE queue_id <> '';

-- Copies to be looked at again, however old: leased twice, in doubt, due, or written twice.
CREATE TABLE onedrop_unsettled (
    copy_id INTEGER PRIMARY KEY REFERENCES onedrop_copy (id) ON DELETE CASCADE,
    look_at REAL NOT NULL                    -- not before then
);
CREATE INDEX onedrop_unsettled_look_at ON onedrop_unsettled (look_at);

CREATE TABLE onedrop_attempt (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id  INTEGER REFERENCES onedrop_message (id) ON DELETE CASCADE,
    id_hash     BLOB,                        -- as the message's, where there is none
    recipient   TEXT NOT NULL,
    sender      TEXT,                        -- null: the message's
    queue_id    TEXT NOT NULL,
    host        TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    started_at  REAL NOT NULL,
    duration_ms INTEGER,
    outcome     TEXT,                        -- delivered, tempfail, permfail; null: it runs, or
                                             -- was killed
    status      TEXT,
    detail      TEXT,                        -- what Postfix was told
    reason      TEXT                         -- in a word (docs/reasons.md)
);
CREATE INDEX onedrop_attempt_started_at ON onedrop_attempt (started_at);
CREATE INDEX onedrop_attempt_message ON onedrop_attempt (message_id);
CREATE INDEX onedrop_attempt_queue_id ON onedrop_attempt (queue_id) WHERE queue_id <> '';
CREATE INDEX onedrop_attempt_recipient ON onedrop_attempt (recipient)
    WHERE message_id IS NOT NULL;
CREATE INDEX onedrop_attempt_id_hash ON onedrop_attempt (id_hash) WHERE message_id IS NULL;
CREATE INDEX onedrop_attempt_unrecorded ON onedrop_attempt (message_id, started_at)
    WHERE message_id IS NULL;

-- All attempts, also those in onedrop_copy (id: null).
CREATE VIEW onedrop_attempt_text AS
SELECT a.id, a.message_id, a.id_hash, a.started_at, a.recipient,
       coalesce(a.sender, m.sender) AS sender, a.queue_id, a.host, a.pid, a.duration_ms, a.outcome,
       a.status, a.detail, a.reason
FROM onedrop_attempt a LEFT JOIN onedrop_message m ON m.id = a.message_id
UNION ALL
SELECT NULL, c.message_id, NULL, c.began_at, c.recipient, m.sender, c.queue_id, c.host, c.pid,
       c.attempt_ms, iif(c.attempt_ms IS NULL, NULL, 'delivered'),
       iif(c.attempt_ms IS NULL, NULL, '2.0.0'),
       iif(c.attempt_ms IS NULL, NULL,
           CASE c.receipt_kind
               WHEN 'lmtp' THEN 'handed over account=' || c.account
               ELSE 'stored account=' || c.account || ' mailbox=' || c.mailbox END || ' '
           || CASE c.receipt_kind
                  WHEN 'uid' THEN 'uid=' || substr(c.receipt, instr(c.receipt, '/') + 1)
                  WHEN 'unnamed' THEN 'uid=?'
                  ELSE c.receipt_kind || '=' || c.receipt END),
       iif(c.attempt_ms IS NULL, NULL, 'delivered')
FROM onedrop_copy c JOIN onedrop_message m ON m.id = c.message_id
WHERE c.recipient IS NOT NULL;

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

-- Hosts that use the ledger, and the program of each.
CREATE TABLE onedrop_host (
    host            TEXT PRIMARY KEY NOT NULL,
    program_version TEXT NOT NULL,
    schema_version  INTEGER NOT NULL,        -- the one that its program writes
    seen_at         REAL NOT NULL,
    clock_offset_ms INTEGER                  -- its clock less the ledger's; null: not known
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

-- Who waits for a named lock, in the order of their turns. A row is there for seconds, unless its
-- waiter asks again.
CREATE TABLE onedrop_lock_waiter (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    name_hash   BLOB NOT NULL,
    name        TEXT NOT NULL,
    owner       BLOB NOT NULL,                  -- random value of the claim
    host        TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    command     TEXT NOT NULL,
    note        TEXT NOT NULL,
    slots       INTEGER NOT NULL,               -- it wants one of so many slots
    others      INTEGER NOT NULL,               -- how many of its host wait for its turn
    since       REAL NOT NULL,
    lease_ms    INTEGER NOT NULL,
    lease_until REAL,                           -- seconds since the host's boot: how long its place lasts
    boot_id     TEXT NOT NULL DEFAULT '',       -- of which boot
    UNIQUE (name_hash, owner)
);

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
    runs             INTEGER NOT NULL,
    open_host        TEXT NOT NULL DEFAULT '',      -- host of the run that has begun and not ended
    unheld_at        REAL,                          -- when a tick first found the open run without its lock
    paused_until     REAL,                          -- when it is resumed by itself; null: not
    stop_epoch       INTEGER NOT NULL DEFAULT 0,    -- epoch of the run that is to end; 0: none is
    stop_by          TEXT NOT NULL DEFAULT '',      -- who wants that, and why
    hooks_state      TEXT NOT NULL DEFAULT ''       -- ok or failing: the state that its hooks were last called for, and a value of that change
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
    outcome      TEXT,                              -- ok, failed, timeout, stopped, lost, crashed, marked, skipped_late, _missed,
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
