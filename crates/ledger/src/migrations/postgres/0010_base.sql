-- The ledger: messages, the copies of them in mailboxes, every attempt to deliver them; named
-- locks; jobs. The program's role needs SELECT, INSERT, UPDATE and DELETE on these tables; `onedrop
-- migrate` also needs CREATE on the schema. Deleting an onedrop_message row takes everything that
-- belongs to it along; the next delivery of that message then counts as its first.
--
-- Texts in keys and indexes compare by bytes (COLLATE "C"): another C library may sort a language's
-- texts in another order, and an index that the one before has sorted then misses rows. The
-- recipient itself has the database's collation, for lower().

-- Functions that are left where somebody took the tables out by hand.
DO $$
DECLARE
    f regprocedure;
BEGIN
    FOR f IN
        SELECT oid FROM pg_proc
        WHERE pronamespace = quote_ident(current_schema())::regnamespace
          AND proname IN ('onedrop_begin', 'onedrop_record', 'onedrop_confirm', 'onedrop_stored',
                          'onedrop_message_gone', 'onedrop_assert_lock')
    LOOP
        EXECUTE 'DROP FUNCTION ' || f;
    END LOOP;
END
$$;

-- One row, which every record of a message reads.
CREATE TABLE onedrop_ledger (
    version         integer NOT NULL,
    oldest_program  integer NOT NULL,
    remembers_since timestamptz NOT NULL DEFAULT clock_timestamp(),
    facts_since     timestamptz NOT NULL DEFAULT to_timestamp(0),
    purged_at       timestamptz,
    config          text,
    one_row         boolean PRIMARY KEY DEFAULT true CHECK (one_row)
);
INSERT INTO onedrop_ledger (version, oldest_program) VALUES (10, 10);

COMMENT ON TABLE onedrop_ledger IS 'what holds for the whole ledger: one row';
COMMENT ON COLUMN onedrop_ledger.version IS 'of the schema; onedrop_schema has its history';
COMMENT ON COLUMN onedrop_ledger.oldest_program
IS 'the lowest schema version of a program that may still write';
COMMENT ON COLUMN onedrop_ledger.remembers_since
IS 'what was recorded since then is on record: its birth, and moved on by each purge';
COMMENT ON COLUMN onedrop_ledger.facts_since
IS 'facts of messages that were recorded before have been erased (retention.facts_days)';
COMMENT ON COLUMN onedrop_ledger.purged_at IS 'when a purge last came to its end';
COMMENT ON COLUMN onedrop_ledger.config
IS 'JSON of the configuration keys that decide what one message and one copy are; null: not set';

CREATE TABLE onedrop_message (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    recorded_at   timestamptz NOT NULL DEFAULT date_trunc('second', clock_timestamp()),
    date          timestamptz,
    size_bytes    bigint NOT NULL,
    collision     boolean NOT NULL DEFAULT false,
    looks_back    boolean NOT NULL DEFAULT false,
    id_hash       bytea NOT NULL,
    digest        bytea NOT NULL,
    message_id    bytea,
    sender        text NOT NULL,
    subject       text,
    in_reply_to   text,
    reference_ids text,
    addresses     text,
    parts         text,
    nul_runs      bytea
);
-- 128 bits of a digest are unique as well: that two of 10^10 messages share them is less likely than
-- one in 10^18, and to find a message that shares those of a given one takes 2^128 tries. The table
-- has the hashes whole, and they are compared whole: a message whose halves are another's would be
-- refused for now, and never taken for the other.
CREATE UNIQUE INDEX onedrop_message_key
    ON onedrop_message (substring(id_hash FOR 8), substring(digest FOR 16));
CREATE INDEX onedrop_message_recorded_at ON onedrop_message (recorded_at);

COMMENT ON TABLE onedrop_message IS 'one row per message, however many recipients and tries';
COMMENT ON COLUMN onedrop_message.id_hash
IS 'SHA-256 that names the Message-ID, or the digest where there is none; 8 bytes are the lock';
COMMENT ON COLUMN onedrop_message.digest IS 'SHA-256 over what the author wrote';
COMMENT ON COLUMN onedrop_message.message_id
IS 'raw bytes of the first Message-ID field; null: none usable';
COMMENT ON COLUMN onedrop_message.sender
IS 'envelope sender of the first attempt, empty for the null sender';
COMMENT ON COLUMN onedrop_message.date IS 'the Date field';
COMMENT ON COLUMN onedrop_message.in_reply_to
IS 'the In-Reply-To field; empty: the last of reference_ids';
COMMENT ON COLUMN onedrop_message.reference_ids
IS 'the References field: ids in angle brackets, oldest first';
COMMENT ON COLUMN onedrop_message.collision
IS 'when it was recorded, another message with this Message-ID and other content was on record';
COMMENT ON COLUMN onedrop_message.looks_back
IS 'older than what the ledger remembers, or its copies were forgotten: new copies look back, too';
COMMENT ON COLUMN onedrop_message.addresses
IS 'addresses in the header: [["from","lisa@x","Lisa"],...]; see the view onedrop_address';
COMMENT ON COLUMN onedrop_message.parts
IS 'MIME parts (leaves): [["1.2","text/plain",123,"a.txt"],...]; see the view onedrop_part';
COMMENT ON COLUMN onedrop_message.nul_runs
IS 'where NUL bytes stand (runs of offset and length, or that there are more); null: none';

CREATE VIEW onedrop_message_text AS
SELECT id, encode(message_id, 'escape') AS message_id, sender, subject, date,
       CASE in_reply_to WHEN '' THEN substring(reference_ids FROM '[^ ]*$')
                        ELSE in_reply_to END AS in_reply_to,
       reference_ids, size_bytes, collision, recorded_at
FROM onedrop_message;

COMMENT ON VIEW onedrop_message_text
IS 'messages with the Message-ID as text, in which bytes beyond ASCII are \ooo';

CREATE VIEW onedrop_address AS
SELECT m.id AS message_id, a.position::integer, a.fact->>0 AS role, a.fact->>2 AS name,
       a.fact->>1 AS address
FROM onedrop_message m
     CROSS JOIN LATERAL json_array_elements(m.addresses::json)
         WITH ORDINALITY AS a (fact, position);

COMMENT ON VIEW onedrop_address IS 'addresses in the header, which anyone can write';
COMMENT ON COLUMN onedrop_address.role IS 'the field: from, sender, reply-to, to, cc or bcc';

CREATE VIEW onedrop_part AS
SELECT m.id AS message_id, p.fact->>0 AS path, p.fact->>1 AS content_type, p.fact->>3 AS name,
       (p.fact->>2)::bigint AS size_bytes
FROM onedrop_message m CROSS JOIN LATERAL json_array_elements(m.parts::json) AS p (fact);

COMMENT ON VIEW onedrop_part IS 'MIME parts (leaves)';
COMMENT ON COLUMN onedrop_part.path IS 'place in the message as IMAP numbers it: 1, 2.1';
COMMENT ON COLUMN onedrop_part.size_bytes IS 'size as transferred, not decoded';

CREATE TABLE onedrop_raw (
    message_id bigint PRIMARY KEY,
    kept_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    bytes      bytea NOT NULL
);

COMMENT ON TABLE onedrop_raw IS 'the bytes of messages as received (ledger.keep_raw)';

-- Room in each page for the receipt: no index names a column that a delivery updates, so the update
-- touches none (HOT). Not more room: the server clears up a page that is nine tenths full, and new
-- rows must still come to it then, or what was cleared stays empty. The attempt that recorded a
-- message with one copy lives in the copy's row, until it has more to say than the receipt.
CREATE TABLE onedrop_copy (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id    bigint NOT NULL,
    leased_until  timestamptz,
    placed_at     timestamptz,
    due_at        timestamptz,
    settled_at    timestamptz,
    began_at      timestamptz,
    attempt_ms    integer,
    pid           integer,
    epoch         integer NOT NULL,
    lease_ms      integer NOT NULL DEFAULT 0,
    placed_epoch  integer,
    shared        boolean NOT NULL,
    in_doubt      boolean NOT NULL,
    prior_doubt   boolean NOT NULL,
    looks_back    boolean NOT NULL DEFAULT false,
    nul_replaced  boolean NOT NULL DEFAULT false,
    wrapped       boolean NOT NULL DEFAULT false,
    found_by_look boolean NOT NULL DEFAULT false,
    by_sender     boolean NOT NULL DEFAULT false,
    value         bytea NOT NULL DEFAULT uuid_send(gen_random_uuid()),
    account       text COLLATE "C" NOT NULL,
    mailbox       text COLLATE "C" NOT NULL,
    owner         text,
    lease_value   bytea,
    receipt_kind  text,
    receipt       text,
    recipient     text,
    queue_id      text COLLATE "C",
    host          text,
    UNIQUE (message_id, account, mailbox)
) WITH (fillfactor = 95);
CREATE INDEX onedrop_copy_account ON onedrop_copy (account, message_id);
CREATE INDEX onedrop_copy_recipient ON onedrop_copy (lower(recipient) COLLATE "C", message_id)
    WHERE recipient IS NOT NULL;
CREATE INDEX onedrop_copy_queue_id ON onedrop_copy (queue_id) WHERE queue_id IS NOT NULL;

COMMENT ON TABLE onedrop_copy
IS 'one row per mailbox a message belongs in; placed_at says that it is there';
COMMENT ON COLUMN onedrop_copy.value
IS 'random: a claim names the row by it, so that no late process takes another row for its own';
COMMENT ON COLUMN onedrop_copy.shared IS 'several recipients of the message share this copy (Sent)';
COMMENT ON COLUMN onedrop_copy.epoch IS 'how often the right to write this copy was given out';
COMMENT ON COLUMN onedrop_copy.owner
IS 'host:pid of the last one that had it; null: nobody, or placed';
COMMENT ON COLUMN onedrop_copy.lease_value
IS 'random value of the attempt with the last lease: a repeated call knows its own lease by it';
COMMENT ON COLUMN onedrop_copy.lease_ms
IS 'how long the last lease is, in milliseconds; after it nobody writes under it any more';
COMMENT ON COLUMN onedrop_copy.leased_until IS 'until when it has it; null: given back, or placed';
COMMENT ON COLUMN onedrop_copy.in_doubt
IS 'the copy may stand in the mailbox without a receipt: look before writing';
COMMENT ON COLUMN onedrop_copy.prior_doubt IS 'in_doubt before the current lease';
COMMENT ON COLUMN onedrop_copy.looks_back
IS 'it may be older than its row: a look has no bound of date';
COMMENT ON COLUMN onedrop_copy.placed_at
IS 'when the receipt was recorded; null: not known to be in the mailbox';
COMMENT ON COLUMN onedrop_copy.placed_epoch
IS 'epoch of the claim that put the receipt on record';
COMMENT ON COLUMN onedrop_copy.recipient
IS 'of the attempt that recorded the message with this copy alone, unless it has a row of its own or was erased';
COMMENT ON COLUMN onedrop_copy.began_at IS 'when that attempt began; queue_id, host and pid: its';
COMMENT ON COLUMN onedrop_copy.attempt_ms
IS 'milliseconds that it took to store the copy; null: another stored it, or it has no end';
COMMENT ON COLUMN onedrop_copy.receipt_kind
IS 'uid (IMAP), name (Maildir), lmtp (handed over), unnamed, or instead: the mailbox was not there';
COMMENT ON COLUMN onedrop_copy.receipt
IS 'UIDVALIDITY/UID, the file''s unique name, a name of the delivery, or the mailbox that has it';
COMMENT ON COLUMN onedrop_copy.wrapped
IS 'attached to a message of ours, as the store did not take it as it came';
COMMENT ON COLUMN onedrop_copy.nul_replaced IS 'NUL bytes went to the store as 0x80';
COMMENT ON COLUMN onedrop_copy.found_by_look
IS 'the copy was found in the mailbox, its writer did not live to record it';
COMMENT ON COLUMN onedrop_copy.by_sender
IS 'the receipt is that of the copy which the sender''s own mail program saved';
COMMENT ON COLUMN onedrop_copy.due_at
IS 'from then on onedrop settle has the copy, also once it is placed; null: a delivery writes it';
COMMENT ON COLUMN onedrop_copy.settled_at
IS 'when a look after the last lease found one copy at most; null: not looked, or too many';

CREATE TABLE onedrop_unsettled (
    copy_id bigint PRIMARY KEY REFERENCES onedrop_copy ON DELETE CASCADE,
    look_at timestamptz NOT NULL
);
CREATE INDEX onedrop_unsettled_look_at ON onedrop_unsettled (look_at);

COMMENT ON TABLE onedrop_unsettled
IS 'copies to be looked at again, however old: leased twice, in doubt, due, or written twice';
COMMENT ON COLUMN onedrop_unsettled.look_at IS 'not before then';

-- What an attempt says that stored one copy and has no more to say.
CREATE FUNCTION onedrop_stored(p_account text, p_mailbox text, p_kind text, p_receipt text)
RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE p_kind WHEN 'lmtp' THEN 'handed over account=' || p_account
                       ELSE 'stored account=' || p_account || ' mailbox=' || p_mailbox END || ' '
           || CASE p_kind WHEN 'uid' THEN 'uid=' || split_part(p_receipt, '/', 2)
                          WHEN 'unnamed' THEN 'uid=?'
                          ELSE p_kind || '=' || p_receipt END
$$;

CREATE TABLE onedrop_attempt (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id  bigint,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    pid         integer NOT NULL,
    duration_ms integer,
    id_hash     bytea,
    recipient   text NOT NULL,
    sender      text,
    queue_id    text COLLATE "C" NOT NULL,
    host        text NOT NULL,
    outcome     text,
    status      text,
    detail      text,
    reason      text
);
CREATE INDEX onedrop_attempt_started_at ON onedrop_attempt (started_at);
CREATE INDEX onedrop_attempt_message_id ON onedrop_attempt (message_id);
CREATE INDEX onedrop_attempt_queue_id ON onedrop_attempt (queue_id);
CREATE INDEX onedrop_attempt_recipient ON onedrop_attempt (lower(recipient) COLLATE "C")
    WHERE message_id IS NOT NULL;
CREATE INDEX onedrop_attempt_id_hash ON onedrop_attempt (id_hash) WHERE message_id IS NULL;
CREATE INDEX onedrop_attempt_unrecorded ON onedrop_attempt (started_at) WHERE message_id IS NULL;

COMMENT ON TABLE onedrop_attempt
IS 'one row per run of the program for a message and its recipient, but for those in onedrop_copy';
COMMENT ON COLUMN onedrop_attempt.message_id
IS 'null: the attempt ended before the message was recorded';
COMMENT ON COLUMN onedrop_attempt.id_hash IS 'as the message''s, where there is none';
COMMENT ON COLUMN onedrop_attempt.sender IS 'envelope sender; null: the message''s';
COMMENT ON COLUMN onedrop_attempt.outcome
IS 'delivered, tempfail or permfail; null: it runs, or was killed';
COMMENT ON COLUMN onedrop_attempt.status IS 'status code as in RFC 3463';
COMMENT ON COLUMN onedrop_attempt.detail IS 'what Postfix was told';
COMMENT ON COLUMN onedrop_attempt.reason IS 'in a word (docs/reasons.md); null: as with outcome';

CREATE VIEW onedrop_attempt_text AS
SELECT a.id, a.message_id, a.id_hash, a.started_at, a.recipient,
       coalesce(a.sender, m.sender) AS sender, a.queue_id, a.host, a.pid, a.duration_ms, a.outcome,
       a.status, a.detail, a.reason
FROM onedrop_attempt a LEFT JOIN onedrop_message m ON m.id = a.message_id
UNION ALL
SELECT NULL, c.message_id, NULL, c.began_at, c.recipient, m.sender, c.queue_id, c.host, c.pid,
       c.attempt_ms, s.outcome, s.status, s.detail, s.outcome
FROM onedrop_copy c JOIN onedrop_message m ON m.id = c.message_id
     LEFT JOIN LATERAL (
         SELECT 'delivered' AS outcome, '2.0.0' AS status,
                onedrop_stored(c.account, c.mailbox, c.receipt_kind, c.receipt) AS detail
     ) s ON c.attempt_ms IS NOT NULL
WHERE c.recipient IS NOT NULL;

COMMENT ON VIEW onedrop_attempt_text IS 'all attempts, also those in onedrop_copy (id: null)';

-- What names a message goes with it, whoever may delete messages. A foreign key would do so, too,
-- and lock the message's row for each insert. Raw bytes, and the first copies and attempts, are
-- written with their message, in one transaction; later ones lock its row first (FOR KEY SHARE).
-- This function alone has its owner's rights, not the caller's, so nobody else may make a trigger
-- of it.
CREATE FUNCTION onedrop_message_gone() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_table text;
    v_which text := '';
BEGIN
    FOREACH v_table IN ARRAY ARRAY['onedrop_raw', 'onedrop_copy', 'onedrop_attempt'] LOOP
        IF TG_OP <> 'TRUNCATE' THEN
            v_which := ' t USING gone WHERE t.message_id = gone.id';
        ELSIF v_table = 'onedrop_attempt' THEN
            v_which := ' WHERE message_id IS NOT NULL';
        END IF;
        -- Not by TRUNCATE, which fails where they are truncated in the same command.
        EXECUTE format('DELETE FROM %I.%I', TG_TABLE_SCHEMA, v_table) || v_which;
    END LOOP;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION onedrop_message_gone() FROM PUBLIC;

CREATE TRIGGER onedrop_message_deleted AFTER DELETE ON onedrop_message
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION onedrop_message_gone();
CREATE TRIGGER onedrop_message_truncated AFTER TRUNCATE ON onedrop_message
    FOR EACH STATEMENT EXECUTE FUNCTION onedrop_message_gone();

CREATE TABLE onedrop_kept (
    message_id bigint PRIMARY KEY REFERENCES onedrop_message ON DELETE CASCADE,
    bytes      bytea NOT NULL,
    why        text NOT NULL,
    kept_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE onedrop_kept
IS 'the bytes of shared copies (Sent) that could not be placed, or are due later; gone once the last is placed';
COMMENT ON COLUMN onedrop_kept.why
IS 'what the mail store said at the last try, or for what the copy waits';

CREATE TABLE onedrop_proof (
    server     text COLLATE "C" NOT NULL,
    login_user text COLLATE "C" NOT NULL,
    way        text COLLATE "C" NOT NULL,
    host       text NOT NULL,
    proven_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (server, login_user, way)
);

COMMENT ON TABLE onedrop_proof
IS 'mail servers that were seen to heed for whom a login acts; nothing is written through others';
COMMENT ON COLUMN onedrop_proof.way IS 'how the account is named at login (store.login)';
COMMENT ON COLUMN onedrop_proof.host IS 'which host has seen it';

CREATE TABLE onedrop_host (
    host            text COLLATE "C" PRIMARY KEY,
    program_version text NOT NULL,
    schema_version  integer NOT NULL,
    seen_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    clock_offset_ms bigint
);

COMMENT ON TABLE onedrop_host IS 'hosts that use the ledger, and the program of each';
COMMENT ON COLUMN onedrop_host.schema_version IS 'the one that its program writes';
COMMENT ON COLUMN onedrop_host.clock_offset_ms IS 'its clock less this server''s; null: not known';

-- The fast ways of a delivery, one round trip each: a message that is not on record, and the first
-- receipt of a copy. Everything else goes the general path, by plain statements in which `claim.rs`
-- decides; what is done here must equal it, and a table test compares the two. As functions they
-- stay planned in the server's process whoever is connected to it, also through a pooler that gives
-- each transaction another one. They run with the caller's rights and need what the tables need.
--
-- Every statement in them must see what was committed before it began, which only READ COMMITTED
-- gives: in any other level they refuse (SQLSTATE OD001), and the caller opens the transaction
-- itself.

CREATE FUNCTION onedrop_begin(p_lock_timeout_ms bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_set text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'not in READ COMMITTED' USING ERRCODE = 'OD001';
    END IF;
    -- For what was left behind: nobody waits for a lock for longer than the caller waits for us.
    v_set := set_config('lock_timeout', p_lock_timeout_ms::text, true);
    -- That a commit has not waited for its standby is said by a warning alone.
    v_set := set_config('client_min_messages', 'warning', true);
    -- A commit that the server may forget must not let a copy be written.
    IF current_setting('synchronous_commit') = 'off' THEN
        v_set := set_config('synchronous_commit', 'on', true);
    END IF;
    RETURN v_set;
END
$$;

-- Records a message that is not on record, its attempt, and its copies, which it leases as
-- `claim.rs` leases those that have no row: arrays of one length, each mailbox once. p_notify: its
-- number is told to those who LISTEN to onedrop_message.
--
-- Returns the numbers of the message, its time (seconds since 1970), whether it collides (1), the
-- numbers of the attempt (0: it lives in the only copy's row) and of the copies. Nothing in the
-- array: another session holds the message's lock. Null: nothing is done, the general path has to
-- look. So it is with a message that is known, or may be older than what the ledger remembers, and
-- where schema or configuration differ.
CREATE FUNCTION onedrop_record(
    p_lock_timeout_ms bigint, p_program integer, p_config text, p_lock bigint,
    p_id_hash bytea, p_digest bytea, p_message_id bytea, p_subject text, p_date double precision,
    p_in_reply_to text, p_reference_ids text, p_size_bytes bigint, p_recorded_at bigint,
    p_oldest bigint, p_nul_runs bytea, p_addresses text, p_parts text, p_notify boolean,
    p_recipient text, p_sender text, p_queue_id text, p_host text, p_pid integer,
    p_accounts text[], p_mailboxes text[], p_shared boolean[], p_values bytea[],
    p_owner text, p_lease_value bytea, p_lease_ms bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_set text; -- what a call returns that matters to nobody
    v_oldest timestamptz := coalesce(to_timestamp(p_oldest), '-infinity');
    v_ledger record;
    v_row bigint;
    v_numbers bigint[];
    v_began timestamptz;
BEGIN
    v_set := onedrop_begin(p_lock_timeout_ms);
    SELECT l.version, l.oldest_program, l.config, l.remembers_since INTO v_ledger
    FROM onedrop_ledger l;
    IF (v_ledger.version BETWEEN p_program - 1 AND p_program + 1
        AND v_ledger.oldest_program <= p_program
        AND (p_config IS NULL OR v_ledger.config IS NOT NULL)
        AND v_oldest >= v_ledger.remembers_since + interval '1 hour') IS NOT TRUE
    THEN
        RETURN NULL;
    END IF;
    IF v_ledger.config <> p_config THEN
        -- Keys that one of them lacks are of another version.
        IF EXISTS (
            SELECT FROM jsonb_each(p_config::jsonb) o
            WHERE v_ledger.config::jsonb -> o.key <> o.value
        ) THEN
            RETURN NULL;
        END IF;
    END IF;
    IF NOT pg_try_advisory_xact_lock(p_lock) THEN
        RETURN '{}';
    END IF;

    INSERT INTO onedrop_message AS m (recorded_at, date, size_bytes, collision, id_hash, digest,
                                      message_id, sender, subject, in_reply_to, reference_ids,
                                      addresses, parts, nul_runs)
    VALUES (-- The caller's time where our clock says so too, give or take two seconds.
            CASE WHEN abs(p_recorded_at - extract(epoch FROM clock_timestamp())) <= 2
                 THEN to_timestamp(p_recorded_at)
                 ELSE date_trunc('second', clock_timestamp()) END,
            to_timestamp(p_date), p_size_bytes,
            p_message_id IS NOT NULL AND EXISTS (
                SELECT FROM onedrop_message o
                WHERE substring(o.id_hash FOR 8) = substring(p_id_hash FOR 8)
                  AND o.id_hash = p_id_hash AND o.digest <> p_digest),
            p_id_hash, p_digest, p_message_id,
            p_sender, p_subject, p_in_reply_to, p_reference_ids, p_addresses,
            p_parts, p_nul_runs)
    ON CONFLICT (substring(id_hash FOR 8), substring(digest FOR 16)) DO NOTHING
    RETURNING ARRAY[m.id, extract(epoch FROM m.recorded_at)::bigint, m.collision::integer]
    INTO v_numbers;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- A purge that has just taken this very message out has moved the memory on with it.
    IF v_oldest < (SELECT l.remembers_since FROM onedrop_ledger l) + interval '1 hour' THEN
        RAISE EXCEPTION 'the message may have been purged' USING ERRCODE = 'serialization_failure';
    END IF;

    IF cardinality(p_accounts) = 1 THEN
        v_began := clock_timestamp();
        v_numbers := v_numbers || 0::bigint;
    ELSE
        INSERT INTO onedrop_attempt (message_id, recipient, queue_id, host, pid)
        VALUES (v_numbers[1], p_recipient, p_queue_id, p_host, p_pid)
        RETURNING id INTO v_row;
        v_numbers := v_numbers || v_row;
        p_recipient := NULL;
        p_queue_id := NULL;
        p_host := NULL;
        p_pid := NULL;
    END IF;
    FOR i IN 1 .. cardinality(p_accounts) LOOP
        INSERT INTO onedrop_copy (message_id, account, mailbox, shared, value, epoch, owner,
                                  lease_value, lease_ms, leased_until, in_doubt, prior_doubt,
                                  recipient, queue_id, host, pid, began_at)
        VALUES (v_numbers[1], p_accounts[i], p_mailboxes[i], p_shared[i], p_values[i], 1, p_owner,
                p_lease_value, p_lease_ms,
                clock_timestamp() + p_lease_ms * interval '1 millisecond', true, false,
                p_recipient, p_queue_id, p_host, p_pid, v_began)
        RETURNING id INTO v_row;
        v_numbers := v_numbers || v_row;
    END LOOP;
    IF p_notify THEN
        v_set := pg_notify('onedrop_message', v_numbers[1]::text);
    END IF;
    RETURN v_numbers;
END
$$;

-- Puts the first receipt of a copy on record, as `claim.rs` says of one that is not placed,
-- whatever its epoch. With it goes the end of an attempt (p_in_copy: that which lives in the copy's
-- row and has no more to say; p_attempt: the one with this number), and what is kept of the message
-- if this was its last shared copy. Without p_waits the commit waits for no disk and no standby, and
-- a crash of the server may undo the receipt, as `may_be_lost` of `claim.rs` says. False: nothing is
-- done, the general path has to look.
CREATE FUNCTION onedrop_confirm(
    p_lock_timeout_ms bigint, p_waits boolean, p_copy bigint, p_value bytea, p_epoch bigint,
    p_receipt_kind text, p_receipt text, p_nul_replaced boolean, p_found_by_look boolean,
    p_wrapped boolean, p_in_copy boolean,
    p_attempt bigint, p_duration_ms bigint, p_outcome text, p_status text, p_detail text,
    p_reason text
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_set text;
    v_placed record;
BEGIN
    v_set := onedrop_begin(p_lock_timeout_ms);
    UPDATE onedrop_copy c SET
        placed_at = clock_timestamp(), leased_until = NULL, in_doubt = false, lease_value = NULL,
        owner = NULL, receipt_kind = p_receipt_kind, receipt = p_receipt,
        nul_replaced = p_nul_replaced, found_by_look = p_found_by_look, wrapped = p_wrapped,
        placed_epoch = p_epoch,
        attempt_ms = CASE WHEN p_in_copy AND c.recipient IS NOT NULL THEN p_duration_ms END
    WHERE c.id = p_copy AND c.value = p_value AND c.placed_at IS NULL
      AND (p_waits
           OR c.epoch = 1 AND NOT c.prior_doubt AND NOT c.shared AND c.due_at IS NULL)
    RETURNING c.message_id, c.shared INTO v_placed;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Not before: what the general path does in this transaction waits.
    IF NOT p_waits THEN
        v_set := set_config('synchronous_commit', 'off', true);
    END IF;
    IF v_placed.shared THEN
        -- Locked first: the next statement then sees copies placed or made due at the same moment.
        PERFORM FROM onedrop_kept k WHERE k.message_id = v_placed.message_id FOR UPDATE;
        IF FOUND THEN
            DELETE FROM onedrop_kept k WHERE k.message_id = v_placed.message_id
                AND NOT EXISTS (SELECT FROM onedrop_copy c WHERE c.message_id = k.message_id
                                AND c.shared AND c.placed_at IS NULL);
        END IF;
    END IF;
    IF p_attempt IS NOT NULL THEN
        UPDATE onedrop_attempt a SET
            duration_ms = p_duration_ms, outcome = p_outcome, status = p_status,
            detail = p_detail, reason = p_reason
        WHERE a.id = p_attempt;
    END IF;
    RETURN true;
END
$$;

-- Named locks for every program on the hosts (`onedrop with-lock`). A lock of N slots is up to N
-- rows; they outlive their release, so that epochs only grow. Every statement on them is one that
-- MariaDB has, too.

CREATE TABLE onedrop_lock (
    name_hash   bytea NOT NULL CHECK (octet_length(name_hash) = 32),
    slot        integer NOT NULL CHECK (slot > 0),
    name        text NOT NULL,
    epoch       bigint NOT NULL,
    slots       integer NOT NULL DEFAULT 0,
    host        text NOT NULL DEFAULT '',
    pid         bigint NOT NULL DEFAULT 0,
    command     text NOT NULL DEFAULT '',
    note        text NOT NULL DEFAULT '',
    acquired_at timestamptz,
    PRIMARY KEY (name_hash, slot)
);

COMMENT ON TABLE onedrop_lock
IS 'who has, or last had, a slot of a named lock; changes with each claim and steal and at no other time';
COMMENT ON COLUMN onedrop_lock.name_hash IS 'SHA-256 that names the lock';
COMMENT ON COLUMN onedrop_lock.epoch IS 'how often the slot was claimed or stolen: a fencing token';
COMMENT ON COLUMN onedrop_lock.slots IS 'of how many slots the holder wanted one';
COMMENT ON COLUMN onedrop_lock.command
IS 'the program that runs under the lock, without its arguments';
COMMENT ON COLUMN onedrop_lock.note
IS 'what the holder said with --note, or why the lock was stolen';
COMMENT ON COLUMN onedrop_lock.acquired_at IS 'when the slot was claimed or stolen';

-- A table of its own: renewals must not wait for a transaction that has asserted the lock.
CREATE TABLE onedrop_lock_lease (
    name_hash   bytea NOT NULL,
    slot        integer NOT NULL,
    epoch       bigint NOT NULL,
    owner       bytea,
    lease_ms    bigint NOT NULL DEFAULT 0,
    renewed_at  timestamptz,
    lease_until timestamptz,
    PRIMARY KEY (name_hash, slot),
    FOREIGN KEY (name_hash, slot) REFERENCES onedrop_lock ON DELETE CASCADE
);

COMMENT ON TABLE onedrop_lock_lease IS 'until when the newest epoch of a slot lasts';
COMMENT ON COLUMN onedrop_lock_lease.owner IS 'random value of the claim, or of the steal';
COMMENT ON COLUMN onedrop_lock_lease.lease_until
IS 'by this server''s clock; null: given back or stolen';

CREATE TABLE onedrop_lock_waiter (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name_hash   bytea NOT NULL CHECK (octet_length(name_hash) = 32),
    name        text NOT NULL,
    owner       bytea NOT NULL,
    host        text NOT NULL,
    pid         bigint NOT NULL,
    command     text NOT NULL,
    note        text NOT NULL,
    slots       integer NOT NULL,
    others      integer NOT NULL,
    since       timestamptz NOT NULL,
    lease_ms    bigint NOT NULL,
    lease_until timestamptz,
    UNIQUE (name_hash, owner)
);

COMMENT ON TABLE onedrop_lock_waiter
IS 'who waits for a named lock, in the order of their turns; a row is there for seconds, unless its waiter asks again';
COMMENT ON COLUMN onedrop_lock_waiter.owner IS 'random value of the claim';
COMMENT ON COLUMN onedrop_lock_waiter.slots IS 'it wants one of so many slots';
COMMENT ON COLUMN onedrop_lock_waiter.others IS 'how many of its host wait for its turn';
COMMENT ON COLUMN onedrop_lock_waiter.lease_until IS 'how long its place lasts';

-- Fails unless this epoch of the slot is held (where an owner is given, by that owner), and keeps
-- others from claiming or stealing the slot until the transaction ends: call it in the transaction
-- that does the work, and keep that short. Renewals do not wait for it. The owner counts where an
-- epoch was given out twice: the ledger was restored, or a fail-over has lost a commit.
CREATE FUNCTION onedrop_assert_lock(p_name text, p_slot integer, p_epoch bigint, p_owner text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    PERFORM FROM onedrop_lock k
    WHERE k.name_hash = sha256('onedrop/1/name'::bytea || '\x00'::bytea || convert_to(p_name, 'UTF8'))
      AND k.slot = p_slot AND k.epoch = p_epoch
    FOR SHARE;
    IF FOUND THEN
        -- Its own statement: it must see what was committed while the one above waited.
        PERFORM FROM onedrop_lock_lease l
        WHERE l.name_hash = sha256('onedrop/1/name'::bytea || '\x00'::bytea || convert_to(p_name, 'UTF8'))
          AND l.slot = p_slot AND l.epoch = p_epoch AND l.lease_until > clock_timestamp()
          AND (p_owner IS NULL OR encode(l.owner, 'hex') = lower(p_owner));
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lock % (slot %, epoch %) is not held', p_name, p_slot, p_epoch USING ERRCODE = 'OD002';
    END IF;
END
$$;

COMMENT ON FUNCTION onedrop_assert_lock(text, integer, bigint, text)
IS 'fails (OD002) unless this epoch of the lock is held; nobody else gets the slot before the transaction ends';

-- It runs with the rights of its owner, so that the role of a command needs none on the tables;
-- names mean what they mean here. A role that may call it can keep a slot from being claimed: only
-- those that were granted it may.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION onedrop_assert_lock(text, integer, bigint, text) SET search_path = %I, pg_temp', current_schema());
END
$$;
REVOKE ALL ON FUNCTION onedrop_assert_lock(text, integer, bigint, text) FROM PUBLIC;

-- Locks for programs, in their own sessions (docs/locks-programs.md): the same rows, epochs and line as
-- those of `onedrop with-lock`. The procedures commit by themselves, and so refuse an open
-- transaction, whose ROLLBACK would take the lock away from a program that believes that it has it;
-- they keep no row locked while they wait. What they do in one transaction each is a function that
-- runs with its owner's rights.

CREATE OR REPLACE FUNCTION onedrop_lock_hash(p_name text) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT sha256('onedrop/1/name'::bytea || '\x00'::bytea || convert_to(p_name, 'UTF8'))
$$;

-- Claims a slot that is free and that no other waits for; else has its place in the line, until
-- then, where it waits.
CREATE OR REPLACE FUNCTION onedrop_lock_step(
    p_name text, p_ttl_secs double precision, p_slots integer, p_owner bytea, p_waits boolean, OUT p_slot integer, OUT p_epoch bigint, OUT p_is_next boolean)
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    v_hash bytea := onedrop_lock_hash(p_name);
    v_host text := coalesce(host(inet_client_addr()), 'local');
    v_command text := left(coalesce(nullif(current_setting('application_name'), ''), session_user), 200);
    v_ms bigint := 1000 * p_ttl_secs;
    v_place bigint;
    v_before integer;
    v_most integer;
    v_free integer := 0;
BEGIN
    IF octet_length(p_name) NOT BETWEEN 1 AND 200
        OR p_name ~ '[\u0001-\u001f\u007f-\u009f]|^[\u0020\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]|[\u0020\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]$' THEN
        RAISE EXCEPTION 'the name of a lock is 1 to 200 bytes without control characters, and without blanks at its ends' USING ERRCODE = '22023';
    END IF;
    IF (p_ttl_secs BETWEEN 1 AND 604800 AND p_slots BETWEEN 1 AND 1000) IS NOT TRUE THEN
        RAISE EXCEPTION 'a lock has 1 to 1000 slots and lasts 1 to 604800 seconds' USING ERRCODE = '22023';
    END IF;
    -- Of this call, or of the one before it in this session, which has just ended.
    SELECT min(w.id) INTO v_place FROM onedrop_lock_waiter w
    WHERE w.name_hash = v_hash AND (w.owner = p_owner OR w.note = 'SQL' AND w.host = v_host AND w.pid = pg_backend_pid())
      AND w.lease_until > clock_timestamp();
    SELECT count(*), max(w.slots), count(*) = 0 INTO v_before, v_most, p_is_next FROM onedrop_lock_waiter w
    WHERE w.name_hash = v_hash AND w.lease_until > clock_timestamp() AND (v_place IS NULL OR w.id < v_place);
    FOR v_slot IN 1..p_slots LOOP
        CONTINUE WHEN EXISTS (SELECT FROM onedrop_lock_lease l
                              WHERE l.name_hash = v_hash AND l.slot = v_slot AND l.lease_until > clock_timestamp());
        -- The lowest free slots are for those before it: were any slot taken of which others were
        -- free, two that come at once would leave none.
        v_free := v_free + 1;
        CONTINUE WHEN v_most >= v_slot AND v_before >= v_free;
        INSERT INTO onedrop_lock (name_hash, slot, name, epoch) VALUES (v_hash, v_slot, p_name, 0) ON CONFLICT DO NOTHING;
        -- Left out while a transaction that has asserted the lock is open, or another claims it.
        PERFORM FROM onedrop_lock k WHERE k.name_hash = v_hash AND k.slot = v_slot FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        INSERT INTO onedrop_lock_lease (name_hash, slot, epoch)
        SELECT k.name_hash, k.slot, k.epoch FROM onedrop_lock k WHERE k.name_hash = v_hash AND k.slot = v_slot
        ON CONFLICT DO NOTHING;
        UPDATE onedrop_lock_lease l SET epoch = l.epoch + 1, owner = p_owner, lease_ms = v_ms, renewed_at = clock_timestamp(),
            lease_until = clock_timestamp() + v_ms * interval '1 millisecond'
        WHERE l.name_hash = v_hash AND l.slot = v_slot AND (l.lease_until IS NULL OR l.lease_until <= clock_timestamp())
        RETURNING l.epoch INTO p_epoch;
        CONTINUE WHEN NOT FOUND;
        UPDATE onedrop_lock k SET epoch = p_epoch, acquired_at = clock_timestamp(), host = v_host, pid = pg_backend_pid(),
            command = v_command, note = 'SQL', slots = p_slots
        WHERE k.name_hash = v_hash AND k.slot = v_slot;
        DELETE FROM onedrop_lock_waiter w WHERE w.name_hash = v_hash AND (w.owner = p_owner OR w.id = v_place);
        p_slot := v_slot;
        RETURN;
    END LOOP;
    IF NOT p_waits THEN
        -- Where others wait it lasts a little, for another call.
        UPDATE onedrop_lock_waiter w SET lease_until = least(w.lease_until, clock_timestamp() + interval '0.5 seconds')
        WHERE w.id = v_place AND EXISTS (SELECT FROM onedrop_lock_waiter o WHERE o.name_hash = v_hash
                                         AND o.id > v_place AND o.lease_until > clock_timestamp());
        IF NOT FOUND THEN
            DELETE FROM onedrop_lock_waiter w WHERE w.id = v_place;
        END IF;
        RETURN;
    END IF;
    UPDATE onedrop_lock_waiter w SET lease_until = clock_timestamp() + interval '3 seconds'
    WHERE w.id = v_place AND w.lease_until < clock_timestamp() + interval '1.5 seconds';
    IF v_place IS NULL THEN
        DELETE FROM onedrop_lock_waiter w WHERE w.name_hash = v_hash AND w.lease_until <= clock_timestamp();
        INSERT INTO onedrop_lock_waiter (name_hash, name, owner, host, pid, command, note, slots, others, since, lease_ms, lease_until)
        VALUES (v_hash, p_name, p_owner, v_host, pg_backend_pid(), v_command, 'SQL', p_slots, 0, clock_timestamp(), 3000,
                clock_timestamp() + interval '3 seconds');
    END IF;
END
$$;

-- Makes the lease of the claim that has this owner last so many seconds, at 0 gives it back, at null
-- asks. Returns the seconds that are left; null: the lock was lost.
CREATE OR REPLACE FUNCTION onedrop_lock_keep(p_name text, p_owner text, p_ttl_secs double precision) RETURNS double precision
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF p_ttl_secs IS NULL THEN
        RETURN (SELECT extract(epoch FROM l.lease_until - clock_timestamp())::float8 FROM onedrop_lock_lease l
                WHERE l.name_hash = onedrop_lock_hash(p_name) AND l.owner = decode(p_owner, 'hex')
                  AND l.lease_until > clock_timestamp());
    END IF;
    UPDATE onedrop_lock_lease l SET lease_ms = CASE WHEN p_ttl_secs > 0 THEN 1000 * p_ttl_secs ELSE l.lease_ms END,
        renewed_at = clock_timestamp(),
        lease_until = CASE WHEN p_ttl_secs > 0 THEN clock_timestamp() + p_ttl_secs * interval '1 second' END
    WHERE l.name_hash = onedrop_lock_hash(p_name) AND l.owner = decode(p_owner, 'hex') AND l.lease_until IS NOT NULL;
    RETURN CASE WHEN FOUND THEN p_ttl_secs END;
END
$$;

CREATE OR REPLACE FUNCTION onedrop_lock_seen(p_name text, OUT p_held bigint, OUT p_host text, OUT p_pid bigint, OUT p_left_secs double precision)
LANGUAGE sql STABLE SECURITY DEFINER AS $$
    SELECT count(*) OVER (), k.host, k.pid, extract(epoch FROM l.lease_until - clock_timestamp())::float8
    FROM onedrop_lock k JOIN onedrop_lock_lease l ON l.name_hash = k.name_hash AND l.slot = k.slot
    WHERE k.name_hash = onedrop_lock_hash(p_name) AND l.lease_until > clock_timestamp() ORDER BY k.slot LIMIT 1
$$;

-- Takes a slot and returns its owner, which names this claim from now on, the slot and the epoch;
-- null where it was not had within the time to wait.
CREATE OR REPLACE PROCEDURE onedrop_lock(
    p_name text, p_ttl_secs double precision, p_wait_secs double precision DEFAULT 0, p_slots integer DEFAULT 1,
    INOUT p_owner text DEFAULT NULL, INOUT p_slot integer DEFAULT NULL, INOUT p_epoch bigint DEFAULT NULL)
LANGUAGE plpgsql AS $$
DECLARE
    v_owner text := replace(gen_random_uuid()::text, '-', '');
    v_began timestamptz := clock_timestamp();
    v_end timestamptz := v_began + least(coalesce(p_wait_secs, 0), 1e9) * interval '1 second';
    v_waits boolean;
    v_is_next boolean;
BEGIN
    -- Refused within a transaction ("invalid transaction termination").
    COMMIT;
    LOOP
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
        PERFORM set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
        -- The last step, and no other, lets go of its place in the line.
        v_waits := clock_timestamp() < v_end;
        SELECT s.p_slot, s.p_epoch, s.p_is_next INTO p_slot, p_epoch, v_is_next
        FROM onedrop_lock_step(p_name, p_ttl_secs, p_slots, decode(v_owner, 'hex'), v_waits) s;
        COMMIT;
        EXIT WHEN p_slot IS NOT NULL OR NOT v_waits;
        PERFORM pg_sleep(least(extract(epoch FROM v_end - clock_timestamp()) + 0.001,
                               greatest(0.02, least(CASE WHEN v_is_next THEN 0.025 ELSE 0.25 END,
                                                    extract(epoch FROM clock_timestamp() - v_began) / 20)) * (1 - random() / 4)));
        COMMIT;
    END LOOP;
    p_owner := CASE WHEN p_slot IS NOT NULL THEN v_owner END;
END
$$;

-- Makes it last so many seconds from now on, or at null only asks. Returns the seconds that are left;
-- null: it was lost.
CREATE OR REPLACE PROCEDURE onedrop_renew(p_name text, p_owner text, p_ttl_secs double precision, INOUT p_left_secs double precision DEFAULT NULL)
LANGUAGE plpgsql AS $$
BEGIN
    IF p_ttl_secs NOT BETWEEN 1 AND 604800 THEN
        RAISE EXCEPTION 'a lock lasts 1 to 604800 seconds' USING ERRCODE = '22023';
    END IF;
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    PERFORM set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
    p_left_secs := onedrop_lock_keep(p_name, p_owner, p_ttl_secs);
    COMMIT;
END
$$;

-- Gives it back; false: it was lost.
CREATE OR REPLACE PROCEDURE onedrop_unlock(p_name text, p_owner text, INOUT p_held boolean DEFAULT NULL)
LANGUAGE plpgsql AS $$
BEGIN
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    p_held := onedrop_lock_keep(p_name, p_owner, 0) IS NOT NULL;
    COMMIT;
END
$$;

-- How many hold it, and who has the first slot; takes nothing.
CREATE OR REPLACE PROCEDURE onedrop_lock_holder(
    p_name text, INOUT p_held bigint DEFAULT NULL, INOUT p_host text DEFAULT NULL, INOUT p_pid bigint DEFAULT NULL,
    INOUT p_left_secs double precision DEFAULT NULL)
LANGUAGE plpgsql AS $$
BEGIN
    COMMIT;
    SELECT coalesce(s.p_held, 0), s.p_host, s.p_pid, s.p_left_secs INTO p_held, p_host, p_pid, p_left_secs
    FROM onedrop_lock_seen(p_name) s;
    COMMIT;
END
$$;

DO $$
DECLARE
    v_one regprocedure;
BEGIN
    FOR v_one IN SELECT p.oid FROM pg_proc p
        WHERE p.pronamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = current_schema())
          AND p.proname IN ('onedrop_lock', 'onedrop_renew', 'onedrop_unlock', 'onedrop_lock_holder', 'onedrop_lock_hash',
                            'onedrop_lock_step', 'onedrop_lock_keep', 'onedrop_lock_seen') LOOP
        -- Names mean what they mean here. One that commits may have no setting of its own.
        IF (SELECT p.prosecdef FROM pg_proc p WHERE p.oid = v_one) THEN
            EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', v_one, current_schema());
        END IF;
        EXECUTE format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', v_one);
    END LOOP;
END
$$;

-- Jobs (`onedrop jobs`): their state and their runs. That one process at a time runs a job is a
-- named lock's affair. Every statement on these tables is one that MariaDB has, too.

CREATE TABLE onedrop_job (
    name             text COLLATE "C" PRIMARY KEY,
    revision         bigint NOT NULL,
    value            bytea,
    schedule         text NOT NULL DEFAULT '',
    paused_at        timestamptz,
    pause_note       text NOT NULL DEFAULT '',
    last_paused_at   timestamptz,
    resumed_at       timestamptz,
    epoch            bigint NOT NULL DEFAULT 0,
    open_due         timestamptz,
    open_try         bigint NOT NULL DEFAULT 0,
    next_due         timestamptz,
    next_try         bigint NOT NULL DEFAULT 1,
    retry_at         timestamptz,
    first_seen       timestamptz NOT NULL,
    seen_at          timestamptz NOT NULL,
    last_start       timestamptz,
    last_end         timestamptz,
    last_success     timestamptz,
    last_success_due timestamptz,
    last_exit        bigint,
    last_error       text NOT NULL DEFAULT '',
    errors           bigint NOT NULL DEFAULT 0,
    runs             bigint NOT NULL DEFAULT 0,
    open_host        text NOT NULL DEFAULT '',
    unheld_at        timestamptz,
    paused_until     timestamptz,
    stop_epoch       bigint NOT NULL DEFAULT 0,
    stop_by          text NOT NULL DEFAULT '',
    hooks_state      text NOT NULL DEFAULT ''
);

COMMENT ON TABLE onedrop_job IS 'a job that a configuration has or had';
COMMENT ON COLUMN onedrop_job.revision
IS 'how often the row was changed: each change names the one it has seen';
COMMENT ON COLUMN onedrop_job.value IS 'random value of the last change';
COMMENT ON COLUMN onedrop_job.schedule IS 'schedule and time zone that next_due was computed by';
COMMENT ON COLUMN onedrop_job.paused_at IS 'since when nothing starts; null: not paused';
COMMENT ON COLUMN onedrop_job.last_paused_at
IS 'beginning of the last pause that has ended, at resumed_at';
COMMENT ON COLUMN onedrop_job.epoch IS 'of the lock jobs/NAME under which the last run began';
COMMENT ON COLUMN onedrop_job.open_due IS 'due time of the run that has begun and not ended';
COMMENT ON COLUMN onedrop_job.retry_at IS 'when the run for next_due is tried again';
COMMENT ON COLUMN onedrop_job.seen_at IS 'when a configuration last had it, to the hour';
COMMENT ON COLUMN onedrop_job.last_success_due IS 'newest due time that it has succeeded for';
COMMENT ON COLUMN onedrop_job.last_exit IS 'exit status; 128 + n: ended by signal n';
COMMENT ON COLUMN onedrop_job.errors IS 'failures since the last success';
COMMENT ON COLUMN onedrop_job.open_host IS 'host of the run that has begun and not ended';
COMMENT ON COLUMN onedrop_job.unheld_at IS 'when a tick first found the open run without its lock';
COMMENT ON COLUMN onedrop_job.paused_until IS 'when it is resumed by itself; null: not';
COMMENT ON COLUMN onedrop_job.stop_epoch IS 'epoch of the run that is to end; 0: none is';
COMMENT ON COLUMN onedrop_job.stop_by IS 'who wants that, and why';
COMMENT ON COLUMN onedrop_job.hooks_state
IS 'ok or failing: the state that its hooks were last called for, and a value of that change';

CREATE TABLE onedrop_job_run (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job          text COLLATE "C" NOT NULL REFERENCES onedrop_job ON DELETE CASCADE,
    due_at       timestamptz NOT NULL,
    try          bigint NOT NULL,
    triggered_by text NOT NULL,
    epoch        bigint NOT NULL,
    host         text NOT NULL,
    pid          bigint NOT NULL,
    started_at   timestamptz NOT NULL,
    ended_at     timestamptz,
    outcome      text,
    exit_status  bigint,
    exit_signal  bigint,
    output       text NOT NULL,
    reason       text NOT NULL,
    last_due_at  timestamptz NOT NULL,
    occurrences  bigint NOT NULL,
    begin_value  bytea NOT NULL,
    end_value    bytea,
    UNIQUE (job, due_at, try)
);

CREATE INDEX onedrop_job_run_job ON onedrop_job_run (job, id);
CREATE INDEX onedrop_job_run_ended_at ON onedrop_job_run (ended_at);

COMMENT ON TABLE onedrop_job_run IS 'a run of a job, or due times that were skipped';
COMMENT ON COLUMN onedrop_job_run.due_at IS 'the time that it runs for; of skips the first';
COMMENT ON COLUMN onedrop_job_run.triggered_by IS 'schedule, retry, backfill or manual';
COMMENT ON COLUMN onedrop_job_run.epoch IS 'of the lock jobs/NAME';
COMMENT ON COLUMN onedrop_job_run.outcome
IS 'ok, failed, timeout, stopped, lost, crashed, marked, skipped_late, _missed, _busy, _paused, _dependency or _most; null: not ended';
COMMENT ON COLUMN onedrop_job_run.output IS 'the last 4 KiB of what it wrote';
COMMENT ON COLUMN onedrop_job_run.reason IS 'why it was skipped, or failed';
COMMENT ON COLUMN onedrop_job_run.last_due_at IS 'of skips the last time';
COMMENT ON COLUMN onedrop_job_run.occurrences IS 'how many due times it stands for';
COMMENT ON COLUMN onedrop_job_run.begin_value IS 'random value of the change that added it';
COMMENT ON COLUMN onedrop_job_run.end_value IS 'of the one that ended it';
