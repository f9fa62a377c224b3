//! APPEND, with its point of no return. The command and the literal go out first; the CRLF that ends the command makes
//! the server execute it (RFC 3501 section 6.3.11), so up to there certainly nothing is stored: whatever happens, the
//! connection is closed and the literal with it. From there on only a tagged answer tells; all else is in doubt.
//! A large message is announced and waits for the server's `+`, also where LITERAL+ would spare the round trip: a
//! missing mailbox or a full one is then known before the upload. The message is streamed from the caller's bytes.

use crate::deadline::Deadline;
use crate::store::{Copy, Receipt};

use super::session::{Answer, Capabilities, Event, Refusal, Session, Trouble};
use super::syntax;

/// Messages above this size wait for the server's `+`.
const ANNOUNCED_BYTES: usize = 1024 * 1024;
/// RFC 7888: LITERAL- takes non-synchronising literals up to this size.
const LITERAL_MINUS_BYTES: usize = 4096;

/// Why a copy was not appended.
#[derive(Debug)]
pub enum AppendTrouble {
    /// Certainly not stored: the server answered NO or BAD.
    Refused(Refusal),
    /// Certainly not stored.
    NotStored(String),
    /// Certainly not stored: nobody may write for this account.
    NoAccount(String),
    /// Certainly not stored: larger than this limit.
    TooBig { size: u64, limit: u64 },
    /// The server may have taken it.
    InDoubt(String),
}

impl From<Trouble> for AppendTrouble {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Refused(refusal) => AppendTrouble::Refused(refusal),
            Trouble::Broken(why) => AppendTrouble::NotStored(why),
        }
    }
}

/// Appends `copy` to `mailbox` (as it is in a command), with `\Seen` if it is `seen`.
///
/// # Errors
/// See [`AppendTrouble`]. The session is closed wherever it may be out of step.
pub fn append(
    session: &mut Session,
    mailbox: &str,
    seen: bool,
    copy: &Copy<'_>,
    deadline: &Deadline,
) -> Result<Receipt, AppendTrouble> {
    let size = syntax::literal_size(copy.head) + syntax::literal_size(copy.bytes);
    if let Some(limit) = session.capabilities().append_limit().filter(|limit| size as u64 > *limit) {
        return Err(AppendTrouble::TooBig { size: size as u64, limit });
    }
    let plus = if waits_for_plus(session.capabilities(), size) { "" } else { "+" };
    let flags = if seen { " (\\Seen)" } else { "" };
    let date = syntax::date_time(copy.recorded_at);
    let tag = session.queue(&format!("APPEND {mailbox}{flags} \"{date}\" {{{size}{plus}}}"), deadline.end())?;
    if plus.is_empty() {
        wait_for_plus(session, &tag)?;
    }
    send_literal(session, &tag, copy)?;
    nothing_said_yet(session, &tag)?;
    if let Err(too_late) = deadline.pass_point_of_no_return() {
        return Err(AppendTrouble::NotStored(session.close(too_late)));
    }
    let outcome = finish(session, &tag, deadline);
    if !matches!(outcome, Ok(_) | Err(AppendTrouble::InDoubt(_))) {
        deadline.answered();
    }
    outcome
}

fn waits_for_plus(capabilities: &Capabilities, size: usize) -> bool {
    let at_once = if capabilities.has("LITERAL+") {
        ANNOUNCED_BYTES
    } else if capabilities.has("LITERAL-") || capabilities.has("IMAP4REV2") {
        LITERAL_MINUS_BYTES
    } else {
        return true;
    };
    size > at_once
}

fn wait_for_plus(session: &mut Session, tag: &str) -> Result<(), AppendTrouble> {
    let event = session.wire().send().map_err(|error| error.to_string()).and_then(|()| session.next(tag));
    match event {
        Ok(Event::GoOn) => Ok(()),
        // Instead of `+`: the command is over, and the session can go on.
        Ok(Event::Refused(refusal)) => Err(AppendTrouble::Refused(refusal)),
        Ok(Event::Done(_)) => {
            Err(AppendTrouble::NotStored(session.close("the server said OK to a message it has not got")))
        }
        Err(why) => Err(AppendTrouble::NotStored(session.close(why))),
    }
}

