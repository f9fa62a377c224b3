//! Why a delivery failed, and what that means for the mail. This is the one place that decides
//! between temporary and permanent, by an exhaustive match. What we do not understand is temporary:
//! Postfix can try again, but a bounce cannot be taken back. Permanent are an unknown recipient, a
//! message that is too large or that the mailbox's owner rejects, and what the configuration asks
//! for (`store.over_quota`, `directory.unknown_account`), which is read here alone. A mailbox that
//! had mail and is unknown now is a fault of the set-up.

use std::time::Instant;

use super::request::{Ending, Policy, note};
use crate::directory::UserdbError;
use crate::ledger::{Ledger, LedgerError};
use crate::outcome::{Outcome, OverQuota, Reason, Status, UnknownAccount};
use crate::store::StoreError;
use crate::text::quoted;
use crate::text::shell::word;

/// Why a copy of a recipient's mail, or all of it, could not be placed in this run.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("unknown recipient {}", quoted(.0))]
    UnknownRecipient(String),
    #[error("message is larger than limits.message_bytes = {limit}")]
    TooLarge { limit: u64 },
    #[error(
        "no recipient: give -d, or RECIPIENT in the environment, or a Delivered-To field above the \
         first Received field"
    )]
    NoRecipient,
    #[error("message was cut short: {0}")]
    Cut(String),
    #[error("cannot read the message: {0}")]
    Input(String),
    #[error("another delivery of this message holds {0}; try again")]
    Contended(String),
    /// The mailbox was not read to its end yet, for a copy that may be older than its row.
    #[error("looking for an earlier copy: {0}; try again")]
    LooksBack(String),
    #[error("deadline of {secs} s passed while {doing}")]
    Deadline { secs: u64, doing: String },
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("ledger: {0}")]
    Ledger(#[from] LedgerError),
    /// Of the server that `directory.query` asks, where it is not the ledger's.
    #[error("directory.url: {0}")]
    Directory(LedgerError),
    /// Of the user database that `directory.userdb` names.
    #[error("directory.userdb: {0}")]
    Userdb(#[from] UserdbError),
    /// The mailbox is over its quota, and such mail is returned (`store.over_quota`).
    #[error("store: over quota: {0}")]
    MailboxFull(String),
    /// The mail server does not know the account, and is believed (`directory.unknown_account`).
    #[error("the mail server has no account={account}: {why}")]
    NoSuchAccount { account: String, why: String },
    /// An account that had mail, and is unknown now.
    #[error(
        "account={account} has mail on record and is unknown now: {why}; if it is closed for good: \
         onedrop forget --account={}",
        word(.account)
    )]
    AccountGone { account: String, why: String },
    /// An address that had mail, and is unknown now.
    #[error(
        "{address} (account={account}) has mail on record and is unknown now: {why}; if the \
         address is closed for good, let Postfix refuse it"
    )]
    AddressGone { address: String, account: String, why: String },
    /// All copies are placed, and only the record of the attempt's end is missing.
    #[error(
        "all is placed, which the next try will find, but this try's end is not on record: {0}"
    )]
    NotOnRecord(LedgerError),
    /// The server that was to deliver did not say where the message is.
    #[error("{0}")]
    Server(String),
    #[error("{0}")]
    Setup(String),
    #[error("internal error: {0}")]
    Internal(String),
}

impl Failure {
    /// Decides whether it is temporary or permanent.
    pub fn outcome(&self) -> Outcome {
        let text = self.to_string();
        match self {
            Failure::UnknownRecipient(_) | Failure::NoSuchAccount { .. } => {
                Outcome::PermFail(Status::UNKNOWN_MAILBOX, text)
            }
            Failure::Store(StoreError::Rejected(_)) => {
                Outcome::PermFail(Status::REJECTED_BY_OWNER, text)
            }
            Failure::TooLarge { .. } => Outcome::PermFail(Status::TOO_BIG, text),
            Failure::MailboxFull(_) => Outcome::PermFail(Status::MAILBOX_FULL_FOR_GOOD, text),
            Failure::Store(StoreError::OverQuota(_)) => {
                Outcome::TempFail(Status::MAILBOX_FULL, text)
            }
            Failure::Store(StoreError::TooBig(_)) => {
                Outcome::TempFail(Status::MAILBOX_REFUSES_SIZE, text)
            }
            Failure::Store(StoreError::Setup(_))
            | Failure::Userdb(UserdbError::Setup(_))
            | Failure::AccountGone { .. }
            | Failure::AddressGone { .. }
            | Failure::Setup(_)
            | Failure::NoRecipient => Outcome::TempFail(Status::OUR_SETUP, text),
            Failure::Ledger(error) | Failure::Directory(error) | Failure::NotOnRecord(error) => {
                Outcome::TempFail(status_of(error), text)
            }
            Failure::Store(
                StoreError::NotStored(_)
                | StoreError::Refused(_)
                | StoreError::NoAccount(_)
                | StoreError::Contended(_)
                | StoreError::InDoubt(_),
            )
            | Failure::Userdb(UserdbError::Away(_) | UserdbError::NotNow(_))
            | Failure::Cut(_)
            | Failure::Input(_)
            | Failure::Contended(_)
            | Failure::LooksBack(_)
            | Failure::Deadline { .. }
            | Failure::Server(_)
            | Failure::Internal(_) => Outcome::TempFail(Status::TEMPORARY, text),
        }
    }

