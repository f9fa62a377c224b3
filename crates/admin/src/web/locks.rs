//! Who holds which named lock.

use std::time::SystemTime;

use askama::Template;

use super::PagesState;
use super::page::{Head, Html, NotShown, StateMark, When};
use onedrop_core::duration::brief;
use onedrop_core::ledger::LockRow;
use onedrop_locks::jobs::job_status::since;

struct HeldRow {
    name: String,
    slot: String,
    epoch: i64,
    holder: String,
    command: String,
    note: String,
    acquired: When,
    age: String,
    mark: StateMark,
    left: String,
}

#[derive(Template)]
#[template(path = "locks.html")]
struct LocksPage {
    head: Head,
    rows: Vec<HeldRow>,
}

pub fn page(site: &PagesState) -> Result<Html, NotShown> {
    let rows = site.ledger.lock_rows(None, site.until())?;
    let now = site.ledger.time();
    let rows = rows.into_iter().map(|row| held(row, now)).collect();
    Html::of(&LocksPage { head: site.head("Locks", "/locks"), rows })
}

fn held(row: LockRow, now: SystemTime) -> HeldRow {
    HeldRow {
        name: row.name.to_string(),
        slot: format!("{} of {}", row.slot, row.holder.slots),
        epoch: row.epoch,
        holder: format!("{}:{}", row.holder.host, row.holder.pid),
        command: row.holder.command,
        note: row.holder.note,
        acquired: When::of(row.acquired_at),
        age: brief(since(row.acquired_at, now)),
        mark: if row.left.is_some() {
            StateMark::good("held")
        } else {
            StateMark::doubt("run out")
        },
        left: row.left.map(brief).unwrap_or_default(),
    }
}
