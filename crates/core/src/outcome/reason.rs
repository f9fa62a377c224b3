//! The reason of an outcome in a word, so that outcomes can be counted: in an attempt's row, in
//! logs, as a label of metrics. The words are a closed set, and a contract with dashboards and
//! scripts: `docs/reasons.md` says what each means. Which of them a failure has, the failure's
//! variant says (`deliver/verdict.rs`), never its text.

use std::fmt;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    Delivered,
    Kept,
    Due,
    UnknownUser,
    NoAccount,
    AccountGone,
    AddressGone,
    OverQuota,
    TooLarge,
    TooLargeForStore,
    Rejected,
    Contended,
    LooksBack,
    InDoubt,
    Deadline,
    StoreDown,
    StoreSetup,
    MailboxRefused,
    LedgerDown,
    LedgerLogin,
    LedgerDenied,
    LedgerBusy,
    LedgerSlow,
    LedgerRefused,
    LedgerBroken,
    Schema,
    OtherConfig,
    Clock,
    Forgotten,
    Directory,
    Setup,
    NoRecipient,
    Cut,
    Input,
    Server,
    Internal,
}

impl Reason {
    pub const ALL: [Reason; 36] = [
        Reason::Delivered,
        Reason::Kept,
        Reason::Due,
        Reason::UnknownUser,
        Reason::NoAccount,
        Reason::AccountGone,
        Reason::AddressGone,
        Reason::OverQuota,
        Reason::TooLarge,
        Reason::TooLargeForStore,
        Reason::Rejected,
        Reason::Contended,
        Reason::LooksBack,
        Reason::InDoubt,
        Reason::Deadline,
        Reason::StoreDown,
        Reason::StoreSetup,
        Reason::MailboxRefused,
        Reason::LedgerDown,
        Reason::LedgerLogin,
        Reason::LedgerDenied,
        Reason::LedgerBusy,
        Reason::LedgerSlow,
        Reason::LedgerRefused,
        Reason::LedgerBroken,
        Reason::Schema,
        Reason::OtherConfig,
        Reason::Clock,
        Reason::Forgotten,
        Reason::Directory,
        Reason::Setup,
        Reason::NoRecipient,
        Reason::Cut,
        Reason::Input,
        Reason::Server,
        Reason::Internal,
    ];

    /// The word.
    pub const fn word(self) -> &'static str {
        match self {
            Reason::Delivered => "delivered",
            Reason::Kept => "kept",
            Reason::Due => "due",
            Reason::UnknownUser => "unknown_user",
            Reason::NoAccount => "no_account",
            Reason::AccountGone => "account_gone",
            Reason::AddressGone => "address_gone",
            Reason::OverQuota => "over_quota",
            Reason::TooLarge => "too_large",
            Reason::TooLargeForStore => "too_large_for_store",
            Reason::Rejected => "rejected",
            Reason::Contended => "contended",
            Reason::LooksBack => "looks_back",
            Reason::InDoubt => "in_doubt",
            Reason::Deadline => "deadline",
            Reason::StoreDown => "store_down",
            Reason::StoreSetup => "store_setup",
            Reason::MailboxRefused => "mailbox_refused",
            Reason::LedgerDown => "ledger_down",
            Reason::LedgerLogin => "ledger_login",
            Reason::LedgerDenied => "ledger_denied",
            Reason::LedgerBusy => "ledger_busy",
            Reason::LedgerSlow => "ledger_slow",
            Reason::LedgerRefused => "ledger_refused",
            Reason::LedgerBroken => "ledger_broken",
            Reason::Schema => "schema",
            Reason::OtherConfig => "other_config",
            Reason::Clock => "clock",
            Reason::Forgotten => "forgotten",
            Reason::Directory => "directory",
            Reason::Setup => "setup",
            Reason::NoRecipient => "no_recipient",
            Reason::Cut => "cut",
            Reason::Input => "input",
            Reason::Server => "server",
            Reason::Internal => "internal",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
