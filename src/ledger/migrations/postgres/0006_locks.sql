-- Named locks for every program on the hosts (`onedrop with-lock`). A lock of N slots is up to N rows; they outlive their
-- release, so that epochs only grow. Every statement on them is one that MariaDB has, too.
-- The program's role needs SELECT, INSERT and UPDATE on both tables.

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

COMMENT ON TABLE onedrop_lock IS 'who has, or last had, a slot of a named lock; changes with each claim and steal and at no other time';
COMMENT ON COLUMN onedrop_lock.name_hash IS 'SHA-256 that names the lock';
COMMENT ON COLUMN onedrop_lock.epoch IS 'how often the slot was claimed or stolen: a fencing token';
COMMENT ON COLUMN onedrop_lock.slots IS 'of how many slots the holder wanted one';
COMMENT ON COLUMN onedrop_lock.command IS 'the program that runs under the lock, without its arguments';
COMMENT ON COLUMN onedrop_lock.note IS 'what the holder said with --note, or why the lock was stolen';
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
COMMENT ON COLUMN onedrop_lock_lease.lease_until IS 'by this server''s clock; null: given back or stolen';

-- Fails unless this epoch of the slot is held (where an owner is given, by that owner), and keeps others from claiming or
-- stealing the slot until the transaction ends: call it in the transaction that does the work, and keep that short.
-- Renewals do not wait for it. The owner counts where an epoch was given out twice: the ledger was restored, or a fail-over
-- has lost a commit.
CREATE OR REPLACE FUNCTION onedrop_assert_lock(p_name text, p_slot integer, p_epoch bigint, p_owner text DEFAULT NULL)
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

COMMENT ON FUNCTION onedrop_assert_lock(text, integer, bigint, text) IS 'fails (OD002) unless this epoch of the lock is held; nobody else gets the slot before the transaction ends';

-- It runs with the rights of its owner, so that the role of a command needs none on the tables; names mean what they mean
-- here. A role that may call it can keep a slot from being claimed: only those that were granted it may.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION onedrop_assert_lock(text, integer, bigint, text) SET search_path = %I, pg_temp', current_schema());
END
$$;
REVOKE ALL ON FUNCTION onedrop_assert_lock(text, integer, bigint, text) FROM PUBLIC;
