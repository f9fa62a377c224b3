//! The log record of a delivery to one recipient; the command and the LMTP server write the same
//! one. Queue id, recipient and Message-ID are in the text as well as in fields, because rsyslog
//! and grep see only the text; they are quoted there, so that none of them says how it ended.

use std::time::Duration;

use crate::telemetry::Priority;
use onedrop_core::deliver::{Phases, Placed};
use onedrop_core::outcome::{Outcome, Reason};
use onedrop_core::receipt::Receipt;
use onedrop_core::text::quoted;

/// The outcome for one recipient. Unknown values are `None` or empty, and get no field.
#[derive(Debug, Default)]
pub struct DeliveryLogRecord<'a> {
    pub queue_id: &'a str,
    pub sender: &'a str,
    pub recipient: &'a str,
    pub message_id: Option<&'a [u8]>,
    /// The recipient's account.
    pub account: Option<&'a str>,
    /// The recipient's own copy, if it is placed.
    pub own: Option<&'a Placed>,
    /// Another message has the same Message-ID.
    pub collision: bool,
    pub took: Option<Duration>,
    pub phases: Option<&'a Phases>,
    pub reason: Option<Reason>,
    /// The configuration file by which it was put off, where no ledger has it on record:
    /// `status/unrecorded.rs` finds it by that.
    pub unrecorded: Option<&'a str>,
    /// Prefix of the outcome's text, such as `handed over: `.
    pub by: &'a str,
}

impl DeliveryLogRecord<'_> {
    /// Writes the record with the outcome's priority.
    pub fn log(&self, outcome: &Outcome) {
        let message_id = self.message_id.map(String::from_utf8_lossy).unwrap_or_default();
        let receipt = self.own.map(|own| &own.receipt);
        let uid = receipt.and_then(Receipt::as_uid).map(|(_, uid)| uid);
        let file = receipt.and_then(Receipt::as_name);
        let phase = |of: fn(&Phases) -> Duration| self.phases.map(|phases| millis(of(phases)));
        let (queue_id, status) =
            (if self.queue_id.is_empty() { "NOQUEUE" } else { self.queue_id }, outcome.status());
        tracing::info!(
            priority = Priority::of(outcome) as u64,
            message_id = %message_id,
            queue_id = self.queue_id,
            recipient = self.recipient,
            sender = self.sender,
            account = self.account,
            mailbox = self.own.map(|own| own.destination.place()),
            instead_of = self.own.and_then(|own| own.instead_of.as_deref()),
            uid,
            file,
            how = self.own.map(|own| own.how.name()),
            outcome = outcome.name(),
            reason = self.reason.map(Reason::word),
            %status,
            collision = self.collision,
            unrecorded = self.unrecorded,
            milliseconds = self.took.map(|took| took.as_millis() as u64),
            lock_ms = phase(|phases| phases.lock),
            record_ms = phase(|phases| phases.record),
            append_ms = phase(|phases| phases.append),
            commit_ms = phase(|phases| phases.commit),
            "{}: to={} message-id={} {} {status}: {}{}",
            quoted(queue_id),
            quoted(&format!("<{}>", self.recipient)),
            quoted(&message_id),
            outcome.name(),
            self.by,
            outcome.text()
        );
    }
}

/// Milliseconds, to the microsecond.
fn millis(took: Duration) -> f64 {
    (took.as_secs_f64() * 1e6).round() / 1e3
}
