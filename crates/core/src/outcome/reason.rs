//! The reason of an outcome in a word, so that outcomes can be counted: in an attempt's row, in
//! logs, as a label of metrics. The words are a closed set, and a contract with dashboards and
//! scripts: `docs/reasons.md` says what each means. Which of them a failure has, the failure's
//! variant says (`deliver/verdict.rs`), never its text.

use std::fmt;

macro_rules! reasons {
    ($($name:ident = $word:literal,)*) => {
        /// One word of the set.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($name,)*
        }

        impl Reason {
            pub const ALL: &[Reason] = &[$(Reason::$name,)*];

            /// The word.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Reason::$name => $word,)*
                }
            }
        }
    };
}

reasons! {
    Delivered = "delivered",
    Kept = "kept",
    Due = "due",
    UnknownUser = "unknown_user",
    NoAccount = "no_account",
    AccountGone = "account_gone",
    AddressGone = "address_gone",
    OverQuota = "over_quota",
    TooLarge = "too_large",
    TooLargeForStore = "too_large_for_store",
    Rejected = "rejected",
    Contended = "contended",
    LooksBack = "looks_back",
    InDoubt = "in_doubt",
    Deadline = "deadline",
    StoreDown = "store_down",
    StoreSetup = "store_setup",
    MailboxRefused = "mailbox_refused",
    LedgerDown = "ledger_down",
    LedgerLogin = "ledger_login",
    LedgerDenied = "ledger_denied",
    LedgerBusy = "ledger_busy",
    LedgerSlow = "ledger_slow",
    LedgerRefused = "ledger_refused",
    LedgerBroken = "ledger_broken",
    Schema = "schema",
    OtherConfig = "other_config",
    Clock = "clock",
    Forgotten = "forgotten",
    Directory = "directory",
    Setup = "setup",
    NoRecipient = "no_recipient",
    Cut = "cut",
    Input = "input",
    Server = "server",
    Internal = "internal",
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
