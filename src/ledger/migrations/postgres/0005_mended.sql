-- A claim names a row by a random value as well as by its number, and its lease says how long it is. The first receipt on
-- record wins, whatever its epoch. What a Sent did not take is kept until it does. Collisions are seen, not marked.
--
-- Where another role migrates than the program's, the program's needs SELECT, INSERT, UPDATE and DELETE on the two new tables.

ALTER TABLE onedrop_copy
    ADD COLUMN value bytea NOT NULL DEFAULT uuid_send(gen_random_uuid()),
    ADD COLUMN lease_value bytea,
    ADD COLUMN lease_ms bigint NOT NULL DEFAULT 0,
    ADD COLUMN placed_epoch bigint;
UPDATE onedrop_copy SET placed_epoch = epoch WHERE placed_at IS NOT NULL;

COMMENT ON COLUMN onedrop_copy.value IS 'random: a claim names the row by it, so that no late process takes another row of this number for its own';
COMMENT ON COLUMN onedrop_copy.lease_value IS 'random value of the attempt that has the lease, or had the last one: a repeated call knows its own lease by it';
COMMENT ON COLUMN onedrop_copy.placed_epoch IS 'epoch of the claim that put the receipt on record';
COMMENT ON COLUMN onedrop_copy.lease_ms IS 'how long the last lease is, in milliseconds; after it nobody writes under it any more';

ALTER TABLE onedrop_message ADD COLUMN nul_runs bytea;

COMMENT ON COLUMN onedrop_message.nul_runs IS 'where NUL bytes stand in the message (runs of offset and length, 64 KiB at most, or that there are more); null: it has none';
COMMENT ON COLUMN onedrop_message.collision IS 'when it was recorded, another message with this Message-ID and other content was on record';

