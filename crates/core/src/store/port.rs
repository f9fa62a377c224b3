//! The store port: where mailboxes live. It appends a copy and says where it now is, looks for one
//! whose fate is in doubt, and takes one out again by its receipt. It never decides whether a copy
//! is to be written: `deliver` and the ledger do.
//!
//! A store is a handle that threads share. How it keeps connections, opens them again, and writes
//! what comes at the same time is its own affair; an append is never repeated once its last bytes
//! may have gone out. Every call returns before the time it is given. What an adapter leaves after
//! a crash, and what it cannot do, stands in its header.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::{Copy, CopySearch, FoundCopy, LookBack, LookedBack, MailboxOwner, Receipt};
use super::{StoreError, Way, WitnessNames};
use crate::connections::Connections;
use crate::deadline::Deadline;
use crate::directory::Destination;

/// What holds of a store, whatever it is asked.
#[derive(Debug, Clone, Default)]
pub struct StoreTraits {
    /// Whether appending one copy (by its key) twice succeeds and leaves one copy. If a reader has
    /// renamed the first, the look finds it. Then doubt needs no waiting, only the look; and a
    /// reserved copy is locked: no other slot can be had for it, in any process.
    pub append_is_idempotent: bool,
    /// The kind of receipt by which a [look](Slot::look) can begin after an earlier copy
    /// ([`Copy::newer_than`]): its mailboxes number what comes. `None`: that does not help it.
    pub numbered_by: Option<&'static str>,
    /// Whether NUL bytes stay NUL bytes in a mailbox. Else they are 0x80 there.
    pub keeps_nul: bool,
    /// The mail server to which copies are handed over, as the configuration names it; with this
    /// host's name where that names another server on each host.
    pub hands_over_to: Option<String>,
}

/// What a delivery needs of a store.
pub trait Store: Send + Sync {
    /// Always the same.
    fn traits(&self) -> StoreTraits;

    /// [`StoreTraits::append_is_idempotent`].
    fn append_is_idempotent(&self) -> bool {
        self.traits().append_is_idempotent
    }

    /// [`StoreTraits::numbered_by`].
    fn numbered_by(&self) -> Option<&'static str> {
        self.traits().numbered_by
    }

    /// [`StoreTraits::keeps_nul`].
    fn keeps_nul(&self) -> bool {
        self.traits().keeps_nul
    }

    /// Whether a copy into `destination` goes to the mail server's own delivery, where the owner's
    /// filters run: then its [`Copy::handed`] is needed. Another mailbox than INBOX is one that the
    /// configuration asks for: no filter decides.
    fn hands_over(&self, destination: &Destination) -> bool {
        let may_be = !destination.shared && destination.place() == "INBOX";
        may_be && self.traits().hands_over_to.is_some()
    }

    /// Begins, in the background, what the first call for `account` will need. Nothing is reported
    /// here; an error shows at that call.
    fn prepare(&self, account: &str, until: Instant);

    /// Closes what is kept open for `account` and not in use: the caller waits for another process,
    /// which may need it.
    fn let_go(&self, account: &str);

    /// Reserves what writing `copy` into `destination`, or looking for it, takes. Nothing is stored
    /// before [`Slot::append`]; a slot that is dropped gives up all it holds. `Ok(None)`: another
    /// delivery has reserved this copy, or (for [`Need::Early`], which never fails) there is
    /// nothing to gain.
    ///
    /// # Errors
    /// What is needed cannot be had by the time that last bytes may go out, or this mailbox cannot
    /// be written into; nothing was written.
    fn reserve<'a>(
        &'a self,
        destination: &'a Destination,
        copy: Copy<'a>,
        need: Need,
        deadline: &'a Deadline,
    ) -> Result<Option<Box<dyn Slot + 'a>>, StoreError>;

    /// Looks for a copy that [looks back](Copy::looks_back) among all that is there now: with
    /// nothing that another delivery needs, and outside of any turn. What comes later is for the
    /// look in the turn, which [completes it](Copy::looked). `None`: that look is quick enough for
    /// all.
    ///
    /// # Errors
    /// Those of [`Slot::look`].
    fn look_back(
        &self,
        destination: &Destination,
        sought: &LookBack,
        until: Instant,
    ) -> Result<Option<LookedBack>, StoreError>;

    /// Takes out the copy that `receipt` names and nothing else; that it is gone already is no
    /// error. With `sought` it is compared once more: a fail-over that lost it may have given its
    /// number to another message. Without, the caller has just done so.
    ///
    /// # Errors
    /// [`StoreError::NotStored`]: the copy has no name by which it could be taken out alone, it is
    /// another message now, or the store did not answer.
    fn remove(
        &self,
        destination: &Destination,
        receipt: &Receipt,
        sought: Option<&CopySearch<'_>>,
        until: Instant,
    ) -> Result<(), StoreError>;
}

