//! What a commit outlives. A server that may lose one in a crash is refused at the login.

use std::time::Instant;

use super::MariadbLedger;
use super::statement::values;
use crate::rows::SqlRow;
use onedrop_core::ledger::{Durability, Lasting, LedgerError};

const ASK: &str = "
SELECT @@innodb_doublewrite + 0, @@rpl_semi_sync_master_enabled,
       CAST(@@rpl_semi_sync_master_timeout DIV 1000 AS SIGNED)";

impl Durability for MariadbLedger {
    fn durability(&self, until: Instant) -> Result<Vec<Lasting>, LedgerError> {
        self.call(until, |connection| {
            let rows = connection.query(ASK, values![])?;
            let writes_twice = rows.first().map(|row| row.cell::<i64>(0)).transpose()?;
            let semi_sync = |row: &mysql_async::Row| -> Result<(bool, i64), LedgerError> {
                Ok((row.cell(1)?, row.cell(2)?))
            };
            let waits = match rows.first().map(semi_sync).transpose()? {
                Some((true, secs)) => format!(
                    "they wait for a replica (rpl_semi_sync_master_enabled), and after {secs} s \
                     (rpl_semi_sync_master_timeout) for none"
                ),
                _ => "they wait for none".to_owned(),
            };
            let mut words = vec![Lasting::Outlives(format!(
                "a commit outlives a crash of the server, but not the loss of its disk, and a \
                 fail-over to a replica may undo the last ones: {waits}"
            ))];
            if writes_twice == Some(0) {
                words.push(Lasting::MayBeLost(
                    "innodb_doublewrite = OFF: a crash may damage the ledger, unless the file \
                     system never leaves half of a page"
                        .to_owned(),
                ));
            }
            Ok(words)
        })
    }
}