CREATE TABLE onedrop_kept (
    message_id bigint PRIMARY KEY REFERENCES onedrop_message ON DELETE CASCADE,
    bytes      bytea NOT NULL,
    why        text NOT NULL,
    kept_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE onedrop_kept IS 'the bytes of shared copies (Sent) that could not be placed; gone once they are';
COMMENT ON COLUMN onedrop_kept.why IS 'what the mail store said at the last try';

CREATE TABLE onedrop_proof (
    server     text NOT NULL,
    login_user text NOT NULL,
    way        text NOT NULL,
    host       text NOT NULL,
    proven_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (server, login_user, way)
);

COMMENT ON TABLE onedrop_proof IS 'mail servers that were seen to heed for whom a login acts; nothing is written through others';
COMMENT ON COLUMN onedrop_proof.way IS 'how the account is named at login (store.login)';
COMMENT ON COLUMN onedrop_proof.host IS 'who saw it';

-- Their parameters change. All of a name: who took the tables out by hand may have left the functions of another version.
DO $$
DECLARE
    f regprocedure;
BEGIN
    FOR f IN
        SELECT oid FROM pg_proc
        WHERE pronamespace = current_schema()::regnamespace
          AND proname IN ('onedrop_record', 'onedrop_claims', 'onedrop_claim', 'onedrop_turn', 'onedrop_confirm')
    LOOP
        EXECUTE 'DROP FUNCTION ' || f;
    END LOOP;
END
$$;

-- Records a message (once), an attempt and the claims on copies: arrays of one length, in the order of account and mailbox,
-- so that two sessions cannot lock rows crosswise. One row for each copy; one without a copy where there are none, or
-- where nothing was done: the schema has another version, another session holds the message's lock (`locked` false), or
-- the message is not on record and its bytes, which are to be kept, were not given (`wants_raw`).
CREATE FUNCTION onedrop_record(
    p_lock_timeout_ms bigint, p_version integer, p_lock bigint,
    p_id_hash bytea, p_digest bytea, p_message_id bytea, p_message_id_text text, p_sender text, p_subject text,
    p_date double precision, p_in_reply_to text, p_reference_ids text, p_size_bytes bigint, p_recorded_at bigint,
    p_keeps_raw boolean, p_raw bytea, p_nul_runs bytea,
    p_roles text[], p_names text[], p_addresses text[],
    p_paths text[], p_content_types text[], p_part_names text[], p_part_sizes bigint[],
    p_recipient text, p_attempt_sender text, p_queue_id text, p_host text, p_pid bigint,
    p_accounts text[], p_mailboxes text[], p_shared boolean[], p_owner text, p_lease_value bytea, p_join boolean, p_lease_ms bigint
) RETURNS TABLE (
    version integer, locked boolean, wants_raw boolean,
    message bigint, recorded_at bigint, is_new boolean, collision boolean, attempt bigint,
    copy bigint, claimed boolean, epoch bigint, prior_doubt boolean,
    is_placed boolean, uid_validity bigint, uid bigint, file_name text, copy_value bytea
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_set text; -- what a call returns that matters to nobody
    v_claim record;
BEGIN
    v_set := onedrop_begin(p_lock_timeout_ms);
    SELECT max(s.version) INTO version FROM onedrop_schema s;
    IF version IS DISTINCT FROM p_version THEN
        RETURN NEXT;
        RETURN;
    END IF;
    locked := pg_try_advisory_xact_lock(p_lock);
    IF NOT locked THEN
        RETURN NEXT;
        RETURN;
    END IF;
    IF p_keeps_raw AND p_raw IS NULL THEN
        wants_raw := NOT EXISTS (
            SELECT FROM onedrop_message m WHERE m.id_hash = p_id_hash AND m.digest = p_digest);
        IF wants_raw THEN
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;

    collision := p_message_id IS NOT NULL AND EXISTS (
        SELECT FROM onedrop_message o WHERE o.id_hash = p_id_hash AND o.digest <> p_digest);
    INSERT INTO onedrop_message AS m (id_hash, digest, message_id, message_id_text, sender, subject, date, in_reply_to,
                                      reference_ids, size_bytes, collision, raw, nul_runs, recorded_at)
    VALUES (p_id_hash, p_digest, p_message_id, p_message_id_text, p_sender, p_subject, to_timestamp(p_date),
            p_in_reply_to, p_reference_ids, p_size_bytes, collision, p_raw, p_nul_runs,
            -- The caller's time where our clock says so too, give or take two seconds.
            CASE WHEN abs(p_recorded_at - extract(epoch FROM clock_timestamp())) <= 2 THEN to_timestamp(p_recorded_at)
                 ELSE date_trunc('second', clock_timestamp()) END)
    ON CONFLICT (id_hash, digest) DO NOTHING
    RETURNING m.id, extract(epoch FROM m.recorded_at)::bigint INTO message, recorded_at;
    is_new := FOUND;
    IF is_new THEN
        IF cardinality(p_roles) > 0 THEN
            INSERT INTO onedrop_address (message_id, position, role, name, address)
            SELECT message, generate_subscripts(p_roles, 1), unnest(p_roles), unnest(p_names), unnest(p_addresses);
        END IF;
        IF cardinality(p_paths) > 0 THEN
            INSERT INTO onedrop_part (message_id, path, content_type, name, size_bytes)
            SELECT message, unnest(p_paths), unnest(p_content_types), unnest(p_part_names), unnest(p_part_sizes)
            ON CONFLICT DO NOTHING;
        END IF;
        v_set := pg_notify('onedrop_message', message::text);
    END IF;
    IF NOT is_new THEN
        SELECT m.id, extract(epoch FROM m.recorded_at)::bigint INTO message, recorded_at
        FROM onedrop_message m WHERE m.id_hash = p_id_hash AND m.digest = p_digest;
        IF NOT FOUND THEN
            -- Taken out by an administrator in this very moment; as if another session held the lock.
            locked := false;
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;

    INSERT INTO onedrop_attempt (message_id, id_hash, recipient, sender, queue_id, host, pid)
    VALUES (message, p_id_hash, p_recipient, p_attempt_sender, p_queue_id, p_host, p_pid)
    RETURNING id INTO attempt;

    IF cardinality(p_accounts) = 0 THEN
        RETURN NEXT;
    END IF;
    FOR i IN 1 .. cardinality(p_accounts) LOOP
        v_claim := onedrop_claim(message, p_accounts[i], p_mailboxes[i], p_shared[i], p_owner,
                                -- A mailbox that is named twice is leased once.
                                CASE WHEN p_accounts[i] = p_accounts[i - 1] AND p_mailboxes[i] = p_mailboxes[i - 1]
                                     THEN NULL ELSE p_lease_value END, p_join, p_lease_ms);
        copy := v_claim.copy;
        claimed := v_claim.claimed;
        epoch := v_claim.epoch;
        prior_doubt := v_claim.prior_doubt;
        is_placed := v_claim.is_placed;
        uid_validity := v_claim.uid_validity;
        uid := v_claim.uid;
        file_name := v_claim.file_name;
        copy_value := v_claim.copy_value;
        RETURN NEXT;
    END LOOP;
END
$$;

-- Claims again copies that were busy, in the same order; one row for each.
CREATE FUNCTION onedrop_claims(
    p_lock_timeout_ms bigint, p_message bigint, p_accounts text[], p_mailboxes text[], p_shared boolean[], p_owner text,
    p_lease_value bytea, p_join boolean, p_lease_ms bigint
) RETURNS TABLE (copy bigint, claimed boolean, epoch bigint, prior_doubt boolean,
                 is_placed boolean, uid_validity bigint, uid bigint, file_name text,
                 copy_value bytea)
LANGUAGE plpgsql AS $$
DECLARE
    v_set text;
BEGIN
    v_set := onedrop_begin(p_lock_timeout_ms);
    FOR i IN 1 .. cardinality(p_accounts) LOOP
        RETURN QUERY SELECT c.* FROM
            onedrop_claim(p_message, p_accounts[i], p_mailboxes[i], p_shared[i], p_owner,
                          CASE WHEN p_accounts[i] = p_accounts[i - 1] AND p_mailboxes[i] = p_mailboxes[i - 1]
                               THEN NULL ELSE p_lease_value END, p_join, p_lease_ms) c;
    END LOOP;
END
$$;

-- Leases one copy, if it is free; else says where it stands. p_join joins a live lease, whose epoch stays. So does an
-- attempt's own lease (p_lease_value), which a call that is made again finds: its first answer was lost. `prior_doubt` keeps what the
-- lease found, for the look and for giving it back.
CREATE FUNCTION onedrop_claim(
    p_message bigint, p_account text, p_mailbox text, p_shared boolean, p_owner text, p_lease_value bytea, p_join boolean,
    p_lease_ms bigint,
    OUT copy bigint, OUT claimed boolean, OUT epoch bigint, OUT prior_doubt boolean,
    OUT is_placed boolean, OUT uid_validity bigint, OUT uid bigint, OUT file_name text, OUT copy_value bytea
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO onedrop_copy AS c (message_id, account, mailbox, shared, epoch, owner, lease_value, lease_ms,
                                   leased_until, in_doubt, prior_doubt)
    VALUES (p_message, p_account, p_mailbox, p_shared, 1, p_owner, p_lease_value, p_lease_ms,
            clock_timestamp() + p_lease_ms * interval '1 millisecond', true, false)
    ON CONFLICT (message_id, account, mailbox) DO UPDATE SET
        epoch = c.epoch + CASE WHEN (p_join OR c.lease_value = p_lease_value) AND c.leased_until > clock_timestamp()
                               THEN 0 ELSE 1 END,
        prior_doubt = CASE WHEN c.lease_value = p_lease_value AND c.leased_until > clock_timestamp()
                           THEN c.prior_doubt ELSE c.in_doubt END,
        shared = c.shared OR excluded.shared,
        owner = excluded.owner,
        lease_value = coalesce(excluded.lease_value, c.lease_value),
        lease_ms = CASE WHEN c.leased_until > clock_timestamp() THEN greatest(c.lease_ms, excluded.lease_ms)
                        ELSE excluded.lease_ms END,
        leased_until = greatest(c.leased_until, excluded.leased_until),
        in_doubt = true
    WHERE c.placed_at IS NULL
      AND (p_join OR c.lease_value = p_lease_value OR c.leased_until IS NULL OR c.leased_until <= clock_timestamp())
    RETURNING c.id, c.epoch, c.prior_doubt, c.value INTO copy, epoch, prior_doubt, copy_value;
    claimed := FOUND;
    IF NOT claimed THEN
        SELECT c.id, c.placed_at IS NOT NULL, c.uid_validity, c.uid, c.file_name, c.value
        INTO copy, is_placed, uid_validity, uid, file_name, copy_value
        FROM onedrop_copy c WHERE c.message_id = p_message AND c.account = p_account AND c.mailbox = p_mailbox;
    END IF;
END
$$;

-- Takes a copy's lock until the transaction ends, and then reads the row; no row without the lock.
CREATE FUNCTION onedrop_turn(p_lock_timeout_ms bigint, p_idle_timeout_ms bigint, p_lock bigint, p_copy bigint,
                             p_value bytea)
RETURNS TABLE (locked boolean, epoch bigint, is_placed boolean, uid_validity bigint, uid bigint, file_name text,
               prior_doubt boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_set text;
BEGIN
    v_set := onedrop_begin(p_lock_timeout_ms);
    -- A host that vanished in the middle frees the lock by this.
    v_set := set_config('idle_in_transaction_session_timeout', p_idle_timeout_ms::text, true);
    locked := pg_try_advisory_xact_lock(p_lock);
    IF locked THEN
        SELECT c.epoch, c.placed_at IS NOT NULL, c.uid_validity, c.uid, c.file_name, c.prior_doubt
        INTO epoch, is_placed, uid_validity, uid, file_name, prior_doubt
        FROM onedrop_copy c WHERE c.id = p_copy AND c.value = p_value;
    END IF;
    RETURN NEXT;
END
$$;

-- Puts a receipt on record, where none is there or this very one: the first one wins, whatever its epoch. With it goes the
-- end of the attempt p_attempt, which must not say `delivered` where the receipt is not on record, and what was kept of a
-- shared copy goes. Else leaves a doubt, and says what the row says, as of a moment after what kept the receipt out.
CREATE FUNCTION onedrop_confirm(
    p_lock_timeout_ms bigint, p_copy bigint, p_value bytea, p_epoch bigint,
    p_uid_validity bigint, p_uid bigint, p_file_name text, p_nul_replaced boolean, p_found_by_look boolean,
    p_attempt bigint, p_duration_ms bigint, p_outcome text, p_status text, p_detail text
) RETURNS TABLE (recorded boolean, ended boolean, epoch bigint, is_placed boolean, uid_validity bigint, uid bigint,
                 file_name text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_set text;
    v_message bigint;
    v_shared boolean;
BEGIN
    v_set := onedrop_begin(p_lock_timeout_ms);
    UPDATE onedrop_copy c SET
        placed_at = coalesce(c.placed_at, clock_timestamp()), leased_until = NULL, in_doubt = false,
        uid_validity = p_uid_validity, uid = p_uid, file_name = p_file_name,
        nul_replaced = CASE WHEN c.placed_at IS NULL THEN p_nul_replaced ELSE c.nul_replaced END,
        found_by_look = CASE WHEN c.placed_at IS NULL THEN p_found_by_look ELSE c.found_by_look END,
        placed_epoch = CASE WHEN c.placed_at IS NULL THEN p_epoch ELSE c.placed_epoch END
    WHERE c.id = p_copy AND c.value = p_value
      AND (c.placed_at IS NULL
           -- Copies without a name are one only where no other than this claim can have confirmed.
           OR (p_uid IS NOT NULL OR p_file_name IS NOT NULL OR c.placed_epoch = p_epoch)
              AND (c.uid_validity, c.uid, c.file_name) IS NOT DISTINCT FROM (p_uid_validity, p_uid, p_file_name))
    RETURNING c.message_id, c.shared INTO v_message, v_shared;
    recorded := FOUND;
    IF recorded AND v_shared AND EXISTS (SELECT FROM onedrop_kept k WHERE k.message_id = v_message) THEN
        DELETE FROM onedrop_kept k WHERE k.message_id = v_message;
    END IF;
    ended := false;
    IF recorded AND p_attempt IS NOT NULL THEN
        UPDATE onedrop_attempt a SET duration_ms = p_duration_ms, outcome = p_outcome, status = p_status, detail = p_detail
        WHERE a.id = p_attempt;
        ended := FOUND;
    ELSIF NOT recorded THEN
        -- A second copy may stand: a look has to settle that, and one that read the row before settles nothing.
        UPDATE onedrop_copy c SET epoch = c.epoch + 1, settled_at = NULL
        WHERE c.id = p_copy AND c.value = p_value AND c.placed_at IS NOT NULL
        RETURNING c.epoch, true, c.uid_validity, c.uid, c.file_name
        INTO epoch, is_placed, uid_validity, uid, file_name;
    END IF;
    RETURN NEXT;
END
$$;
