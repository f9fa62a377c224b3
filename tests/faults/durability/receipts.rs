//! The receipt of a recipient's own copy waits for no sync of its own. A crash of the ledger's
//! server right after "delivered", or of the host that has the ledger in a file, undoes it: the
//! copy stands, its row is in doubt, `verify` and `settle` find it, and another attempt leaves it
//! alone.

use std::fs::{self, OpenOptions};
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{DELIVER, FROM_ELSEWHERE, Fresh, MESSAGE, Traced, with_postgres};
use crate::support::maildir_copies;
use crate::support::postgres::Postgres;
use crate::support::site::{Site, delivered, run};

/// What is said of a copy whose receipt is lost.
const SAID: &str = "never said how its delivery ended, or the ledger has lost that";

/// What `verify`, and then `settle`, say and do about the only copy in doubt.
#[track_caller]
fn verify_and_settle_find_it(config: &Path) {
    let verified = run(config, &["verify", "--since", "1h"]);
    let said = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert_eq!(verified.status.code(), Some(1), "{verified:?}");
    assert!(said.contains(SAID) && said.contains("a copy is there as "), "{said}");
    let settled = run(config, &["settle", "--dry-run"]);
    let said = String::from_utf8_lossy(&settled.stdout).into_owned();
    assert!(settled.status.success(), "{settled:?}");
    assert!(said.contains(SAID) && said.contains("it would be recorded"), "{said}");
    let settled = run(config, &["settle"]);
    let said = String::from_utf8_lossy(&settled.stdout).into_owned();
    assert!(settled.status.success(), "{settled:?}");
    assert!(said.contains(SAID) && said.contains("is on record now: "), "{said}");
}

#[test]
fn a_receipt_waits_for_no_sync_and_a_power_failure_that_undoes_it_leaves_a_doubt() {
    for is_tried_again in [false, true] {
        let site = Fresh::in_use();
        // Makes the WAL anew, which is synced with its folder.
        delivered(&site.config, &DELIVER[1..], super::letter("before").as_bytes());
        let run = Traced::well(&site.root, &site.config, &DELIVER, Some(FROM_ELSEWHERE));
        let [link] = run.links()[..] else { panic!("{:?}", run.links()) };
        let syncs = run.all(|call| matches!(&*call.name, "fsync" | "fdatasync") && call.worked());
        let of_the_store = |path: &str| path.contains("/mail/");
        assert_eq!(syncs.len(), 3, "the record's, the file's and its folder's: {syncs:#?}");
        assert_eq!(syncs.iter().filter(|call| of_the_store(call.on())).count(), 2, "{syncs:#?}");
        // What was written to the ledger after that is not on its disk.
        let receipt = run.first_after(link.ended, |call| site.is_wal_write(call));
        let receipt = receipt.expect("a receipt");
        let length = receipt.args.rsplit(", ").next().and_then(|offset| offset.parse().ok());
        let wal = OpenOptions::new().write(true).open(site.wal()).expect("the WAL");
        wal.set_len(length.expect("an offset")).expect("a power failure");
        fs::remove_file(site.wal().with_file_name("ledger.db-shm")).expect("its index");

        let ledger =
            rusqlite::Connection::open(site.root.join("ledger/here/ledger.db")).expect("ledger");
        let state = "SELECT count(*) || ' of ' || sum(in_doubt) || ' in doubt' FROM onedrop_copy
                     WHERE placed_at IS NULL AND leased_until IS NOT NULL AND epoch = 1";
        let state = || ledger.query_row(state, [], |row| row.get::<_, String>(0)).expect("rows");
        assert_eq!(state(), "1 of 1 in doubt");
        if is_tried_again {
            let said = delivered(&site.config, &DELIVER[1..], FROM_ELSEWHERE);
            assert!(said.starts_with("found "), "{said}");
        } else {
            let ended = "UPDATE onedrop_copy SET leased_until = 1 WHERE placed_at IS NULL";
            assert_eq!(ledger.execute(ended, []).expect("update"), 1);
            verify_and_settle_find_it(&site.config);
        }
        let open = "SELECT count(*) FROM onedrop_copy WHERE placed_at IS NULL";
        assert_eq!(ledger.query_row(open, [], |row| row.get::<_, i64>(0)).expect("rows"), 0);
        let inbox = maildir_copies(&site.root.join("mail/here"), "scuba", "");
        assert_eq!(inbox.iter().filter(|copy| *copy == FROM_ELSEWHERE).count(), 1, "{inbox:?}");
    }
}

