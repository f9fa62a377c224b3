//! When a run is to end. A message that fails for now may do so for its mailbox alone, or for all:
//! where the store is away, each further message would only fail as well, and take its time. So ten
//! that failed with none delivered between them end the run. A mailbox that is broken is not all
//! there is: it counts for three of the ten, and after ten failures what else is for it is left.

use std::collections::HashMap;

use super::report::EndMeaning;

/// This number of failures with no delivery between them ends a run, or a mailbox's part in it.
const MOST: u32 = 10;
/// The most failures of one mailbox that count for the run.
const MOST_OF_ONE: u32 = 3;

/// The text for a message that is not tried.
pub const LEFT: &str = "left: the ten messages before it that were tried for this mailbox failed";

/// What has failed for now.
#[derive(Debug)]
pub struct FailedForNow {
    /// All messages are for the same recipients.
    is_for_one: bool,
    /// Since the last delivery, by the account.
    in_a_row: HashMap<String, u32>,
    /// Since the last delivery to them, by the recipients.
    of: HashMap<String, u32>,
    has_delivered: bool,
}

impl FailedForNow {
    pub fn new(is_for_one: bool) -> FailedForNow {
        let (in_a_row, of) = (HashMap::new(), HashMap::new());
        FailedForNow { is_for_one, in_a_row, of, has_delivered: false }
    }

    /// Whether a message for these is not to be tried.
    pub fn is_left(&self, recipients: &[String]) -> bool {
        self.of.get(&recipients.join(" ")).is_some_and(|count| *count >= MOST)
    }

    /// Whether messages were left and none was delivered: that one mailbox alone is broken is not
    /// known then.
    pub fn is_in_vain(&self) -> bool {
        !self.has_delivered && self.of.values().any(|count| *count >= MOST)
    }

    /// Counts a message's end; whether no further one is to be tried. `account`: whose mailbox it
    /// was, as far as that is known.
    pub fn ends(&mut self, why: EndMeaning, recipients: &[String], account: &str) -> bool {
        match why {
            EndMeaning::Delivered => {
                self.has_delivered = true;
                self.in_a_row.clear();
                self.of.remove(&recipients.join(" "));
                false
            }
            EndMeaning::ForNow => {
                *self.in_a_row.entry(account.to_owned()).or_default() += 1;
                *self.of.entry(recipients.join(" ")).or_default() += 1;
                let most = if self.is_for_one { MOST } else { MOST_OF_ONE };
                self.in_a_row.values().map(|count| (*count).min(most)).sum::<u32>() >= MOST
            }
            EndMeaning::NoLedger => true,
            EndMeaning::OfIts | EndMeaning::Held => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing(failed: &mut FailedForNow, name: &str, count: u32) -> bool {
        let recipients = [format!("{name}@x")];
        (0..count).any(|_| failed.ends(EndMeaning::ForNow, &recipients, name))
    }

    #[test]
    fn one_broken_mailbox_leaves_its_own_messages_and_ends_nothing() {
        let (doug, zoe) = (["doug@x".to_owned()], ["zoe@x".to_owned()]);
        let mut failed = FailedForNow::new(false);
        assert!(!failing(&mut failed, "doug", 9) && !failed.is_left(&doug));
        assert!(!failing(&mut failed, "doug", 91));
        assert!(failed.is_left(&doug) && !failed.is_left(&zoe) && failed.is_in_vain());
        // Two others are broken as well.
        assert!(!failing(&mut failed, "max", 100) && !failing(&mut failed, "zoe", 9));
        assert!(!failed.ends(EndMeaning::Delivered, &zoe, "zoe"));
        assert!(!failing(&mut failed, "zoe", 9) && !failed.is_left(&zoe));
        assert!(failed.is_left(&doug), "it was not delivered to");
        assert!(!failed.is_in_vain());
    }

    #[test]
    fn a_store_that_is_away_ends_the_run() {
        let mut failed = FailedForNow::new(false);
        assert!(["doug", "max", "ann"].iter().all(|name| !failing(&mut failed, name, 100)));
        assert!(failing(&mut failed, "zoe", 1));
        let mut failed = FailedForNow::new(false);
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        assert!(names.iter().all(|name| !failing(&mut failed, name, 1)));
        assert!(failing(&mut failed, "j", 1));
        let mut failed = FailedForNow::new(true);
        assert!(!failing(&mut failed, "doug", 9) && failing(&mut failed, "doug", 1));
        assert!(FailedForNow::new(false).ends(EndMeaning::NoLedger, &[], ""));
    }
}