fn send_literal(session: &mut Session, tag: &str, copy: &Copy<'_>) -> Result<(), AppendTrouble> {
    let wire = session.wire();
    let sent = syntax::literal_form(copy.head, |piece| wire.put(piece))
        .and_then(|()| syntax::literal_form(copy.bytes, |piece| wire.put(piece)))
        .and_then(|()| wire.send());
    let Err(error) = sent else { return Ok(()) };
    // A server that hangs up in the middle may have said why.
    let refusal = match session.early(tag) {
        Ok(Some(Event::Refused(refusal))) => Some(refusal),
        _ => None,
    };
    let why = session.close(format!("sending the message: {error}"));
    Err(refusal.map_or(AppendTrouble::NotStored(why), AppendTrouble::Refused))
}

/// An answer to a command that is not complete yet: a refusal is final; an OK proves nothing, but a server that says it
/// may have stored the literal, so the copy is in doubt.
fn nothing_said_yet(session: &mut Session, tag: &str) -> Result<(), AppendTrouble> {
    let trouble = match session.early(tag) {
        Ok(None) => return Ok(()),
        Ok(Some(Event::Refused(refusal))) => {
            session.close("refused early");
            AppendTrouble::Refused(refusal)
        }
        Ok(Some(_)) => AppendTrouble::InDoubt(session.close("the server answered before the command was complete")),
        Err(why) => AppendTrouble::NotStored(session.close(why)),
    };
    Err(trouble)
}

/// Sends the last bytes and waits for the answer.
fn finish(session: &mut Session, tag: &str, deadline: &Deadline) -> Result<Receipt, AppendTrouble> {
    let sent = session.wire().put(b"\r\n").and_then(|()| session.wire().send());
    session.wire().wait_until(deadline.answer_until());
    let event = sent.map_err(|error| error.to_string()).and_then(|()| session.next(tag));
    match event {
        Ok(Event::Done(answer)) => Ok(receipt(&answer)),
        Ok(Event::Refused(refusal)) => Err(AppendTrouble::Refused(refusal)),
        Ok(Event::GoOn) => Err(AppendTrouble::InDoubt(session.close("the server wants more of a complete command"))),
        Err(why) => Err(AppendTrouble::InDoubt(session.close(why))),
    }
}

/// APPENDUID (RFC 4315) where it names one message; servers were seen that leave it out or get it wrong.
fn receipt(answer: &Answer) -> Receipt {
    let Some((name, arguments)) = &answer.code else { return Receipt::Unnamed };
    let numbers = arguments.split_once(' ').map(|(validity, uid)| (validity.parse::<u32>(), uid.parse::<u32>()));
    match numbers {
        Some((Ok(validity), Ok(uid))) if name == "APPENDUID" && validity > 0 && uid > 0 => {
            Receipt::Uid { validity, uid }
        }
        _ => Receipt::Unnamed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_pair_of_numbers_is_a_receipt() {
        let of = |name: &str, arguments: &str| {
            receipt(&Answer { code: Some((name.to_owned(), arguments.to_owned())), responses: Vec::new() })
        };
        assert_eq!(of("APPENDUID", "7 42"), Receipt::Uid { validity: 7, uid: 42 });
        for odd in ["", "7", "0 42", "7 0", "7 42:43", "7 42,43", "7 -1", "7 42 1", "7 4294967296", "x y"] {
            assert_eq!(of("APPENDUID", odd), Receipt::Unnamed, "{odd}");
        }
        assert_eq!(of("COPYUID", "7 42"), Receipt::Unnamed);
        assert_eq!(receipt(&Answer::default()), Receipt::Unnamed);
    }

    #[test]
    fn who_waits_for_the_plus() {
        let waits = |list: &str, size| waits_for_plus(&Capabilities::parse(list), size);
        assert!(!waits("LITERAL+", ANNOUNCED_BYTES) && waits("LITERAL+", ANNOUNCED_BYTES + 1));
        assert!(!waits("LITERAL-", 4096) && waits("LITERAL-", 4097));
        assert!(waits("IMAP4REV1", 1));
    }
}
