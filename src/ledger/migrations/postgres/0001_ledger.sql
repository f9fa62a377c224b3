-- The ledger: messages, the copies of them in mailboxes, and every attempt to deliver them.
-- The program's role needs SELECT, INSERT and UPDATE on these tables and SELECT on onedrop_schema; `onedrop migrate`
-- also needs CREATE on the schema. Deleting an onedrop_message row takes everything that belongs to it along; the next
-- delivery of that message then counts as its first.

CREATE TABLE onedrop_message (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id_hash         bytea NOT NULL CHECK (octet_length(id_hash) = 32),
    digest          bytea NOT NULL CHECK (octet_length(digest) = 32),
    message_id      bytea,
    message_id_text text,
    sender          text NOT NULL,
    subject         text,
    date            timestamptz,
    in_reply_to     text,
    reference_ids   text,
    size_bytes      bigint NOT NULL,
    collision       boolean NOT NULL DEFAULT false,
    raw             bytea,
    recorded_at     timestamptz NOT NULL DEFAULT date_trunc('second', clock_timestamp()),
    UNIQUE (id_hash, digest)
);
CREATE INDEX onedrop_message_message_id_text ON onedrop_message (message_id_text);
CREATE INDEX onedrop_message_in_reply_to ON onedrop_message (in_reply_to) WHERE in_reply_to IS NOT NULL;

COMMENT ON TABLE onedrop_message IS 'one row per message, however many recipients and tries; each new row is announced by NOTIFY onedrop_message with its id';
COMMENT ON COLUMN onedrop_message.id_hash IS 'SHA-256 that names the Message-ID, or the digest where there is none; its first 8 bytes are the advisory lock';
COMMENT ON COLUMN onedrop_message.digest IS 'SHA-256 over what the author wrote';
COMMENT ON COLUMN onedrop_message.message_id IS 'raw bytes of the first Message-ID field; null: none usable';
COMMENT ON COLUMN onedrop_message.message_id_text IS 'the same for people: clean UTF-8, at most 1000 bytes';
COMMENT ON COLUMN onedrop_message.sender IS 'envelope sender of the first attempt, empty for the null sender';
COMMENT ON COLUMN onedrop_message.date IS 'the Date field';
COMMENT ON COLUMN onedrop_message.reference_ids IS 'the References field: ids in angle brackets, oldest first';
COMMENT ON COLUMN onedrop_message.collision IS 'another message with this Message-ID and other content is on record';
COMMENT ON COLUMN onedrop_message.raw IS 'the bytes as received, where they are kept';

CREATE TABLE onedrop_address (
    message_id bigint NOT NULL REFERENCES onedrop_message ON DELETE CASCADE,
    position   integer NOT NULL,
    role       text NOT NULL,
    name       text,
    address    text,
    PRIMARY KEY (message_id, position)
);
CREATE INDEX onedrop_address_address ON onedrop_address (lower(address));

COMMENT ON TABLE onedrop_address IS 'addresses in the header, which anyone can write; search by lower(address)';
COMMENT ON COLUMN onedrop_address.role IS 'the field: from, sender, reply-to, to, cc or bcc';

CREATE TABLE onedrop_part (
    message_id   bigint NOT NULL REFERENCES onedrop_message ON DELETE CASCADE,
    path         text NOT NULL,
    content_type text NOT NULL,
    name         text,
    size_bytes   bigint NOT NULL,
    PRIMARY KEY (message_id, path)
);

COMMENT ON TABLE onedrop_part IS 'MIME parts (leaves)';
COMMENT ON COLUMN onedrop_part.path IS 'place in the message as IMAP numbers it: 1, 2.1';
COMMENT ON COLUMN onedrop_part.size_bytes IS 'size as transferred, not decoded';

CREATE TABLE onedrop_copy (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id    bigint NOT NULL REFERENCES onedrop_message ON DELETE CASCADE,
    account       text NOT NULL,
    mailbox       text NOT NULL,
    shared        boolean NOT NULL,
    epoch         bigint NOT NULL,
    owner         text NOT NULL,
    leased_until  timestamptz,
    in_doubt      boolean NOT NULL,
    prior_doubt   boolean NOT NULL,
    placed_at     timestamptz,
    uid_validity  bigint,
    uid           bigint,
    file_name     text,
    nul_replaced  boolean NOT NULL DEFAULT false,
    found_by_look boolean NOT NULL DEFAULT false,
    UNIQUE (message_id, account, mailbox)
);
CREATE INDEX onedrop_copy_unplaced ON onedrop_copy (leased_until) WHERE placed_at IS NULL;
CREATE INDEX onedrop_copy_account ON onedrop_copy (account, message_id);

COMMENT ON TABLE onedrop_copy IS 'one row per mailbox a message belongs in; placed_at says that it is there';
COMMENT ON COLUMN onedrop_copy.shared IS 'several recipients of the message share this copy (Sent)';
COMMENT ON COLUMN onedrop_copy.epoch IS 'how often the right to write this copy was given out';
COMMENT ON COLUMN onedrop_copy.owner IS 'host:pid of the last one that had it';
COMMENT ON COLUMN onedrop_copy.leased_until IS 'until when it has it; null: given back, or placed';
COMMENT ON COLUMN onedrop_copy.in_doubt IS 'the copy may stand in the mailbox without a receipt: look before writing';
COMMENT ON COLUMN onedrop_copy.prior_doubt IS 'in_doubt before the current lease';
COMMENT ON COLUMN onedrop_copy.placed_at IS 'when the receipt was recorded; null: not known to be in the mailbox';
COMMENT ON COLUMN onedrop_copy.uid_validity IS 'IMAP receipt: UIDVALIDITY';
COMMENT ON COLUMN onedrop_copy.uid IS 'IMAP receipt: UID';
COMMENT ON COLUMN onedrop_copy.file_name IS 'Maildir receipt: the unique name, without flags';
COMMENT ON COLUMN onedrop_copy.nul_replaced IS 'NUL bytes went to the store as 0x80';
COMMENT ON COLUMN onedrop_copy.found_by_look IS 'the copy was found in the mailbox, its writer did not live to record it';

CREATE TABLE onedrop_attempt (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id  bigint REFERENCES onedrop_message ON DELETE CASCADE,
    id_hash     bytea NOT NULL CHECK (octet_length(id_hash) = 32),
    recipient   text NOT NULL,
    sender      text NOT NULL,
    queue_id    text NOT NULL,
    host        text NOT NULL,
    pid         bigint NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    duration_ms bigint,
    outcome     text,
    status      text,
    detail      text
);
CREATE INDEX onedrop_attempt_message_id ON onedrop_attempt (message_id);
CREATE INDEX onedrop_attempt_queue_id ON onedrop_attempt (queue_id, message_id);
CREATE INDEX onedrop_attempt_recipient ON onedrop_attempt (lower(recipient), message_id);
CREATE INDEX onedrop_attempt_id_hash ON onedrop_attempt (id_hash);

COMMENT ON TABLE onedrop_attempt IS 'one row per run of the program for a message and its recipient';
COMMENT ON COLUMN onedrop_attempt.message_id IS 'null: the attempt ended before the message was recorded';
COMMENT ON COLUMN onedrop_attempt.outcome IS 'delivered, tempfail or permfail; null: at work, or killed';
COMMENT ON COLUMN onedrop_attempt.status IS 'status code as in RFC 3463';
