//! Which part of a sweep to run: all of it with `tests/run --full`, else what always counts and a
//! sample of the rest that moves on with every commit.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// Where samples start. Printed; `ONEDROP_OFFSET` repeats a run's samples.
fn offset() -> usize {
    static OFFSET: OnceLock<usize> = OnceLock::new();
    *OFFSET.get_or_init(|| {
        let given = std::env::var("ONEDROP_OFFSET").ok().and_then(|offset| offset.parse().ok());
        let offset = given.unwrap_or_else(|| {
            let git =
                Command::new("git").args(["-C", crate::PROJECT, "rev-parse", "HEAD"]).output();
            let commit = git.ok().filter(|git| git.status.success()).map(|git| git.stdout);
            let days = || {
                SystemTime::now()
                    .duration_since(SystemTime::UNIX_EPOCH)
                    .unwrap_or_default()
                    .as_secs()
                    / 86_400
            };
            let mut hasher = DefaultHasher::new();
            commit.unwrap_or_else(|| days().to_string().into_bytes()).hash(&mut hasher);
            (hasher.finish() % 10_000) as usize
        });
        writeln!(std::io::stderr(), "samples start at ONEDROP_OFFSET={offset}").expect("stderr");
        offset
    })
}

/// Which of these parts this run takes.
pub fn part(parts: u64) -> u64 {
    // Apart from where samples start, or one part would always come with the same half of them.
    offset() as u64 / 7 % parts
}

/// All that `always` counts, and `wanted` of the others, evenly spread; everything where that is
/// asked for.
pub fn sample<T>(all: Vec<T>, wanted: usize, always: impl Fn(&T) -> bool) -> Vec<T> {
    let others = all.iter().filter(|one| !always(one)).count();
    if crate::is_full() || others <= wanted {
        return all;
    }
    let offset = offset();
    let mut n = offset;
    let chosen = all.into_iter().filter(|one| {
        if always(one) {
            return true;
        }
        // As many steps of `wanted / others` as there are others, from a start that moves on.
        n += 1;
        n * wanted / others != (n - 1) * wanted / others
    });
    chosen.collect()
}