    /// The reason in a word: the variant decides.
    pub fn reason(&self) -> Reason {
        match self {
            Failure::UnknownRecipient(_) => Reason::UnknownUser,
            Failure::NoSuchAccount { .. } | Failure::Store(StoreError::NoAccount(_)) => {
                Reason::NoAccount
            }
            Failure::AccountGone { .. } => Reason::AccountGone,
            Failure::AddressGone { .. } => Reason::AddressGone,
            Failure::TooLarge { .. } => Reason::TooLarge,
            Failure::NoRecipient => Reason::NoRecipient,
            Failure::Cut(_) => Reason::Cut,
            Failure::Input(_) => Reason::Input,
            Failure::Contended(_)
            | Failure::Store(StoreError::Contended(_))
            | Failure::Ledger(LedgerError::Contended) => Reason::Contended,
            Failure::LooksBack(_) => Reason::LooksBack,
            Failure::Deadline { .. } => Reason::Deadline,
            Failure::Store(StoreError::NotStored(_)) => Reason::StoreDown,
            Failure::Store(StoreError::Setup(_)) => Reason::StoreSetup,
            Failure::Store(StoreError::Refused(_)) => Reason::MailboxRefused,
            Failure::Store(StoreError::OverQuota(_)) | Failure::MailboxFull(_) => Reason::OverQuota,
            Failure::Store(StoreError::TooBig(_)) => Reason::TooLargeForStore,
            Failure::Store(StoreError::Rejected(_)) => Reason::Rejected,
            Failure::Store(StoreError::InDoubt(_)) => Reason::InDoubt,
            Failure::NotOnRecord(error) => Failure::Ledger(error.clone()).reason(),
            Failure::Ledger(LedgerError::Version(_)) => Reason::Schema,
            Failure::Ledger(LedgerError::OtherConfig(_)) => Reason::OtherConfig,
            Failure::Ledger(LedgerError::Unavailable(_)) => Reason::LedgerDown,
            Failure::Ledger(LedgerError::Login(_)) => Reason::LedgerLogin,
            Failure::Ledger(LedgerError::Denied(_)) => Reason::LedgerDenied,
            Failure::Ledger(LedgerError::Busy(_)) => Reason::LedgerBusy,
            Failure::Ledger(LedgerError::TookTooLong(_)) => Reason::LedgerSlow,
            Failure::Ledger(LedgerError::Clock(_)) => Reason::Clock,
            Failure::Ledger(LedgerError::Refused(_)) => Reason::LedgerRefused,
            Failure::Ledger(LedgerError::Forgotten) => Reason::Forgotten,
            Failure::Ledger(LedgerError::Broken(_)) => Reason::LedgerBroken,
            Failure::Directory(_)
            | Failure::Userdb(UserdbError::Away(_) | UserdbError::NotNow(_)) => Reason::Directory,
            Failure::Userdb(UserdbError::Setup(_)) | Failure::Setup(_) => Reason::Setup,
            Failure::Server(_) => Reason::Server,
            Failure::Internal(_) => Reason::Internal,
        }
    }

    /// The end that it is for a recipient of whom nothing else is known.
    pub fn ending(&self) -> Ending {
        let (reason, unrecorded) = (Some(self.reason()), self.is_unrecorded());
        Ending { reason, unrecorded, ..Ending::of(self.outcome()) }
    }

    /// Whether the ledger was not there to keep it, or was not asked yet. One that refuses for
    /// another configuration keeps what it has refused.
    pub fn is_unrecorded(&self) -> bool {
        match self {
            Failure::Ledger(error) => !matches!(error, LedgerError::OtherConfig(_)),
            Failure::Setup(_) | Failure::Cut(_) | Failure::Input(_) | Failure::Server(_) => true,
            _ => false,
        }
    }

