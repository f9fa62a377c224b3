//! The server under a load that is purged as it comes, in short: the whole of it is
//! `cargo bench --bench soak`.

use std::io::Write as _;

use crate::soak_rig::{Outcome, Plan, run};
use crate::support::is_full;

#[test]
fn under_a_long_load_nothing_is_lost_and_no_file_stays_open() {
    let messages = match is_full() {
        true => 20_000,
        false => 900,
    };
    let outcome = run(Plan::of(messages));
    let Outcome { took, copies, deferred, purges, wrong, unplaced, tenths, files, .. } = outcome;
    let (first, last) = (tenths[0].own_mb, tenths[tenths.len() - 1].own_mb);
    let seen = format!(
        "{copies} copies in {:.1} s, {deferred} deferred, {purges:?}, from {first:.1} to {last:.1} \
         MB, {files:?} open files",
        took.as_secs_f64()
    );
    writeln!(std::io::stderr(), "{seen}").expect("stderr");
    assert!(wrong.is_empty() && unplaced == 0, "{wrong:#?}, {unplaced} not placed; {seen}");
    assert_eq!(copies, messages + messages.div_ceil(8), "every eighth has two");
    assert!(purges.messages > 0, "{seen}");
    // One that each message leaves open would be one of thousands.
    assert!(files.1 <= files.0 + 32, "{seen}");
    assert!(last <= 1.5 * first + 4.0, "{seen}");
}
