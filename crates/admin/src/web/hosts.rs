//! Hosts that use the ledger.

use std::time::{Duration, SystemTime};

use askama::Template;

use super::PagesState;
use super::page::{Head, Html, NotShown, StateMark, When};
use crate::status::SILENT;
use onedrop_core::duration::brief;
use onedrop_core::ledger::{HostRow, MOST_HOSTS};

/// Hosts that were seen since then are shown.
const BACK: Duration = Duration::from_secs(35 * 86_400);
/// From this difference on `check` has a finding about a clock.
const CLOCK_MS: i64 = 2000;

struct SeenHost {
    seen: When,
    ago: String,
    mark: StateMark,
    clock: String,
    line: HostRow,
}

#[derive(Template)]
#[template(path = "hosts.html")]
struct HostsPage {
    head: Head,
    rows: Vec<SeenHost>,
    /// There may be more.
    is_cut: bool,
}

pub fn page(site: &PagesState) -> Result<Html, NotShown> {
    let rows: Vec<_> = site.ledger.hosts(BACK, site.until())?.into_iter().map(row).collect();
    let is_cut = rows.len() >= MOST_HOSTS as usize;
    Html::of(&HostsPage { head: site.head("Hosts", "/hosts"), rows, is_cut })
}

fn row(line: HostRow) -> SeenHost {
    let is_off = line.clock_offset_ms.is_some_and(|by| by.abs() > CLOCK_MS);
    let mark = match line.seen_ago < SILENT {
        _ if is_off => StateMark::bad("clock differs"),
        true => StateMark::good("seen"),
        false => StateMark::waits("silent"),
    };
    let clock =
        line.clock_offset_ms.map_or_else(|| "is the ledger's".to_owned(), |by| format!("{by} ms"));
    let seen = SystemTime::now().checked_sub(line.seen_ago).unwrap_or(SystemTime::UNIX_EPOCH);
    SeenHost { seen: When::of(seen), ago: brief(line.seen_ago), mark, clock, line }
}
