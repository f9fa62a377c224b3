-- Those that wait hear of a lock that was given back or stolen (PooledLedger::wait_for_release()). A
-- commit with a notification waits for others with one, so it is said where somebody waits alone; and
-- it fails where the queue of notifications is full, so a lock is given back in silence before that.
CREATE OR REPLACE FUNCTION onedrop_lock_free() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_awaited boolean;
BEGIN
    EXECUTE format('SELECT pg_notification_queue_usage() < 0.5 AND EXISTS (SELECT FROM %I.onedrop_lock_waiter w
                    WHERE w.name_hash = $1 AND w.lease_until > clock_timestamp())', TG_TABLE_SCHEMA)
    INTO v_awaited USING NEW.name_hash;
    IF v_awaited THEN
        PERFORM pg_notify('onedrop_lock_' || left(encode(NEW.name_hash, 'hex'), 32), '');
    END IF;
    RETURN NULL;
END
$$;

DROP TRIGGER IF EXISTS onedrop_lock_freed ON onedrop_lock_lease;
CREATE TRIGGER onedrop_lock_freed AFTER UPDATE ON onedrop_lock_lease
    FOR EACH ROW WHEN (NEW.lease_until IS NULL) EXECUTE FUNCTION onedrop_lock_free();
