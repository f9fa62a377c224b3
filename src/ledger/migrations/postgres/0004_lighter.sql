-- The record of a message costs the server less: what nothing relies on is no longer checked for each row, and its function
-- executes fewer statements.

-- All locks at once, or none: deliveries take them in more than one order, and behind somebody who reads for an hour no mail
-- is to wait that long.
SET LOCAL lock_timeout = '500ms';
DO $$
BEGIN
    LOOP
        BEGIN
            LOCK TABLE onedrop_message, onedrop_address, onedrop_part, onedrop_attempt IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            PERFORM pg_sleep(0.5);
        END;
    END LOOP;
END
$$;

-- Addresses and parts are only ever written with their message, in one transaction, so there is always one when they come; as
-- a foreign key did, this takes them along when it goes, whoever may delete messages. It alone has its owner's rights, not
-- the caller's, so nobody else may make a trigger of it.
ALTER TABLE onedrop_address DROP CONSTRAINT IF EXISTS onedrop_address_message_id_fkey;
ALTER TABLE onedrop_part DROP CONSTRAINT IF EXISTS onedrop_part_message_id_fkey;

CREATE OR REPLACE FUNCTION onedrop_message_gone() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        -- Not by TRUNCATE, which fails where they are truncated in the same command.
        EXECUTE format('DELETE FROM %I.onedrop_address', TG_TABLE_SCHEMA);
        EXECUTE format('DELETE FROM %I.onedrop_part', TG_TABLE_SCHEMA);
    ELSE
        EXECUTE format('DELETE FROM %I.onedrop_address a USING gone WHERE a.message_id = gone.id', TG_TABLE_SCHEMA);
        EXECUTE format('DELETE FROM %I.onedrop_part p USING gone WHERE p.message_id = gone.id', TG_TABLE_SCHEMA);
    END IF;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION onedrop_message_gone() FROM PUBLIC;

DROP TRIGGER IF EXISTS onedrop_message_deleted ON onedrop_message;
CREATE TRIGGER onedrop_message_deleted AFTER DELETE ON onedrop_message
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION onedrop_message_gone();
DROP TRIGGER IF EXISTS onedrop_message_truncated ON onedrop_message;
CREATE TRIGGER onedrop_message_truncated AFTER TRUNCATE ON onedrop_message
    FOR EACH STATEMENT EXECUTE FUNCTION onedrop_message_gone();

-- What is read is checked by who reads it.
ALTER TABLE onedrop_message
    DROP CONSTRAINT IF EXISTS onedrop_message_id_hash_check,
    DROP CONSTRAINT IF EXISTS onedrop_message_digest_check;
ALTER TABLE onedrop_attempt DROP CONSTRAINT IF EXISTS onedrop_attempt_id_hash_check;

-- It is asked for where there is no message.
DROP INDEX IF EXISTS onedrop_attempt_id_hash;
CREATE INDEX onedrop_attempt_id_hash ON onedrop_attempt (id_hash) WHERE message_id IS NULL;

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
    v_set text; -- what a call returns that matters to nobody
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
    IF p_keeps_raw AND p_raw IS NULL THEN
        wants_raw := NOT EXISTS (
            SELECT FROM onedrop_message m WHERE m.id_hash = p_id_hash AND m.digest = p_digest);
        IF wants_raw THEN
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;

    INSERT INTO onedrop_message AS m (id_hash, digest, message_id, message_id_text, sender, subject, date, in_reply_to,
                                      reference_ids, size_bytes, raw, recorded_at)
    VALUES (p_id_hash, p_digest, p_message_id, p_message_id_text, p_sender, p_subject, to_timestamp(p_date),
            p_in_reply_to, p_reference_ids, p_size_bytes, p_raw,
            -- The caller's time where our clock says so too, give or take two seconds.
            CASE WHEN abs(p_recorded_at - extract(epoch FROM clock_timestamp())) <= 2 THEN to_timestamp(p_recorded_at)
                 ELSE date_trunc('second', clock_timestamp()) END)
    ON CONFLICT (id_hash, digest) DO NOTHING
    RETURNING m.id, extract(epoch FROM m.recorded_at)::bigint, m.collision,
              p_message_id IS NOT NULL
              AND EXISTS (SELECT FROM onedrop_message o WHERE o.id_hash = p_id_hash AND o.digest <> p_digest)
    INTO message, recorded_at, collision, v_others;
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
    IF v_others THEN
        UPDATE onedrop_message m SET collision = true WHERE m.id_hash = p_id_hash AND NOT m.collision;
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
