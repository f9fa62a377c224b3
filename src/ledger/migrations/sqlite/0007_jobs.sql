-- Jobs (`onedrop jobs`): their state and their runs. That one process at a time runs a job is a named lock's affair
-- (0006). Times are seconds since 1970, to the millisecond.
CREATE TABLE onedrop_job (
    name             TEXT PRIMARY KEY NOT NULL,
    revision         INTEGER NOT NULL,              -- how often the row was changed: each change names the one it has seen
    value            BLOB NOT NULL,                 -- random value of the last change
    schedule         TEXT NOT NULL,                 -- schedule and time zone that next_due was computed by
    paused_at        REAL,                          -- since when nothing starts; null: not paused
    pause_note       TEXT NOT NULL,
    last_paused_at   REAL,                          -- beginning of the last pause that has ended, at resumed_at
    resumed_at       REAL,
    epoch            INTEGER NOT NULL,              -- of the lock jobs/NAME under which the last run began
    open_due         REAL,                          -- due time of the run that has begun and not ended
    open_try         INTEGER NOT NULL,
    next_due         REAL,
    next_try         INTEGER NOT NULL,
    retry_at         REAL,                          -- when the run for next_due is tried again
    first_seen       REAL NOT NULL,
    seen_at          REAL NOT NULL,                 -- when a configuration last had it, to the hour
    last_start       REAL,
    last_end         REAL,
    last_success     REAL,
    last_success_due REAL,                          -- newest due time that it has succeeded for
    last_exit        INTEGER,                       -- exit status; 128 + n: ended by signal n
    last_error       TEXT NOT NULL,
    errors           INTEGER NOT NULL,              -- failures since the last success
    runs             INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE onedrop_job_run (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    job          TEXT NOT NULL REFERENCES onedrop_job ON DELETE CASCADE,
    due_at       REAL NOT NULL,                     -- the time that it runs for; of skips the first
    try          INTEGER NOT NULL,
    triggered_by TEXT NOT NULL,                     -- schedule, retry, backfill or manual
    epoch        INTEGER NOT NULL,                  -- of the lock jobs/NAME
    host         TEXT NOT NULL,
    pid          INTEGER NOT NULL,
    started_at   REAL NOT NULL,
    ended_at     REAL,
    outcome      TEXT,                              -- ok, failed, timeout, lost, crashed, marked, skipped_late, _missed,
                                                    -- _busy, _paused, _dependency or _most; null: not ended
    exit_status  INTEGER,
    exit_signal  INTEGER,
    output       TEXT NOT NULL,                     -- the last 4 KiB of what it wrote
    reason       TEXT NOT NULL,                     -- why it was skipped, or failed
    last_due_at  REAL NOT NULL,                     -- of skips the last time
    occurrences  INTEGER NOT NULL,                  -- how many due times it stands for
    begin_value  BLOB NOT NULL,                     -- random value of the change that added it
    end_value    BLOB,                              -- of the one that ended it
    UNIQUE (job, due_at, try)
);
CREATE INDEX onedrop_job_run_job ON onedrop_job_run (job, id);
CREATE INDEX onedrop_job_run_ended_at ON onedrop_job_run (ended_at);
