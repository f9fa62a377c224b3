//! The jobs that a job depends on, and whether they have done what it builds on.

use std::time::SystemTime;

use crate::jobs::JobSettings;
use onedrop_core::ledger::JobRow;

/// The jobs that a job depends on.
pub(super) struct Others<'a> {
    pub(super) job: &'a JobSettings,
    pub(super) rows: &'a [JobRow],
    pub(super) all: &'a [JobSettings],
}

impl<'a> Others<'a> {
    pub(super) fn each(
        &self,
    ) -> impl Iterator<Item = (&'a str, Option<&'a JobSettings>, Option<&'a JobRow>)> {
        let (rows, all) = (self.rows, self.all);
        self.job.depends_on.iter().map(move |name| {
            let job = all.iter().find(|job| job.name == *name);
            (name.as_str(), job, rows.iter().find(|row| row.name == *name))
        })
    }

    /// Which of them have not done what a run for `due` builds on.
    pub(super) fn waited_for(&self, due: SystemTime) -> Vec<String> {
        let missing = self.each().filter_map(|(name, job, row)| {
            let (Some(job), Some(row)) = (job, row) else { return Some(name.to_owned()) };
            let why = match () {
                () if !job.enabled => " (disabled)",
                () if row.paused.is_some() => " (paused)",
                () if row.errors > 0 => " (failed)",
                () if !has_succeeded(job, row, due) => "",
                () => return None,
            };
            Some(format!("{name}{why}"))
        });
        missing.collect()
    }

    /// When the last of them succeeded.
    pub(super) fn ready_at(&self) -> Option<SystemTime> {
        self.each().filter_map(|(_, _, row)| row?.last_success).max()
    }
}

/// Whether a job has done by now what another one's run for `due` builds on: its own newest time up
/// to then; of `every`, it was not to start again by then.
pub(super) fn has_succeeded(job: &JobSettings, row: &JobRow, due: SystemTime) -> bool {
    let Some(succeeded) = row.last_success_due else { return false };
    match job.schedule.goes_by_starts() {
        true => row.next_due.is_some_and(|next| next > due),
        // A run by hand may be for a newer time than the next: that is the first not dealt with.
        false => job.schedule.newest_until(due).is_none_or(|newest| {
            succeeded >= newest && row.next_due.is_some_and(|next| next > newest)
        }),
    }
}
