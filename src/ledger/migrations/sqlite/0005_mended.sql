-- A claim names a row by a random value as well as by its number, and its lease says how long it is. The first receipt on
-- record wins, whatever its epoch. What a Sent did not take is kept until it does. Collisions are seen, not marked.
ALTER TABLE onedrop_copy ADD COLUMN value BLOB;         -- random: a claim names the row by it
ALTER TABLE onedrop_copy ADD COLUMN lease_value BLOB;   -- random value of the attempt that has or had the lease
ALTER TABLE onedrop_copy ADD COLUMN lease_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE onedrop_copy ADD COLUMN placed_epoch INTEGER NOT NULL DEFAULT 0; -- epoch of the claim that confirmed
-- Of leases that live now the length is what is left of them.
UPDATE onedrop_copy SET lease_ms = CAST(max(0, (leased_until - unixepoch('subsec')) * 1000) AS INTEGER)
    WHERE placed_at IS NULL AND leased_until IS NOT NULL;
UPDATE onedrop_copy SET value = randomblob(16), placed_epoch = CASE WHEN placed_at IS NULL THEN 0 ELSE epoch END;

ALTER TABLE onedrop_message ADD COLUMN nul_runs BLOB;   -- where NUL bytes stand: runs of offset and length, 64 KiB at most

-- The bytes of shared copies (Sent) that could not be placed; gone once they are.
CREATE TABLE onedrop_kept (
    message_id INTEGER PRIMARY KEY REFERENCES onedrop_message (id) ON DELETE CASCADE,
    why        TEXT NOT NULL,                -- what the mail store said at the last try
    kept_at    REAL NOT NULL,
    bytes      BLOB NOT NULL                 -- last: what stands behind it is read through it
);

-- Mail servers that were seen to heed for whom a login acts; nothing is written through others.
CREATE TABLE onedrop_proof (
    server     TEXT NOT NULL,
    login_user TEXT NOT NULL,
    way        TEXT NOT NULL,                -- how the account is named at login (store.login)
    host       TEXT NOT NULL,                -- who saw it
    proven_at  REAL NOT NULL,
    PRIMARY KEY (server, login_user, way)
) WITHOUT ROWID;
