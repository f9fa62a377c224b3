-- What a delivery asks of the ledger, in functions: one round trip each, and their statements stay planned in the server's
-- process whoever is connected to it, also through a pooler that gives each transaction another one. They run with the
-- caller's rights and need what the tables need.
--
-- Every statement in them must see what was committed before it began, which only READ COMMITTED gives: in any other
-- level they refuse (SQLSTATE OD001), and the caller opens the transaction itself.

CREATE OR REPLACE FUNCTION onedrop_begin(p_lock_timeout_ms bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_set text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'not in READ COMMITTED' USING ERRCODE = 'OD001';
    END IF;
    -- For what was left behind: nobody waits for a lock for longer than the caller waits for us.
    v_set := set_config('lock_timeout', p_lock_timeout_ms::text, true);
    -- A commit that the server may forget must not let a copy be written.
    IF current_setting('synchronous_commit') = 'off' THEN
        v_set := set_config('synchronous_commit', 'on', true);
    END IF;
    RETURN v_set;
END
$$;

-- Records a message (once), an attempt and the claims on copies: arrays of one length, in the order of account and mailbox,
-- so that two sessions cannot lock rows crosswise. One row for each copy; one without a copy where there are none, or
-- where nothing was done: the schema has another version, another session holds the message's lock (`locked` false), or
-- the message is not on record and its bytes, which are to be kept, were not given (`wants_raw`).
CREATE OR REPLACE FUNCTION onedrop_record(
    p_lock_timeout_ms bigint, p_version integer, p_lock bigint,
    p_id_hash bytea, p_digest bytea, p_message_id bytea, p_message_id_text text, p_sender text, p_subject text,
    p_date double precision, p_in_reply_to text, p_reference_ids text, p_size_bytes bigint, p_recorded_at bigint,
    p_keeps_raw boolean, p_raw bytea,
    p_roles text[], p_names text[], p_addresses text[],
    p_paths text[], p_content_types text[], p_part_names text[], p_part_sizes bigint[],
    p_recipient text, p_attempt_sender text, p_queue_id text, p_host text, p_pid bigint,
    p_accounts text[], p_mailboxes text[], p_shared boolean[], p_owner text, p_join boolean, p_lease_ms bigint
) RETURNS TABLE (
    version integer, locked boolean, wants_raw boolean,
    message bigint, recorded_at bigint, is_new boolean, collision boolean, attempt bigint,
    copy bigint, claimed boolean, epoch bigint, prior_doubt boolean,
    is_placed boolean, uid_validity bigint, uid bigint, file_name text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_set text;
    v_others boolean := false;
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
    wants_raw := p_keeps_raw AND p_raw IS NULL AND NOT EXISTS (
        SELECT FROM onedrop_message m WHERE m.id_hash = p_id_hash AND m.digest = p_digest);
    IF wants_raw THEN
        RETURN NEXT;
        RETURN;
    END IF;

    INSERT INTO onedrop_message AS m (id_hash, digest, message_id, message_id_text, sender, subject, date, in_reply_to,
                                      reference_ids, size_bytes, raw, recorded_at)
    VALUES (p_id_hash, p_digest, p_message_id, p_message_id_text, p_sender, p_subject, to_timestamp(p_date),
            p_in_reply_to, p_reference_ids, p_size_bytes, p_raw,
            -- The caller's time where our clock says so too, give or take two seconds.
            CASE WHEN abs(p_recorded_at - extract(epoch FROM clock_timestamp())) <= 2 THEN to_timestamp(p_recorded_at)
                 ELSE date_trunc('second', clock_timestamp()) END)
    ON CONFLICT (id_hash, digest) DO NOTHING
    RETURNING m.id, extract(epoch FROM m.recorded_at)::bigint, m.collision INTO message, recorded_at, collision;
    is_new := FOUND;
    IF is_new THEN
        IF cardinality(p_roles) > 0 THEN
            INSERT INTO onedrop_address (message_id, position, role, name, address)
            SELECT message, a.position, a.role, a.name, a.address
            FROM unnest(p_roles, p_names, p_addresses) WITH ORDINALITY AS a (role, name, address, position);
        END IF;
        IF cardinality(p_paths) > 0 THEN
            INSERT INTO onedrop_part (message_id, path, content_type, name, size_bytes)
            SELECT message, p.path, p.content_type, p.name, p.size
            FROM unnest(p_paths, p_content_types, p_part_names, p_part_sizes) AS p (path, content_type, name, size)
            ON CONFLICT DO NOTHING;
        END IF;
        PERFORM pg_notify('onedrop_message', message::text);
    END IF;
    IF p_message_id IS NOT NULL THEN
        v_others := EXISTS (SELECT FROM onedrop_message m WHERE m.id_hash = p_id_hash AND m.digest <> p_digest);
        IF v_others THEN
            UPDATE onedrop_message m SET collision = true WHERE m.id_hash = p_id_hash AND NOT m.collision;
        END IF;
    END IF;
    IF v_others OR NOT is_new THEN
        SELECT m.id, extract(epoch FROM m.recorded_at)::bigint, m.collision INTO message, recorded_at, collision
        FROM onedrop_message m WHERE m.id_hash = p_id_hash AND m.digest = p_digest;
        IF NOT FOUND THEN
            -- Taken out by an administrator in this very moment; as if somebody else were at it.
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
        v_claim := onedrop_claim(message, p_accounts[i], p_mailboxes[i], p_shared[i], p_owner, p_join, p_lease_ms);
        copy := v_claim.copy;
        claimed := v_claim.claimed;
        epoch := v_claim.epoch;
        prior_doubt := v_claim.prior_doubt;
        is_placed := v_claim.is_placed;
        uid_validity := v_claim.uid_validity;
        uid := v_claim.uid;
        file_name := v_claim.file_name;
        RETURN NEXT;
    END LOOP;
END
$$;

-- Claims again copies that were busy, in the same order; one row for each.
CREATE OR REPLACE FUNCTION onedrop_claims(
    p_lock_timeout_ms bigint, p_message bigint, p_accounts text[], p_mailboxes text[], p_shared boolean[], p_owner text,
    p_join boolean, p_lease_ms bigint
) RETURNS TABLE (copy bigint, claimed boolean, epoch bigint, prior_doubt boolean,
                 is_placed boolean, uid_validity bigint, uid bigint, file_name text)
LANGUAGE plpgsql AS $$
DECLARE
    v_set text;
BEGIN
    v_set := onedrop_begin(p_lock_timeout_ms);
    FOR i IN 1 .. cardinality(p_accounts) LOOP
        RETURN QUERY SELECT c.* FROM
            onedrop_claim(p_message, p_accounts[i], p_mailboxes[i], p_shared[i], p_owner, p_join, p_lease_ms) c;
    END LOOP;
END
$$;

-- Leases one copy, if it is free (or, p_join, joins a live lease, whose epoch stays); else says where it stands. `prior_doubt`
-- keeps what the lease found, for who looks and for who gives it back.
CREATE OR REPLACE FUNCTION onedrop_claim(
    p_message bigint, p_account text, p_mailbox text, p_shared boolean, p_owner text, p_join boolean, p_lease_ms bigint,
    OUT copy bigint, OUT claimed boolean, OUT epoch bigint, OUT prior_doubt boolean,
    OUT is_placed boolean, OUT uid_validity bigint, OUT uid bigint, OUT file_name text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO onedrop_copy AS c (message_id, account, mailbox, shared, epoch, owner, leased_until, in_doubt,
                                   prior_doubt)
    VALUES (p_message, p_account, p_mailbox, p_shared, 1, p_owner,
            clock_timestamp() + p_lease_ms * interval '1 millisecond', true, false)
    ON CONFLICT (message_id, account, mailbox) DO UPDATE SET
        epoch = c.epoch + CASE WHEN p_join AND c.leased_until > clock_timestamp() THEN 0 ELSE 1 END,
        owner = excluded.owner,
        leased_until = greatest(c.leased_until, excluded.leased_until),
        prior_doubt = c.in_doubt,
        in_doubt = true
    WHERE c.placed_at IS NULL AND (p_join OR c.leased_until IS NULL OR c.leased_until <= clock_timestamp())
    RETURNING c.id, c.epoch, c.prior_doubt INTO copy, epoch, prior_doubt;
    claimed := FOUND;
    IF NOT claimed THEN
        SELECT c.id, c.placed_at IS NOT NULL, c.uid_validity, c.uid, c.file_name
        INTO copy, is_placed, uid_validity, uid, file_name
        FROM onedrop_copy c WHERE c.message_id = p_message AND c.account = p_account AND c.mailbox = p_mailbox;
    END IF;
END
$$;

-- Takes a copy's lock until the transaction ends, and then reads the row; no row without the lock.
CREATE OR REPLACE FUNCTION onedrop_turn(p_lock_timeout_ms bigint, p_idle_timeout_ms bigint, p_lock bigint, p_copy bigint)
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
        FROM onedrop_copy c WHERE c.id = p_copy;
    END IF;
    RETURN NEXT;
END
$$;

-- Puts a receipt on record, where the epoch is still the claim's and no other receipt is there; with it the end of the
-- attempt p_attempt, which must not say `delivered` where the receipt is not on record. Else says what the row says, as of
-- a moment after what kept the receipt out.
CREATE OR REPLACE FUNCTION onedrop_confirm(
    p_lock_timeout_ms bigint, p_copy bigint, p_epoch bigint,
    p_uid_validity bigint, p_uid bigint, p_file_name text, p_nul_replaced boolean, p_found_by_look boolean,
    p_attempt bigint, p_duration_ms bigint, p_outcome text, p_status text, p_detail text
) RETURNS TABLE (recorded boolean, ended boolean, epoch bigint, is_placed boolean, uid_validity bigint, uid bigint,
                 file_name text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_set text;
BEGIN
    v_set := onedrop_begin(p_lock_timeout_ms);
    UPDATE onedrop_copy c SET
        placed_at = coalesce(c.placed_at, clock_timestamp()), leased_until = NULL, in_doubt = false,
        uid_validity = p_uid_validity, uid = p_uid, file_name = p_file_name,
        nul_replaced = CASE WHEN c.placed_at IS NULL THEN p_nul_replaced ELSE c.nul_replaced END,
        found_by_look = CASE WHEN c.placed_at IS NULL THEN p_found_by_look ELSE c.found_by_look END
    WHERE c.id = p_copy AND c.epoch = p_epoch
      AND (c.placed_at IS NULL
           OR (c.uid_validity, c.uid, c.file_name) IS NOT DISTINCT FROM (p_uid_validity, p_uid, p_file_name));
    recorded := FOUND;
    ended := false;
    IF recorded AND p_attempt IS NOT NULL THEN
        UPDATE onedrop_attempt a SET duration_ms = p_duration_ms, outcome = p_outcome, status = p_status, detail = p_detail
        WHERE a.id = p_attempt;
        ended := FOUND;
    ELSIF NOT recorded THEN
        SELECT c.epoch, c.placed_at IS NOT NULL, c.uid_validity, c.uid, c.file_name
        INTO epoch, is_placed, uid_validity, uid, file_name
        FROM onedrop_copy c WHERE c.id = p_copy;
    END IF;
    RETURN NEXT;
END
$$;
