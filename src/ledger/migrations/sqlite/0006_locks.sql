-- Named locks for every program on the host (`onedrop with-lock`). A lock of N slots is up to N rows; they outlive their
-- release, so that epochs only grow.
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

-- INSERT INTO onedrop_assert_lock (name, slot, epoch, owner) VALUES ('nightly', 1, 7, '0123...') fails unless nobody has
-- claimed or stolen the slot since, or given it back; without an owner the epoch alone counts. SQL has no clock of the boot,
-- so a lease that has run out and was claimed by nobody still counts. Until the transaction ends nobody else can write the
-- ledger, to renew a lock either.
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
