-- Jobs (`onedrop jobs`): their state and their runs. That one process at a time runs a job is a named lock's affair
-- (0006). Every statement on these tables is one that MariaDB has, too.
-- The program's role needs SELECT, INSERT, UPDATE and DELETE on both tables.

CREATE TABLE onedrop_job (
    name             text PRIMARY KEY,
    revision         bigint NOT NULL,
    value            bytea,
    schedule         text NOT NULL DEFAULT '',
    paused_at        timestamptz,
    pause_note       text NOT NULL DEFAULT '',
    last_paused_at   timestamptz,
    resumed_at       timestamptz,
    epoch            bigint NOT NULL DEFAULT 0,
    open_due         timestamptz,
    open_try         bigint NOT NULL DEFAULT 0,
    next_due         timestamptz,
    next_try         bigint NOT NULL DEFAULT 1,
    retry_at         timestamptz,
    first_seen       timestamptz NOT NULL,
    seen_at          timestamptz NOT NULL,
    last_start       timestamptz,
    last_end         timestamptz,
    last_success     timestamptz,
    last_success_due timestamptz,
    last_exit        bigint,
    last_error       text NOT NULL DEFAULT '',
    errors           bigint NOT NULL DEFAULT 0,
    runs             bigint NOT NULL DEFAULT 0
);

COMMENT ON TABLE onedrop_job IS 'a job that a configuration has or had';
COMMENT ON COLUMN onedrop_job.revision IS 'how often the row was changed: each change names the one it has seen';
COMMENT ON COLUMN onedrop_job.value IS 'random value of the last change';
COMMENT ON COLUMN onedrop_job.schedule IS 'schedule and time zone that next_due was computed by';
COMMENT ON COLUMN onedrop_job.paused_at IS 'since when nothing starts; null: not paused';
COMMENT ON COLUMN onedrop_job.last_paused_at IS 'beginning of the last pause that has ended, at resumed_at';
COMMENT ON COLUMN onedrop_job.epoch IS 'of the lock jobs/NAME under which the last run began';
COMMENT ON COLUMN onedrop_job.open_due IS 'due time of the run that has begun and not ended';
COMMENT ON COLUMN onedrop_job.retry_at IS 'when the run for next_due is tried again';
COMMENT ON COLUMN onedrop_job.seen_at IS 'when a configuration last had it, to the hour';
COMMENT ON COLUMN onedrop_job.last_success_due IS 'newest due time that it has succeeded for';
COMMENT ON COLUMN onedrop_job.last_exit IS 'exit status; 128 + n: ended by signal n';
COMMENT ON COLUMN onedrop_job.errors IS 'failures since the last success';

CREATE TABLE onedrop_job_run (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job          text NOT NULL REFERENCES onedrop_job ON DELETE CASCADE,
    due_at       timestamptz NOT NULL,
    try          bigint NOT NULL,
    triggered_by text NOT NULL,
    epoch        bigint NOT NULL,
    host         text NOT NULL,
    pid          bigint NOT NULL,
    started_at   timestamptz NOT NULL,
    ended_at     timestamptz,
    outcome      text,
    exit_status  bigint,
    exit_signal  bigint,
    output       text NOT NULL,
    reason       text NOT NULL,
    last_due_at  timestamptz NOT NULL,
    occurrences  bigint NOT NULL,
    begin_value  bytea NOT NULL,
    end_value    bytea,
    UNIQUE (job, due_at, try)
);

CREATE INDEX onedrop_job_run_job ON onedrop_job_run (job, id);
CREATE INDEX onedrop_job_run_ended_at ON onedrop_job_run (ended_at);

COMMENT ON TABLE onedrop_job_run IS 'a run of a job, or due times that were skipped';
COMMENT ON COLUMN onedrop_job_run.due_at IS 'the time that it runs for; of skips the first';
COMMENT ON COLUMN onedrop_job_run.triggered_by IS 'schedule, retry, backfill or manual';
COMMENT ON COLUMN onedrop_job_run.epoch IS 'of the lock jobs/NAME';
COMMENT ON COLUMN onedrop_job_run.outcome IS 'ok, failed, timeout, lost, crashed, marked, skipped_late, _missed, _busy, _paused, _dependency or _most; null: not ended';
COMMENT ON COLUMN onedrop_job_run.output IS 'the last 4 KiB of what it wrote';
COMMENT ON COLUMN onedrop_job_run.reason IS 'why it was skipped, or failed';
COMMENT ON COLUMN onedrop_job_run.last_due_at IS 'of skips the last time';
COMMENT ON COLUMN onedrop_job_run.occurrences IS 'how many due times it stands for';
COMMENT ON COLUMN onedrop_job_run.begin_value IS 'random value of the change that added it';
COMMENT ON COLUMN onedrop_job_run.end_value IS 'of the one that ended it';
