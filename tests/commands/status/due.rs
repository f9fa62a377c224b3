//! What should have been and was not.

use super::{line_after, status};
use crate::command_line::Admin;

const DAY: u64 = 86_400;

#[test]
fn the_command_for_a_doubt_reaches_it_for_an_hour_to_come() {
    let admin = Admin::new();
    for (minutes, since) in [(46 * 60, "48h"), (47 * 60 + 30, "3d"), (71 * 60 + 30, "4d")] {
        let sql = format!(
            "UPDATE onedrop_message SET recorded_at = $NOW - {};
             INSERT OR REPLACE INTO onedrop_unsettled SELECT id, 0 FROM onedrop_copy;
             UPDATE onedrop_copy SET placed_at = NULL, file_name = NULL, in_doubt = 1, epoch = 2,
                 leased_until = NULL;",
            minutes * 60
        );
        let (level, text) = line_after(&admin, &sql, "doubts");
        assert_eq!(level, "ATTENTION", "{text}");
        let command = format!("  -> onedrop verify --since {since} --repair");
        assert!(text.ends_with(&command), "{minutes}: {text}");
    }
}

#[test]
fn where_all_hosts_are_gone_the_last_one_is_named() {
    let admin = Admin::new();
    let seen = |host: &str, days: u64| {
        format!(
            "INSERT INTO onedrop_host VALUES ('{host}', '0.1.0', 11, $NOW - {}, 0);",
            days * DAY
        )
    };
    let gone = seen("mx1", 2) + &seen("mx2", 3);
    let (level, text) = line_after(&admin, &gone, "hosts");
    assert_eq!(level, "ok", "mail comes by a host that only runs deliver: {text}");
    let (level, text) = line_after(&admin, "DELETE FROM onedrop_attempt", "hosts");
    assert_eq!(level, "ATTENTION");
    let last =
        "none seen of late, the last was mx1 2d ago  -> ssh mx1 systemctl status 'onedrop-*'";
    assert_eq!(text, last);
    assert_eq!(status(&admin, "", &[]).status, Some(1));
    let (level, _) = line_after(&admin, "DELETE FROM onedrop_host", "hosts");
    assert_eq!(level, "ok", "a ledger that nobody has used yet");
}