/// What a slot is reserved for. Every slot can look and append; the need says what to make ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// To write, perhaps, before the ledger has agreed: only what need not be waited for. The slot
    /// is for the date in its copy; where the ledger gives another one, it is dropped.
    Early,
    /// To write. What that takes may be had only when it is written.
    Write,
    /// To look, and to write where nothing is found. What the look takes (a connection, the copy's
    /// lock) is had when `reserve` returns, for the ledger's turn must not wait for it.
    Look,
}

/// A place for one copy in its mailbox, reserved by this delivery until it is dropped.
pub trait Slot {
    /// Looks for the copy, among messages not older than the day before its `recorded_at`, or,
    /// where it [looks back](Copy::looks_back), among all, or all that came since it was
    /// [looked](Copy::looked) at. A mailbox that does not exist holds no copy.
    ///
    /// # Errors
    /// Any error means that the look did not come to its end; it says nothing about the copy.
    fn look(&mut self, until: Instant) -> Result<Option<Receipt>, StoreError>;

    /// The try that wrote what the [look](Slot::look) found, of a copy that was handed over: where
    /// it has the value of this copy's row, and says so. An append after such a look is marked as
    /// one that is handed over again.
    fn found_try(&self) -> Option<i64> {
        None
    }

    /// Appends the copy with the destination's flags and `recorded_at` as its date, durably, and
    /// returns where it is. Right before the bytes that make the append take effect it calls
    /// [`Deadline::pass_point_of_no_return`]; the caller calls [`Deadline::answered`] when the
    /// outcome is on record.
    ///
    /// INBOX and mailboxes of shared copies may be made for it, others never.
    ///
    /// # Errors
    /// [`StoreError::InDoubt`]: the store may have taken it. All others: certainly nothing was
    /// written. [`StoreError::Refused`]: the mailbox is not there, or not open to us; where appends
    /// are idempotent, no other slot of this copy, in any process, can write there while this one
    /// is held.
    fn append(&mut self) -> Result<Receipt, StoreError>;

    /// Whether the copy that was appended or found stands attached to another message
    /// ([`wrapper`](crate::message::wrapper)), as the store did not take it as it came.
    fn is_wrapped(&self) -> bool {
        false
    }
}