    /// Whether it is about this recipient alone: others of the same message may be asked about, and
    /// delivered to.
    pub fn is_of_one_recipient(&self) -> bool {
        matches!(
            self,
            Failure::AccountGone { .. }
                | Failure::AddressGone { .. }
                | Failure::Userdb(UserdbError::NotNow(_))
                | Failure::Store(StoreError::NoAccount(_))
        )
    }
}

impl Policy {
    /// What the store's error means for the mail to these addresses, whose copy in `account` it
    /// did not take.
    pub(super) fn of_store_error(
        &self,
        error: StoreError,
        (account, addresses): (&str, &[&str]),
        ledger: &dyn Ledger,
        until: Instant,
    ) -> Failure {
        match (error, self.over_quota) {
            (StoreError::OverQuota(why), OverQuota::Bounce) => Failure::MailboxFull(why),
            (StoreError::NoAccount(why), _) => {
                let past = PastMail { ledger, why: &why, until };
                let is_refused = past.none_for(account).and_then(|()| {
                    let is_certain = || past.none_to(addresses, &addresses.join(", "));
                    self.refuses_unknown(|| is_certain().map(|()| true))
                });
                match is_refused {
                    Ok(true) => Failure::NoSuchAccount { account: account.to_owned(), why },
                    Ok(false) => StoreError::NoAccount(why).into(),
                    Err(Failure::Ledger(error)) => {
                        note(Err(error));
                        StoreError::NoAccount(why).into()
                    }
                    Err(failure) => failure,
                }
            }
            (error, _) => error.into(),
        }
    }

    /// Whether mail that the store does not take for this reason goes back to its sender.
    pub(super) fn returns(&self, error: &StoreError) -> bool {
        match error {
            // A size that is refused is refused by each try, until Postfix returns the mail.
            StoreError::Rejected(_) | StoreError::TooBig(_) => true,
            StoreError::OverQuota(_) => self.over_quota == OverQuota::Bounce,
            StoreError::NoAccount(_) => self.unknown_account == UnknownAccount::Reject,
            _ => false,
        }
    }

    /// Whether an account that had no mail, and is unknown, is refused for good. Whether that is
    /// certain is asked where it counts.
    ///
    /// # Errors
    /// Those of `is_certain`.
    pub fn refuses_unknown(
        &self,
        is_certain: impl FnOnce() -> Result<bool, Failure>,
    ) -> Result<bool, Failure> {
        match self.unknown_account {
            UnknownAccount::Defer => Ok(false),
            UnknownAccount::Reject => is_certain(),
        }
    }
}

/// Asks whether an account, or an address, that is unknown now had mail. Then it is never unknown
/// for good: the set-up is at fault, or it was closed, and an administrator decides.
#[derive(Clone, Copy)]
pub struct PastMail<'a> {
    pub ledger: &'a dyn Ledger,
    /// Why it is unknown.
    pub why: &'a str,
    pub until: Instant,
}

impl PastMail<'_> {
    /// # Errors
    /// [`Failure::AccountGone`]: it had mail. Or the ledger gives no answer.
    pub fn none_for(&self, account: &str) -> Result<(), Failure> {
        match self.ledger.has_placed_copy(account, self.until)? {
            false => Ok(()),
            true => {
                let (account, why) = (account.to_owned(), self.why.to_owned());
                Err(Failure::AccountGone { account, why })
            }
        }
    }

    /// `address` stands for all of them in what is said.
    ///
    /// # Errors
    /// [`Failure::AddressGone`]: mail to one of them has reached an account. Or the ledger
    /// gives no answer.
    pub fn none_to(&self, addresses: &[&str], address: &str) -> Result<(), Failure> {
        match self.ledger.account_reached(addresses, self.until)? {
            None => Ok(()),
            Some(account) => {
                let (address, why) = (address.to_owned(), self.why.to_owned());
                Err(Failure::AddressGone { address, account, why })
            }
        }
    }
}

fn status_of(error: &LedgerError) -> Status {
    match error {
        LedgerError::Version(_)
        | LedgerError::OtherConfig(_)
        | LedgerError::Login(_)
        | LedgerError::Denied(_)
        | LedgerError::Clock(_) => Status::OUR_SETUP,
        LedgerError::Contended
        | LedgerError::Unavailable(_)
        | LedgerError::Busy(_)
        | LedgerError::TookTooLong(_)
        | LedgerError::Refused(_)
        | LedgerError::Forgotten
        | LedgerError::Broken(_) => Status::TEMPORARY,
    }
}
