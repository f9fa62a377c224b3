//! `onedrop verify` over a real Dovecot with more than a handful of mailboxes: what is double or in
//! doubt is found and settled among much that is as it should be. At full size: `cargo bench
//! --bench verify`.

use std::time::Duration;

use crate::scale::{Prepared, Scale};

#[test]
fn doubles_and_doubts_among_many_copies_are_found_and_settled() {
    let scale = Scale { mailboxes: 8, messages: 300, on_record: 100, doubles: 2, doubts: 3 };
    let prepared = Prepared::new(scale);
    let psql = |sql: &str| prepared.site.postgres.psql(sql);
    let first = prepared.verify(&["--repair"]);
    let found = |what: &str| first.findings.iter().filter(|one| *one == what).count();
    assert_eq!((first.code, found("repaired double"), found("repaired lease")), (Some(0), 2, 3));
    assert_eq!(first.findings.len(), 5, "{first:?}");
    assert!(first.said.contains("5 copies compared"), "{first:?}");
    let again = prepared.verify(&["--repair"]);
    assert_eq!((again.code, again.findings.len()), (Some(0), 0), "{again:?}");
    let settled = "SELECT count(*) FROM onedrop_copy WHERE epoch > 1 AND settled_at IS NOT NULL";
    assert_eq!(psql(settled), "2", "a look has seen that they are gone");
    for parallel in ["1", "8"] {
        let all = prepared.verify(&["--all", "--parallel", parallel]);
        assert_eq!((all.code, all.findings.len()), (Some(0), 0), "{all:?}");
        assert!(all.said.contains("800 copies compared"), "{all:?}");
        assert!(all.kilobytes < 100 * 1024 && all.took < Duration::from_secs(60), "{all:?}");
    }
    for account in ["user0000", "user0001", "user0002", "user0007"] {
        assert_eq!(prepared.site.dovecot.count(account, "INBOX"), 300, "{account}");
    }
}
