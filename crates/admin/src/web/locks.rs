//! Who holds which named lock, and who waits for one.

use std::time::SystemTime;

use askama::Template;

use super::PagesState;
use super::page::{Head, Html, NotShown, StateMark, When};
use onedrop_core::duration::brief;
use onedrop_core::ledger::{LockRow, LockWaiter};
use onedrop_locks::jobs::job_status;

/// A slot, or the first of a host that waits for one.
struct LockEntry {
    name: String,
    slot: String,
    epoch: String,
    holder: String,
    command: String,
    note: String,
    since: When,
    age: String,
    mark: StateMark,
    left: String,
}

#[derive(Template)]
#[template(path = "locks.html")]
struct LocksPage {
    head: Head,
    rows: Vec<LockEntry>,
}

pub fn page(site: &PagesState) -> Result<Html, NotShown> {
    let rows = site.ledger.lock_rows(None, site.until())?;
    let waiters = site.ledger.lock_waiters(None, site.until())?;
    let now = site.ledger.time();
    let held = rows.into_iter().map(|row| held(row, now));
    let rows = held.chain(waiters.into_iter().map(|waiter| waiting(waiter, now))).collect();
    Html::of(&LocksPage { head: site.head("Locks", "/locks"), rows })
}

fn held(row: LockRow, now: SystemTime) -> LockEntry {
    LockEntry {
        name: row.name.to_string(),
        slot: format!("{} of {}", row.slot, row.holder.slots),
        epoch: row.epoch.to_string(),
        holder: format!("{}:{}", row.holder.host, row.holder.pid),
        command: row.holder.command,
        note: row.holder.note,
        since: When::of(row.acquired_at),
        age: brief(job_status::since(row.acquired_at, now)),
        mark: if row.left.is_some() {
            StateMark::good("held")
        } else {
            StateMark::doubt("run out")
        },
        left: row.left.map(brief).unwrap_or_default(),
    }
}

fn waiting(waiter: LockWaiter, now: SystemTime) -> LockEntry {
    let LockWaiter { name, holder, others, since, .. } = waiter;
    let more = if others > 0 { format!("and {others} more of this host") } else { String::new() };
    LockEntry {
        name: name.to_string(),
        slot: format!("one of {}", holder.slots),
        epoch: String::new(),
        holder: format!("{}:{}", holder.host, holder.pid),
        command: holder.command,
        note: [more, holder.note]
            .into_iter()
            .filter(|text| !text.is_empty())
            .collect::<Vec<_>>()
            .join("; "),
        since: When::of(since),
        age: brief(job_status::since(since, now)),
        mark: StateMark::waits("waits"),
        left: String::new(),
    }
}
