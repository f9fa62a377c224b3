//! The flow: record the message, then place each copy once, however many others try and wherever a
//! process dies. The command and the server run it. It knows no engine: the ledger gives leases,
//! turns and receipts, the store looks and appends.
//!
//! | file           | holds                                                                      |
//! |----------------|----------------------------------------------------------------------------|
//! | `protocol.rs`  | record, place, wait for others, finish; what a crash leaves: [`deliver`]   |
//! | `copy.rs`      | one copy's life: reserve, turn, look, append, confirm                      |
//! | `stand_in.rs`  | a copy whose mailbox is not there goes to INBOX                            |
//! | `left.rs`      | a sender's own copy is left for later                                      |
//! | `endings.rs`   | how it ended for each recipient, as its copies end                         |
//! | `verdict.rs`   | why it failed; temporary or permanent, and what the configuration says     |
//! | `request.rs`   | what a delivery is asked, and what it works with                           |
//! | `copy_end.rs`  | how the placing of a copy ended                                            |
//! | `named.rs`     | which copy of the message each destination means                           |
//! | `look_back.rs` | looking for a copy among all that is in a mailbox                          |
//! | `guard.rs`     | whether a copy that was handed over may be half done                       |
//!
//! `protocol.rs` calls `copy.rs`, and both call the files below them in this table; none of those
//! calls back.
//!
//! `tests/model` is a model of this protocol that is checked exhaustively, `tests/simulation` runs
//! this code under faults. The model's steps have the names used here: `begin`, `record`,
//! `take_turn`, `look`, `check`, `not stored`, `last bytes`, `OK`, `in doubt`, `confirm`, `reopen`,
//! `record in doubt`, `keep`, `undo`, `expunge`, `give_back`, `claim_busy`. A change here is made
//! there as well.

mod copy;
mod copy_end;
mod endings;
pub mod guard;
mod left;
mod look_back;
mod named;
mod protocol;
mod request;
mod stand_in;
mod verdict;

pub use copy_end::{CopyEnd, How, Left, Placed};
pub use look_back::{LookBackEnd, LookBackRequest, LookBacks};
pub use protocol::{deliver, fail, note_unrouted, place};
pub use request::{DeliveryRequest, Ending, Means, Phases, Policy, Watch};
pub use verdict::{Failure, PastMail};
