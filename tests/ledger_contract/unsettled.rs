//! Copies that have to be looked at again, however old: what puts a copy among them and what takes
//! it out; and that a purge beside deliveries takes messages whole.

use onedrop::ledger::PurgeWhat;

use super::*;

const DAY: Duration = Duration::from_secs(86_400);
const DAYS_35: Duration = Duration::from_secs(35 * 86_400);

impl Host {
    /// The copies that are to be compared though no window of times has them.
    pub fn however_old(&self) -> Vec<i64> {
        let window = Window { since: SystemTime::now() + 10 * DAY, all: false };
        self.copies(&window).iter().map(|copy| copy.copy).collect()
    }
}

pub fn what_may_stand_twice_is_looked_at_again_however_old(rig: &dyn Rig) {
    let host = Host::of(rig);
    rig.remember_since(SystemTime::now() - 10 * DAY);
    let now = Some(SystemTime::now());
    let clean = claimed(&host.record_aged(&mail("clean"), now, &[inbox()]).copies[0]);
    host.confirm(&clean, &uid(1));
    assert!(host.however_old().is_empty(), "one lease wrote it");

    // Each in its own way, with the receipt that is on record in the end.
    let again = |name: &str, receipt: Receipt| {
        host.record_aged(&mail(name), now, &[inbox()]);
        rig.expire_leases();
        let claim = claimed(&host.record_aged(&mail(name), now, &[inbox()]).copies[0]);
        assert_eq!((claim.epoch, claim.in_doubt), (2, true));
        host.confirm(&claim, &receipt);
        claim.copy
    };
    let old = |name: &str, receipt: Receipt| {
        let claim = claimed(&host.record_aged(&mail(name), None, &[inbox()]).copies[0]);
        assert_eq!((claim.epoch, claim.in_doubt), (1, true));
        host.confirm(&claim, &receipt);
        claim.copy
    };
    let second = |name: &str, receipt: Receipt| {
        let claim = claimed(&host.record_aged(&mail(name), now, &[inbox()]).copies[0]);
        host.confirm(&claim, &receipt);
        assert!(host.however_old().iter().all(|copy| *copy != claim.copy));
        let late = host.confirm(&claim, &uid(99));
        assert_eq!(late, Confirmed::Superseded { by: receipt });
        claim.copy
    };
    let is_looked_at_until_settled = |name: &str, number: u32, copy: i64| {
        assert_eq!(host.however_old(), [copy], "{name}");
        let copies = host.copies(&ALL);
        let row = copies.into_iter().find(|one| one.copy == copy).expect("the copy");
        assert!(host.settle(&row, &uid(number)), "{name}");
        assert!(host.however_old().is_empty(), "{name}: it was looked at");
    };
    is_looked_at_until_settled("leased again", 10, again("leased again", uid(10)));
    is_looked_at_until_settled("in doubt from the first", 11, old("old", uid(11)));
    is_looked_at_until_settled("written twice", 12, second("written twice", uid(12)));
}

pub fn what_is_left_to_settle_is_looked_at_until_that_is_over(rig: &dyn Rig) {
    let host = Host::of(rig);
    rig.remember_since(SystemTime::now() - 10 * DAY);
    let now = Some(SystemTime::now());
    let message = host.record_aged(&mail("due"), now, &[]).message;
    assert!(host.to_settle().is_empty());
    host.keep_until_due(message, &sent(), b"bytes", Duration::ZERO);
    let due = host.due();
    assert_eq!(due.len(), 1, "{due:?}");
    let claim = claimed(&host.claim_due(message, &sent()));
    assert_eq!(claim.copy, due[0].copy);
    host.confirm(&claim, &uid(1));
    assert!(host.due().is_empty());
    let watched = host.watched();
    assert_eq!(watched.iter().map(|copy| copy.copy).collect::<Vec<_>>(), [claim.copy]);
    host.look_again(&watched[0], Some(DAY));
    assert!(host.watched().is_empty(), "not yet");
    host.look_again(&watched[0], Some(Duration::ZERO));
    assert_eq!(host.watched().len(), 1);
    host.look_again(&watched[0], None);
    assert!(host.to_settle().is_empty() && host.however_old().is_empty());
}

pub fn a_purge_beside_claims_of_the_same_messages_leaves_nothing_half(rig: &dyn Rig) {
    let host = Host::of(rig);
    rig.remember_since(SystemTime::now() - 400 * DAY);
    let names: Vec<String> = (0..5).map(|n| format!("half{n}")).collect();
    let place = |(number, name): (u32, &String)| {
        host.place(&mail(name), &inbox(), number);
        host.record(&mail(name), &[]).message
    };
    let messages: Vec<MessageKey> = (1..).zip(&names).map(place).collect();
    rig.pass(36 * 86_400);
    // So that transactions last, and meet.
    rig.slow_commits();
    let claims = at_once(6, |n| {
        let host = Host::of(rig);
        let mut claims = Vec::new();
        for (name, message) in names.iter().zip(&messages) {
            if n < 2 {
                host.purge(PurgeWhat::Messages, DAYS_35);
                continue;
            }
            let wanted = [Destination::inbox(&format!("other{n}"))];
            let states = match n % 2 {
                0 => host.0.claim(message, &wanted, &attempt("mx1"), LEASE, soon()),
                _ => host.try_record(&mail(name), &wanted, LEASE).map(|one| one.copies),
            };
            match states {
                Ok(states) => claims.extend(states.iter().map(claimed)),
                Err(LedgerError::Forgotten | LedgerError::Contended) => {}
                Err(error) => panic!("{error}"),
            }
        }
        claims
    });
    for (number, claim) in (100..).zip(claims.iter().flatten()) {
        let confirmed = host.confirm(claim, &uid(number));
        assert_eq!(confirmed, Confirmed::Recorded, "what was leased was not taken out");
    }
    for table in ["onedrop_copy", "onedrop_attempt"] {
        let probe = format!("probe_of_{table}");
        rig.sql(&format!("CREATE TABLE {probe} (dangling INTEGER CHECK (dangling = 0))"));
        rig.sql(&format!(
            "INSERT INTO {probe} SELECT count(*) FROM {table} t WHERE t.message_id IS NOT NULL
             AND NOT EXISTS (SELECT 1 FROM onedrop_message m WHERE m.id = t.message_id)"
        ));
        rig.sql(&format!("DROP TABLE {probe}"));
    }
}
