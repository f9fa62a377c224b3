//! The rules about doubts, in SQL. A test holds them to those of the port, row by row.

/// [`CopyDoubt::is_in_doubt`](onedrop_core::ledger::CopyDoubt) in SQL, of `c`.
pub const IN_DOUBT: &str = "(c.in_doubt AND NOT (c.looks_back AND c.leased_until IS NULL
    AND coalesce(c.placed_epoch, 0) = c.epoch))";

/// [`CopyDoubt::wants_a_look`](onedrop_core::ledger::CopyDoubt) in SQL, of `c`.
pub const WANTS_A_LOOK: &str = "(c.placed_at IS NULL
    OR c.settled_at IS NULL AND (c.epoch > 1 OR NOT c.looks_back))";

/// [`CopyDoubt::may_be_double`](onedrop_core::ledger::CopyDoubt) in SQL, of `c`.
pub const MAY_BE_DOUBLE: &str = "(c.epoch > 1 OR c.prior_doubt)";

#[cfg(test)]
mod tests {
    use onedrop_core::ledger::CopyDoubt;

    use super::*;

    #[test]
    fn each_rule_is_one_in_sql_and_in_memory() {
        let db = rusqlite::Connection::open_in_memory().expect("SQLite");
        let sql = format!(
            "SELECT {IN_DOUBT}, {WANTS_A_LOOK}, {MAY_BE_DOUBLE}
             FROM (SELECT ?1 AS in_doubt, ?2 AS looks_back, nullif(?3, 0) AS leased_until,
                          nullif(?4, 0) AS placed_epoch, ?5 AS epoch,
                          nullif(?6, 0) AS placed_at, nullif(?7, 0) AS settled_at,
                          ?8 AS prior_doubt) c"
        );
        let mut statement = db.prepare(&sql).expect("SQL");
        for flags in 0..64 {
            let is = |bit: u32| flags & 1 << bit != 0;
            for (placed_epoch, epoch) in (0..3).flat_map(|one| (0..3).map(move |two| (one, two))) {
                let row = CopyDoubt {
                    in_doubt: is(0),
                    prior_doubt: is(5),
                    looks_back: is(1),
                    has_lease: is(2),
                    placed_epoch,
                    epoch,
                    is_placed: is(3),
                    is_settled: is(4),
                };
                let values = (is(0), is(1), is(2), placed_epoch, epoch, is(3), is(4), is(5));
                let in_sql = statement.query_row(values, |row| {
                    Ok([row.get(0)?, row.get(1)?, row.get::<_, bool>(2)?])
                });
                let rules = [row.is_in_doubt(), row.wants_a_look(), row.may_be_double()];
                assert_eq!(in_sql, Ok(rules), "{row:?}");
            }
        }
    }
}
