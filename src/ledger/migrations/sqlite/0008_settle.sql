-- A shared copy (Sent) may be left to `onedrop settle`: it is due at a time, with its bytes kept, and no delivery leases it.
ALTER TABLE onedrop_copy ADD COLUMN due_at REAL;                        -- from then on settle has it; stays when it is placed
ALTER TABLE onedrop_copy ADD COLUMN by_sender INTEGER NOT NULL DEFAULT 0; -- the receipt is that of the sender's own mail program
CREATE INDEX onedrop_copy_due ON onedrop_copy (due_at) WHERE due_at IS NOT NULL AND placed_at IS NULL;
CREATE INDEX onedrop_copy_watched ON onedrop_copy (placed_at) WHERE due_at IS NOT NULL AND placed_at IS NOT NULL;
