-- A shared copy (Sent) may be left to `onedrop settle`: it is due at a time, with its bytes kept, and no delivery leases it.
ALTER TABLE onedrop_copy
    ADD COLUMN due_at timestamptz,
    ADD COLUMN by_sender boolean NOT NULL DEFAULT false;
CREATE INDEX onedrop_copy_due ON onedrop_copy (due_at) WHERE due_at IS NOT NULL AND placed_at IS NULL;
CREATE INDEX onedrop_copy_watched ON onedrop_copy (placed_at) WHERE due_at IS NOT NULL AND placed_at IS NOT NULL;

COMMENT ON COLUMN onedrop_copy.due_at IS 'from then on onedrop settle has the copy; it stays when the copy is placed; null: a delivery writes it';
COMMENT ON COLUMN onedrop_copy.by_sender IS 'the receipt is that of the copy which the sender''s own mail program saved';
COMMENT ON TABLE onedrop_kept IS 'the bytes of shared copies (Sent) that could not be placed, or are due later; gone once the last is placed';
COMMENT ON COLUMN onedrop_kept.why IS 'what the mail store said at the last try, or for what the copy waits';

-- p_due: also a copy that is due. Their parameters change; onedrop_record calls onedrop_claim without it.
DROP FUNCTION onedrop_claims(bigint, bigint, text[], text[], boolean[], text, bytea, boolean, bigint);
DROP FUNCTION onedrop_claim(bigint, text, text, boolean, text, bytea, boolean, bigint);

-- Claims again copies that were busy, in the same order; one row for each.
CREATE FUNCTION onedrop_claims(
    p_lock_timeout_ms bigint, p_message bigint, p_accounts text[], p_mailboxes text[], p_shared boolean[], p_owner text,
    p_lease_value bytea, p_join boolean, p_lease_ms bigint, p_due boolean
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
                               THEN NULL ELSE p_lease_value END, p_join, p_lease_ms, p_due) c;
    END LOOP;
END
$$;

-- Leases one copy, if it is free and not due (or due without its bytes, which settle cannot write); else says where it stands. p_due leases one that is due as well. p_join joins
-- a live lease, whose epoch stays. So does an attempt's own lease (p_lease_value), which a call that is made again finds: its first answer was lost. `prior_doubt` keeps what the
-- lease found, for the look and for giving it back.
CREATE FUNCTION onedrop_claim(
    p_message bigint, p_account text, p_mailbox text, p_shared boolean, p_owner text, p_lease_value bytea, p_join boolean,
    p_lease_ms bigint, p_due boolean DEFAULT false,
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
      AND (c.due_at IS NULL OR p_due OR NOT EXISTS (SELECT FROM onedrop_kept k WHERE k.message_id = c.message_id))
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

-- What is kept of a message goes once its last shared copy is placed. The row is locked first: the next statement then sees
-- copies that were placed or made due at the same moment.
CREATE OR REPLACE FUNCTION onedrop_forget_kept(p_message bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM onedrop_kept k WHERE k.message_id = p_message FOR UPDATE;
    IF FOUND THEN
        DELETE FROM onedrop_kept k WHERE k.message_id = p_message
            AND NOT EXISTS (SELECT FROM onedrop_copy c WHERE c.message_id = p_message AND c.shared AND c.placed_at IS NULL);
    END IF;
END
$$;

-- Puts a receipt on record, where none is there or this very one: the first one wins, whatever its epoch. With it goes the
-- end of the attempt p_attempt, which must not say `delivered` where the receipt is not on record, and what was kept goes
-- with the last shared copy. Else leaves a doubt, and says what the row says, as of a moment after what kept the receipt out.
CREATE OR REPLACE FUNCTION onedrop_confirm(
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
    IF recorded AND v_shared THEN
        PERFORM onedrop_forget_kept(v_message);
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
