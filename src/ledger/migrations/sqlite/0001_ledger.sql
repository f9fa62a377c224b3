-- The ledger: what came in, where its copies are, and who tried to deliver it.
-- Times are seconds since 1970 (recorded_at whole, others with fractions), UTC.
CREATE TABLE onedrop_schema (
    version    INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    sha256     BLOB NOT NULL,
    applied_at REAL NOT NULL
);

CREATE TABLE onedrop_message (
    id            INTEGER PRIMARY KEY,
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
    id            INTEGER PRIMARY KEY,
    message_id    INTEGER NOT NULL REFERENCES onedrop_message (id) ON DELETE CASCADE,
    account       TEXT NOT NULL,
    mailbox       TEXT NOT NULL,
    shared        INTEGER NOT NULL,
    epoch         INTEGER NOT NULL,          -- how often it was leased
    owner         TEXT NOT NULL,             -- host:pid of the last lease
    leased_until  REAL,
    in_doubt      INTEGER NOT NULL,          -- a lease began and nothing proved that nothing was written
    prior_doubt   INTEGER NOT NULL,          -- in_doubt before the last lease
    placed_at     REAL,
    uid_validity  INTEGER,
    uid           INTEGER,
    file_name     TEXT,
    nul_replaced  INTEGER NOT NULL DEFAULT 0,
    found_by_look INTEGER NOT NULL DEFAULT 0,
    UNIQUE (message_id, account, mailbox)
);

CREATE TABLE onedrop_attempt (
    id          INTEGER PRIMARY KEY,
    message_id  INTEGER REFERENCES onedrop_message (id) ON DELETE CASCADE,
    id_hash     BLOB NOT NULL,
    recipient   TEXT NOT NULL,
    sender      TEXT NOT NULL,
    queue_id    TEXT NOT NULL,
    host        TEXT NOT NULL,
    pid         INTEGER NOT NULL,
    started_at  REAL NOT NULL,
    duration_ms INTEGER,                     -- without one: at work, or killed
    outcome     TEXT,                        -- delivered, tempfail, permfail
    status      TEXT,
    detail      TEXT
);
CREATE INDEX onedrop_attempt_message ON onedrop_attempt (message_id);
CREATE INDEX onedrop_attempt_queue_id ON onedrop_attempt (queue_id) WHERE queue_id <> '';
CREATE INDEX onedrop_attempt_recipient ON onedrop_attempt (recipient);
