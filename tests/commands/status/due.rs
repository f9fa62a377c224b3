//! What should have been and was not.

use super::{line_after};
use crate::command_line::Admin;

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
