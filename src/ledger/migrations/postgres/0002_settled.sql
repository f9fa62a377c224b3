-- A copy that was leased more than once gets a second look after its last lease (`onedrop verify`).

ALTER TABLE onedrop_copy ADD COLUMN settled_at timestamptz;

COMMENT ON COLUMN onedrop_copy.settled_at IS 'when a look after the last lease found one copy at most; null: not looked, or too many';

CREATE INDEX onedrop_copy_unsettled ON onedrop_copy (account, id)
    WHERE placed_at IS NOT NULL AND (epoch > 1 OR prior_doubt) AND settled_at IS NULL;
CREATE INDEX onedrop_message_recorded_at ON onedrop_message (recorded_at);
