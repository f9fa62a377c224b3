//! What a commit outlives, by the server's settings and its standbys. A role that is no member of
//! pg_monitor sees how many standbys follow, and not which of them are synchronous.

use std::time::Instant;

use postgres::Row;

use super::PostgresLedger;
use super::connection::Statement;
use crate::rows::SqlRow;
use onedrop_core::ledger::{Durability, Lasting, LedgerError};

/// A session that has waited for two minutes has no client: none waits that long.
const ASK: &str = "
SELECT current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
       current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
       r.followers, r.synchronous, r.unseen,
       (SELECT count(*) FROM pg_stat_activity
        WHERE usename = current_user AND wait_event = 'SyncRep'
          AND query_start < clock_timestamp() - interval '2 minutes')
FROM (SELECT count(*) AS followers, count(*) FILTER (WHERE sync_state IN ('sync', 'quorum'))
             AS synchronous, count(*) FILTER (WHERE sync_state IS NULL) AS unseen
      FROM pg_stat_replication) r";

impl Durability for PostgresLedger {
    fn durability(&self, until: Instant) -> Result<Vec<Lasting>, LedgerError> {
        self.call(until, |connection| {
            let rows = connection.query(Statement::new(ASK))?;
            let none = || LedgerError::Broken("no settings".to_owned());
            Ok(Settings::of(rows.first().ok_or_else(none)?)?.words())
        })
    }
}

struct Settings {
    fsync: bool,
    full_page_writes: bool,
    synchronous_commit: String,
    standby_names: String,
    /// Standbys that are connected, and what else reads the log.
    followers: i64,
    synchronous: i64,
    /// Followers whose state this role may not see.
    unseen: i64,
    /// Sessions of this role that wait for a standby, and their clients are gone.
    left_waiting: i64,
}

impl Settings {
    fn of(row: &Row) -> Result<Settings, LedgerError> {
        Ok(Settings {
            fsync: row.cell(0)?,
            full_page_writes: row.cell(1)?,
            synchronous_commit: row.cell(2)?,
            standby_names: row.cell(3)?,
            followers: row.cell(4)?,
            synchronous: row.cell(5)?,
            unseen: row.cell(6)?,
            left_waiting: row.cell(7)?,
        })
    }

    fn words(&self) -> Vec<Lasting> {
        let mut words = Vec::new();
        if !self.fsync {
            words.push(Lasting::MayBeLost(
                "fsync = off: a crash of the server's host may lose commits and damage the ledger"
                    .to_owned(),
            ));
        }
        if !self.full_page_writes {
            words.push(Lasting::MayBeLost(
                "full_page_writes = off: a crash may damage the ledger, unless the file system \
                 never leaves half of a page"
                    .to_owned(),
            ));
        }
        words.push(self.of_standbys());
        if self.waits_in_vain() {
            words.push(Lasting::Stuck(
                "too few synchronous standbys are connected: every commit waits, and deliveries \
                 end in 75"
                    .to_owned(),
            ));
        }
        if self.left_waiting > 0 {
            let count = self.left_waiting;
            words.push(Lasting::Stuck(format!(
                "{count} sessions have waited for a standby for more than two minutes: their \
                 processes were killed, and they keep their places in max_connections until the \
                 standby is back, or until this is run: SELECT pg_cancel_backend(pid) FROM \
                 pg_stat_activity WHERE wait_event = 'SyncRep' AND query_start < now() - interval \
                 '2 minutes'"
            )));
        }
        words
    }

    fn of_standbys(&self) -> Lasting {
        let (names, level) = (&self.standby_names, &self.synchronous_commit);
        if names.is_empty() {
            return match self.followers {
                0 => Lasting::Outlives(
                    "a commit outlives a crash of the server, but not the loss of its disk: it has \
                     no synchronous standby"
                        .to_owned(),
                ),
                followers => Lasting::MayBeLost(format!(
                    "a commit outlives a crash of the server, but a fail-over may undo the last \
                     ones: {followers} standbys follow, and synchronous_standby_names is empty"
                )),
            };
        }
        match level.as_str() {
            "local" => Lasting::MayBeLost(format!(
                "a fail-over may undo the last commits: synchronous_commit = local, so they do not \
                 wait for the standbys ({names})"
            )),
            "remote_write" => Lasting::Outlives(format!(
                "a commit outlives the loss of the server, unless the standby's host crashes as \
                 well: it waits until a standby has it, not on its disk ({names}, \
                 synchronous_commit = remote_write)"
            )),
            // What is off we switch on.
            _ => Lasting::Outlives(format!(
                "a commit outlives the loss of the server: it waits until its standbys have it \
                 ({names})"
            )),
        }
    }

    /// Whether, as far as can be seen, commits wait for standbys that are not there.
    fn waits_in_vain(&self) -> bool {
        let waits = !self.standby_names.is_empty() && self.synchronous_commit != "local";
        waits && self.synchronous + self.unseen < wanted(&self.standby_names)
    }
}

/// How many standbys a commit waits for: `FIRST 2 (a, b)`, `ANY 2 (a, b)`, `2 (a, b)`, or names
/// (synchronous_standby_names in the manual, section 20.6.2).
fn wanted(names: &str) -> i64 {
    let before = names.split('(').next().filter(|_| names.contains('('));
    let number = before.and_then(|words| words.split_whitespace().last());
    number.and_then(|number| number.parse().ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(names: &str) -> Settings {
        Settings {
            fsync: true,
            full_page_writes: true,
            synchronous_commit: "on".to_owned(),
            standby_names: names.to_owned(),
            followers: 0,
            synchronous: 0,
            unseen: 0,
            left_waiting: 0,
        }
    }

    #[test]
    fn a_standby_that_a_commit_waits_for_must_be_there() {
        for (names, standbys, waits) in [
            ("", 0, false),
            ("*", 0, true),
            ("*", 1, false),
            ("a, b", 1, false),
            ("2 (a, b)", 1, true),
            ("FIRST 2 (a, b, c)", 2, false),
            ("ANY 2 (a, b, c)", 1, true),
        ] {
            let seen = Settings { synchronous: standbys, ..settings(names) };
            assert_eq!(seen.waits_in_vain(), waits, "{names} {standbys}");
            // Somebody else's connections, whose state is not shown, may be standbys.
            let unseen = Settings { unseen: standbys, ..settings(names) };
            assert_eq!(unseen.waits_in_vain(), waits, "{names} {standbys}");
        }
        let local = Settings { synchronous_commit: "local".to_owned(), ..settings("*") };
        assert!(!local.waits_in_vain());
    }

    #[test]
    fn what_may_undo_a_commit_is_named() {
        let lost = |settings: Settings| -> Vec<String> {
            let words = settings.words().into_iter();
            words
                .filter_map(|one| match one {
                    Lasting::MayBeLost(text) => Some(text),
                    _ => None,
                })
                .collect()
        };
        assert_eq!(lost(settings("")), [""; 0]);
        assert!(lost(Settings { followers: 1, ..settings("") })[0].contains("fail-over"));
        assert!(lost(Settings { fsync: false, ..settings("") })[0].starts_with("fsync"));
        let torn = Settings { full_page_writes: false, ..settings("") };
        assert!(lost(torn)[0].starts_with("full_page_writes"));
        let local = Settings {
            synchronous_commit: "local".to_owned(),
            synchronous: 1,
            followers: 1,
            ..settings("*")
        };
        assert!(lost(local)[0].contains("local"));
    }
}