/// What comparing mailboxes with the ledger needs.
pub trait Mailboxes: Send + Sync {
    /// Finds, for each message that is `sought`, its copies in `destination`, in the order in which
    /// they are sought, and of each the newest first: those whose identity is the sought one, among
    /// messages not older than the day before `recorded_at` (all of them, for one that looks back),
    /// and the one that `on_record` names; with `by_id`, those with its first Message-ID as well.
    /// However many are sought, the mailbox is read a few times, and not once for each. Nothing is
    /// changed, and nothing marked as read.
    /// A store whose append is idempotent need only find what has the copy's name, or its
    /// Message-ID.
    ///
    /// # Errors
    /// Those of [`Slot::look`], for all of them.
    fn find_all(
        &self,
        destination: &Destination,
        sought: &[CopySearch<'_>],
        until: Instant,
    ) -> Result<Vec<Vec<FoundCopy>>, StoreError>;

    /// Does what [`find_all`](Mailboxes::find_all) does for one message.
    fn find(
        &self,
        destination: &Destination,
        sought: &CopySearch<'_>,
        until: Instant,
    ) -> Result<Vec<FoundCopy>, StoreError> {
        let found = self.find_all(destination, std::slice::from_ref(sought), until)?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Takes out `double` and nothing else, as long as `keeper` stands beside it, not marked as
    /// deleted. That is looked at again when `double` is out of the way already; it is put back if
    /// the keeper is not there.
    ///
    /// # Errors
    /// [`StoreError::NotStored`]: the double was not taken out. It is also an error that it is no
    /// longer there by this name, or that its owner has marked it as deleted meanwhile: only
    /// another look can show what stands now.
    fn remove_double(
        &self,
        destination: &Destination,
        double: &Receipt,
        keeper: &Receipt,
        until: Instant,
    ) -> Result<(), StoreError>;

    /// Takes out `double` and nothing else, as long as `keeper`, of another try, stands in the same
    /// mailbox and is not marked as deleted. Both were found by [`CopySearch::handed`].
    ///
    /// # Errors
    /// Those of [`remove_double`](Mailboxes::remove_double).
    fn remove_handed_double(
        &self,
        account: &str,
        double: &FoundCopy,
        keeper: &FoundCopy,
        until: Instant,
    ) -> Result<(), StoreError>;
}

/// The way into the store, and what an administrator wants to know about it.
pub trait Access: Send + Sync {
    /// The way through which a server lets us write for accounts; `None` where no server stands
    /// between.
    fn way(&self) -> Option<Way>;

    /// The folder above all mailboxes, which no delivery makes; `None` where there is none, or
    /// where it is made if it is missing (`deliver.trial`).
    fn root(&self) -> Option<&Path>;

    /// The folder that is the account's alone, if it was not made yet; `None` where it is there, or
    /// only a login shows that.
    ///
    /// # Errors
    /// It cannot be found out.
    fn missing_place(&self, account: &str) -> Result<Option<PathBuf>, StoreError>;

    /// Finds out whose mailboxes a login for `account` shows, without touching the account's: for
    /// the user that logs in a mailbox may be made and deleted again. Nothing that is kept from
    /// earlier is used for it.
    ///
    /// # Errors
    /// It cannot be found out, at least not by this account.
    fn whose_mailboxes(&self, account: &str, until: Instant) -> Result<MailboxOwner, StoreError>;

    /// Whether logins for two accounts, none of them the user's that logs in, are seen to show
    /// different INBOXes. That they are not seen to says nothing. Nothing that is kept from earlier
    /// is used for it, and nothing is changed.
    ///
    /// # Errors
    /// It cannot be found out.
    fn are_apart(&self, one: &str, other: &str, until: Instant) -> Result<bool, StoreError>;

    /// Whom to ask, where a login is refused and no other account has logged in by now. Of several
    /// the first is heeded; a store without logins has no use for them.
    fn name_witnesses(&self, names: WitnessNames);

    /// Whether the mailbox is there, and its account may look into it; nothing is changed.
    ///
    /// # Errors
    /// It cannot be found out.
    fn has_mailbox(&self, destination: &Destination, until: Instant) -> Result<bool, StoreError>;

    /// A sentence: something in the account's INBOX shows that Onedrop has delivered there before,
    /// if that is cheap to see. `None` proves nothing: most copies bear no name of ours.
    ///
    /// # Errors
    /// It cannot be found out.
    fn trace_of_ours(&self, _account: &str, _until: Instant) -> Result<Option<String>, StoreError> {
        Ok(None)
    }

    /// Proves that the store can be reached and used for `account`, without writing a message;
    /// returns facts for an administrator, one a line.
    fn check(&self, account: &str, until: Instant) -> Result<Vec<String>, StoreError>;
}

/// All that an adapter is.
pub trait AnyStore: Store + Mailboxes + Access + Connections {}

impl<S: Store + Mailboxes + Access + Connections> AnyStore for S {}