/// What is kept of a message goes with the receipt in Sent, and a copy that was leased twice may be
/// taken out because of its receipt: in a file, too, these last.
#[test]
fn a_receipt_by_which_something_goes_is_on_the_disk_of_its_file() {
    let site = Fresh::in_use();
    let message = String::from_utf8_lossy(MESSAGE).replace("<kept@x>", "<lasts@x>");
    let waits = |copies: usize| {
        let run = Traced::well(&site.root, &site.config, &DELIVER, Some(message.as_bytes()));
        assert_eq!(run.links().len(), copies);
        let last = run.links()[copies - 1];
        let receipt = run.first_after(last.ended, |call| site.is_wal_write(call));
        let receipt = receipt.expect("a receipt");
        run.first_after(receipt.ended, |call| {
            matches!(&*call.name, "fsync" | "fdatasync") && Path::new(call.on()) == site.wal()
        })
        .unwrap_or_else(|| panic!("no sync after {receipt:?}"));
    };
    waits(2);
    let ledger =
        rusqlite::Connection::open(site.root.join("ledger/here/ledger.db")).expect("ledger");
    let again = "UPDATE onedrop_copy SET placed_at = NULL, receipt_kind = NULL, receipt = NULL,
                     leased_until = NULL, in_doubt = 0, placed_epoch = epoch
                 WHERE mailbox = 'INBOX' AND message_id = (SELECT max(id) FROM onedrop_message)";
    assert_eq!(ledger.execute(again, []).expect("update"), 1);
    fs::remove_dir_all(site.root.join("mail/here/scuba")).expect("its copy");
    waits(1);
}

/// A Postgres that writes nothing to its log but what a commit waits for.
fn lazy() -> Postgres {
    let postgres =
        Postgres::start_with("wal_writer_delay = 10s\nbgwriter_lru_maxpages = 0\nautovacuum = off");
    hold_the_writer(&postgres);
    postgres
}

/// Stops the process that writes what no commit waits for.
fn hold_the_writer(postgres: &Postgres) {
    let writer = postgres.psql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'");
    kill(Pid::from_raw(writer.parse().expect("a pid")), Signal::SIGSTOP).expect("its writer");
}

#[test]
fn a_receipt_that_a_crash_of_postgres_undoes_is_found_again() {
    let (mut postgres, site) = (lazy(), Site::embedded());
    let config = with_postgres(&postgres, &site, super::HERE);
    postgres.remember_for_ever();
    for is_tried_again in [false, true] {
        let message = match is_tried_again {
            false => FROM_ELSEWHERE.to_vec(),
            true => super::letter("again").into_bytes(),
        };
        let said = delivered(&config, &DELIVER[1..], &message);
        assert!(said.starts_with("stored "), "{said}");
        postgres.kill();
        postgres.restart();
        let state = "SELECT concat_ws(' ', c.in_doubt, c.leased_until IS NULL, c.epoch, a.outcome)
                     FROM onedrop_copy c JOIN onedrop_attempt_text a USING (message_id)
                     WHERE c.placed_at IS NULL";
        assert_eq!(postgres.psql(state), "t f 1");
        if is_tried_again {
            let said = delivered(&config, &DELIVER[1..], &message);
            assert!(said.starts_with("found "), "{said}");
        } else {
            postgres.psql(
                "UPDATE onedrop_copy SET leased_until = clock_timestamp() WHERE placed_at IS NULL",
            );
            verify_and_settle_find_it(&config);
        }
        assert_eq!(postgres.psql("SELECT count(*) FROM onedrop_copy WHERE placed_at IS NULL"), "0");
        let inbox = site.inbox("scuba");
        assert_eq!(inbox.len(), 1 + usize::from(is_tried_again));
        hold_the_writer(&postgres);
    }
}

/// See [`a_receipt_by_which_something_goes_is_on_the_disk_of_its_file`].
#[test]
fn a_receipt_by_which_something_goes_outlives_a_crash_of_postgres() {
    let (mut postgres, site) = (lazy(), Site::embedded());
    let config = with_postgres(&postgres, &site, super::HERE);
    postgres.remember_for_ever();
    delivered(&config, &DELIVER[1..], MESSAGE);
    postgres.kill();
    postgres.restart();
    let sent = "SELECT count(placed_at) FROM onedrop_copy WHERE mailbox = 'Sent'";
    assert_eq!(postgres.psql(sent), "1");
    hold_the_writer(&postgres);
    // A second lease, after one that wrote nothing.
    postgres.psql(
        "UPDATE onedrop_copy SET placed_at = NULL, receipt_kind = NULL, receipt = NULL,
                                 leased_until = NULL, in_doubt = false, placed_epoch = epoch
         WHERE mailbox = 'INBOX'",
    );
    fs::remove_dir_all(site.root.join("mail/scuba")).expect("its copy");
    let said = delivered(&config, &DELIVER[1..], MESSAGE);
    assert!(said.starts_with("stored "), "{said}");
    postgres.kill();
    postgres.restart();
    let own = "SELECT count(placed_at) || ' ' || max(epoch) FROM onedrop_copy
               WHERE mailbox = 'INBOX'";
    assert_eq!(postgres.psql(own), "1 2");
}
