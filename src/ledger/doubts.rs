//! Which copies people are told of as doubts: each rule in SQL, for the engines, and beside it for
//! the ledger in memory. A test holds the two to each other, row by row.

/// What the rules ask of a copy's row.
#[derive(Debug, Clone, Copy)]
pub struct CopyDoubt {
    pub in_doubt: bool,
    pub looks_back: bool,
    pub has_lease: bool,
    /// NULL is 0.
    pub placed_epoch: i64,
    pub epoch: i64,
    pub is_placed: bool,
    pub is_settled: bool,
}

/// SQL: whether `c`, which is not placed, may stand in its mailbox. That it looks back is no doubt
/// by itself.
pub const IN_DOUBT: &str = "(c.in_doubt AND NOT (c.looks_back AND c.leased_until IS NULL
    AND coalesce(c.placed_epoch, 0) = c.epoch))";

/// SQL: whether people are told that `c` wants another look.
pub const WANTS_A_LOOK: &str = "(c.placed_at IS NULL
    OR c.settled_at IS NULL AND (c.epoch > 1 OR NOT c.looks_back))";

impl CopyDoubt {
    /// As [`IN_DOUBT`].
    pub fn is_in_doubt(self) -> bool {
        let was_only_given_back = !self.has_lease && self.placed_epoch == self.epoch;
        self.in_doubt && !(self.looks_back && was_only_given_back)
    }

    /// As [`WANTS_A_LOOK`].
    pub fn wants_a_look(self) -> bool {
        !self.is_placed || !self.is_settled && (self.epoch > 1 || !self.looks_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_is_one_in_sql_and_in_memory() {
        let db = rusqlite::Connection::open_in_memory().expect("SQLite");
        let sql = format!(
            "SELECT {IN_DOUBT}, {WANTS_A_LOOK}
             FROM (SELECT ?1 AS in_doubt, ?2 AS looks_back, nullif(?3, 0) AS leased_until,
                          nullif(?4, 0) AS placed_epoch, ?5 AS epoch,
                          nullif(?6, 0) AS placed_at, nullif(?7, 0) AS settled_at) c"
        );
        let mut statement = db.prepare(&sql).expect("SQL");
        for flags in 0..32 {
            let is = |bit: u32| flags & 1 << bit != 0;
            for (placed_epoch, epoch) in (0..3).flat_map(|one| (0..3).map(move |two| (one, two))) {
                let row = CopyDoubt {
                    in_doubt: is(0),
                    looks_back: is(1),
                    has_lease: is(2),
                    placed_epoch,
                    epoch,
                    is_placed: is(3),
                    is_settled: is(4),
                };
                let values = (is(0), is(1), is(2), placed_epoch, epoch, is(3), is(4));
                let in_sql = statement
                    .query_row(values, |row| Ok((row.get::<_, bool>(0)?, row.get::<_, bool>(1)?)));
                assert_eq!(in_sql, Ok((row.is_in_doubt(), row.wants_a_look())), "{row:?}");
            }
        }
    }
}
