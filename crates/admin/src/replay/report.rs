//! How the delivery of a message from a file ended, and what that means for those that follow.

use onedrop_core::deliver::{Ending, How};
use onedrop_core::outcome::{Outcome, Reason};

/// How the delivery of a message ended.
#[derive(Debug)]
pub struct FileReport {
    pub place: String,
    pub message_id: Option<Vec<u8>>,
    pub recipients: Vec<String>,
    /// Whose mailbox decided how it ended; the recipients, where no account was found.
    pub account: String,
    pub state: FileState,
    /// Where the copies are, or why not.
    pub text: String,
}

/// In a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileState {
    WouldBeDelivered,
    Stored,
    Found,
    AlreadyThere,
    Failed,
}

impl FileState {
    pub fn name(self) -> &'static str {
        match self {
            FileState::WouldBeDelivered => "would be delivered",
            FileState::Stored => How::Stored.name(),
            FileState::Found => How::Found.name(),
            FileState::AlreadyThere => How::AlreadyThere.name(),
            FileState::Failed => "failed",
        }
    }
}

/// What a message's end means for the others; of several recipients' ends the last one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndMeaning {
    Delivered,
    /// It is about this message, or its account, alone.
    OfIts,
    /// Another delivery has it, or had it when it was killed.
    Held,
    /// Others may well fail so.
    ForNow,
    /// Every message fails so.
    NoLedger,
}

impl EndMeaning {
    pub fn of(ending: &Ending) -> EndMeaning {
        let Outcome::TempFail(..) = ending.outcome else {
            let is_delivered = matches!(ending.outcome, Outcome::Delivered(_));
            return if is_delivered { EndMeaning::Delivered } else { EndMeaning::OfIts };
        };
        match ending.reason {
            Some(
                Reason::LedgerDown
                | Reason::LedgerLogin
                | Reason::LedgerDenied
                | Reason::LedgerBusy
                | Reason::LedgerSlow
                | Reason::LedgerBroken
                | Reason::Schema
                | Reason::OtherConfig
                | Reason::Clock,
            ) => EndMeaning::NoLedger,
            Some(Reason::Contended | Reason::LooksBack | Reason::InDoubt | Reason::Forgotten) => {
                EndMeaning::Held
            }
            Some(
                Reason::NoAccount
                | Reason::AccountGone
                | Reason::AddressGone
                | Reason::OverQuota
                | Reason::MailboxRefused
                | Reason::NoRecipient
                | Reason::TooLarge
                | Reason::TooLargeForStore
                | Reason::Rejected
                | Reason::UnknownUser
                | Reason::Cut
                | Reason::Input
                | Reason::Internal,
            ) => EndMeaning::OfIts,
            // A user database says "not now" of one user, and of each one while what it asks is
            // away: the two look the same, so that counts as well.
            Some(Reason::Directory)
            | Some(
                Reason::Deadline
                | Reason::StoreDown
                | Reason::StoreSetup
                | Reason::LedgerRefused
                | Reason::Setup
                | Reason::Server,
            ) => EndMeaning::ForNow,
            Some(Reason::Delivered | Reason::Kept | Reason::Due) | None => EndMeaning::ForNow,
        }
    }
}

/// How it ended for all recipients.
pub fn ended(
    report: FileReport,
    recipients: &[String],
    endings: &[Ending],
) -> (FileReport, EndMeaning) {
    let outcomes = endings.iter().map(|ending| ending.outcome.clone());
    let named: Vec<_> = recipients.iter().map(String::as_str).zip(outcomes).collect();
    let outcome = Outcome::of_all(&named);
    let decides = |ending: &&Ending| ending.outcome.name() == outcome.name();
    let why = endings.iter().filter(decides).map(EndMeaning::of).max();
    let has = |how| endings.iter().filter_map(|one| one.own.as_ref()).any(|own| own.how == how);
    let state = match outcome {
        Outcome::Delivered(_) if has(How::Stored) => FileState::Stored,
        Outcome::Delivered(_) if has(How::Found) => FileState::Found,
        Outcome::Delivered(_) => FileState::AlreadyThere,
        Outcome::TempFail(..) | Outcome::PermFail(..) => FileState::Failed,
    };
    let account = endings.iter().find(decides).and_then(|ending| ending.account.clone());
    let account = account.unwrap_or(report.account);
    let why = why.unwrap_or(EndMeaning::OfIts);
    (FileReport { state, text: told(&outcome), account, ..report }, why)
}

/// With the status where it failed.
pub fn told(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Delivered(_) => outcome.text().into_owned(),
        Outcome::TempFail(status, text) | Outcome::PermFail(status, text) => {
            format!("{status} {text}")
        }
    }
}

/// There is no message to deliver.
pub fn unreadable(place: String, text: String) -> FileReport {
    let (message_id, recipients, account) = (None, Vec::new(), String::new());
    FileReport { place, message_id, recipients, account, state: FileState::Failed, text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onedrop_core::deliver::Failure;
    use onedrop_core::directory::UserdbError;
    use onedrop_core::store::StoreError;

    fn ending(error: fn(String) -> StoreError) -> Ending {
        Failure::Store(error("why".to_owned())).ending()
    }

    #[test]
    fn a_user_database_that_says_not_now_may_say_so_of_all() {
        for error in [UserdbError::NotNow, UserdbError::Away] {
            let ending = Failure::Userdb(error("why".to_owned())).ending();
            assert_eq!(EndMeaning::of(&ending), EndMeaning::ForNow);
        }
    }

    #[test]
    fn what_one_account_does_not_take_others_may() {
        for error in [StoreError::OverQuota, StoreError::Refused, StoreError::NoAccount] {
            assert_eq!(EndMeaning::of(&ending(error)), EndMeaning::OfIts);
        }
        for error in [StoreError::NotStored, StoreError::Setup] {
            assert_eq!(EndMeaning::of(&ending(error)), EndMeaning::ForNow);
            let recipients = ["ann@x", "doug@x"].map(str::to_owned);
            let endings = [ending(StoreError::OverQuota), ending(error)];
            let report = unreadable("place".to_owned(), String::new());
            assert_eq!(ended(report, &recipients, &endings).1, EndMeaning::ForNow);
        }
    }
}
