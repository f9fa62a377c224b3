//! APPEND, with its point of no return. The command and the literal go out first; the CRLF that
//! ends the command makes the server execute it (RFC 3501 section 6.3.11), so up to there certainly
//! nothing is stored: whatever happens, the connection is closed and the literal with it. From
//! there on only a tagged answer decides; all else is in doubt, and so is a NO by a server that is
//! in trouble itself. A large message is announced and waits for the server's `+`, also where
//! LITERAL+ would spare the round trip: a missing mailbox or a full one is then known before the
//! upload. The message is streamed from the caller's bytes; what is small goes out in one piece
//! with its last bytes, after the look at the clock. Several small ones for one mailbox can go in
//! one command (MULTIAPPEND, RFC 3502), with one sync of the server's: all of them are stored or
//! none.

use std::slice;
use std::time::Instant;

use super::error::ImapError;
use super::session::{Capabilities, CommandOutput, Event, ImapSession, WANTS_MORE};
use super::syntax;
use super::wire::Wire;
use onedrop_core::deadline::Deadline;
use onedrop_core::store::{Copy, Receipt, StoreError};

/// Messages above this size wait for the server's `+`.
const ANNOUNCED_BYTES: usize = 1024 * 1024;
/// RFC 7888: LITERAL- takes non-synchronising literals up to this size.
const LITERAL_MINUS_BYTES: usize = 4096;

/// One message of an APPEND.
pub struct AppendMessage<'a> {
    copy: &'a Copy<'a>,
    deadline: &'a Deadline,
    /// Of its literal, in bytes.
    size: usize,
}

impl<'a> AppendMessage<'a> {
    pub fn new(copy: &'a Copy<'a>, deadline: &'a Deadline) -> AppendMessage<'a> {
        let size = syntax::literal_size(copy.head) + syntax::literal_size(copy.bytes);
        AppendMessage { copy, deadline, size }
    }

    /// The options and the announcement of the literal.
    fn announced(&self, seen: bool, plus: &str) -> String {
        let flags = if seen { " (\\Seen)" } else { "" };
        format!("{flags} \"{}\" {{{}{plus}}}", syntax::date_time(self.copy.recorded_at), self.size)
    }

    fn put(&self, wire: &Wire) -> Result<(), String> {
        syntax::literal_form(self.copy.head, |piece| wire.put(piece))?;
        syntax::literal_form(self.copy.bytes, |piece| wire.put(piece))
    }
}

/// Until when the last bytes of all may be sent.
pub fn until(messages: &[AppendMessage<'_>]) -> Instant {
    first(messages, Deadline::last_bytes)
}

fn first(messages: &[AppendMessage<'_>], when: fn(&Deadline) -> Instant) -> Instant {
    let times = messages.iter().map(|message| when(message.deadline));
    times.min().unwrap_or_else(Instant::now)
}

/// Whether the server takes `messages` in one command.
fn take_together(capabilities: &Capabilities, messages: &[AppendMessage<'_>]) -> bool {
    let limit = capabilities.append_limit().unwrap_or(u64::MAX);
    // An empty literal would be a wish to stop.
    let small = |message: &AppendMessage<'_>| {
        message.size > 0
            && message.size as u64 <= limit
            && !waits_for_plus(capabilities, message.size)
    };
    capabilities.has("MULTIAPPEND") && messages.iter().all(small)
}

/// Appends `messages` (one, or small ones) to `mailbox` (as it is in a command), with `\Seen` if
/// `seen`; returns a receipt for each.
///
/// # Errors
/// That of all. The session is closed wherever it may be out of step.
pub fn append(
    session: &mut ImapSession,
    mailbox: &str,
    seen: bool,
    messages: &[AppendMessage<'_>],
) -> Result<Vec<Receipt>, ImapError> {
    if messages.len() > 1 && !take_together(session.capabilities(), messages) {
        return Err(ImapError::not_stored("not taken in one command"));
    }
    let tag = begin(session, mailbox, seen, messages, until(messages))?;
    complete(session, &tag, messages)
}

/// Puts everything but the last bytes on the wire, until `until`; small messages stay unsent.
/// Returns the command's tag.
///
/// # Errors
/// Those of [`append`]; never in doubt.
fn begin(
    session: &mut ImapSession,
    mailbox: &str,
    seen: bool,
    messages: &[AppendMessage<'_>],
    until: Instant,
) -> Result<String, ImapError> {
    let [first, others @ ..] = messages else {
        return Err(ImapError::not_stored("nothing to append"));
    };
    let (size, limit) = (first.size as u64, session.capabilities().append_limit());
    if let Some(limit) = limit.filter(|limit| size > *limit) {
        let why = format!("{size} bytes, the server's APPENDLIMIT is {limit}");
        return Err(ImapError::Final(StoreError::TooBig, why));
    }
    let plus = if waits_for_plus(session.capabilities(), first.size) { "" } else { "+" };
    let tag = session.queue(&format!("APPEND {mailbox}{}", first.announced(seen, plus)), until)?;
    if plus.is_empty() {
        wait_for_plus(session, &tag)?;
    }
    let wire = session.wire();
    let put = first.put(wire).and_then(|()| {
        others.iter().try_for_each(|message| {
            wire.put(format!("{}\r\n", message.announced(seen, plus)).as_bytes())?;
            message.put(wire)
        })
    });
    put.map_err(|why| not_sent(session, &tag, &why))?;
    Ok(tag)
}

/// Begins the append of one small message and sends what is not the last bytes, so that the server
/// can work on it. Waits for no longer than `until`.
///
/// # Errors
/// Those of [`append`], never in doubt; also where the server would have to be waited for.
pub fn begin_early(
    session: &mut ImapSession,
    mailbox: &str,
    seen: bool,
    message: &AppendMessage<'_>,
    until: Instant,
) -> Result<String, ImapError> {
    if waits_for_plus(session.capabilities(), message.size) {
        return Err(ImapError::not_stored("the server is to be waited for"));
    }
    let tag = begin(session, mailbox, seen, slice::from_ref(message), until)?;
    session.wire().send().map_err(|why| not_sent(session, &tag, &why))?;
    Ok(tag)
}

/// Ends what was begun as `tag`: looks at the clock, sends the last bytes and waits for the answer.
///
/// # Errors
/// Those of [`append`].
pub fn complete(
    session: &mut ImapSession,
    tag: &str,
    messages: &[AppendMessage<'_>],
) -> Result<Vec<Receipt>, ImapError> {
    session.wire().wait_until(until(messages));
    // What is small goes out in one piece, and until then nothing has.
    if session.wire().has_sent() {
        session.wire().send().map_err(|why| not_sent(session, tag, &why))?;
        nothing_said_yet(session, tag)?;
    }
    for (at, message) in messages.iter().enumerate() {
        if let Err(too_late) = message.deadline.pass_point_of_no_return() {
            answered(&messages[..at]);
            return Err(ImapError::not_stored(session.close(too_late)));
        }
    }
    finish(session, tag, messages)
}

/// The watchdog need not wait for them.
fn answered(messages: &[AppendMessage<'_>]) {
    messages.iter().for_each(|message| message.deadline.answered());
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

fn wait_for_plus(session: &mut ImapSession, tag: &str) -> Result<(), ImapError> {
    match session.answer(tag) {
        Ok(Event::GoOn) => Ok(()),
        // Instead of `+`: the command is over, and the session can go on.
        Ok(Event::Refused(no)) => Err(ImapError::Refused(no)),
        Ok(Event::Done(_)) => Err(session.lost("the server said OK to a message it has not got")),
        Err(why) => Err(session.lost(why)),
    }
}

/// A server that hangs up in the middle may have said why.
fn not_sent(session: &mut ImapSession, tag: &str, why: &str) -> ImapError {
    let said = session.early(Some(tag));
    let lost = session.lost(format!("sending the message: {why}"));
    match said {
        Ok(Some(Event::Refused(no))) => ImapError::Refused(no),
        _ => lost,
    }
}

/// An answer to a command that is not complete yet: a refusal is final; an OK proves nothing, but a
/// server that says it may have stored the literal, so the copy is in doubt.
fn nothing_said_yet(session: &mut ImapSession, tag: &str) -> Result<(), ImapError> {
    let error = match session.early(Some(tag)) {
        Ok(None) => return Ok(()),
        Ok(Some(Event::Refused(no))) => {
            session.close("refused early");
            ImapError::Refused(no)
        }
        Ok(Some(_)) => {
            in_doubt(session.close("the server answered before the command was complete"))
        }
        Err(why) => session.lost(why),
    };
    Err(error)
}

/// Codes of a NO (RFC 5530) by a server that is in trouble itself, and may have failed after it
/// stored the message: Dovecot answers SERVERBUG when it cannot get a lock, also the one that it
/// takes last.
const UNSURE: [&str; 3] = ["SERVERBUG", "INUSE", "UNAVAILABLE"];

/// Sends the last bytes and waits for the answer. They have the time that is kept for it, so that
/// what was in time when the clock was looked at is not cut off in the middle; one whose deadline
/// has passed by now is not sent.
fn finish(
    session: &mut ImapSession,
    tag: &str,
    messages: &[AppendMessage<'_>],
) -> Result<Vec<Receipt>, ImapError> {
    session.wire().wait_until(first(messages, Deadline::end));
    let sent = session.wire().put(b"\r\n").and_then(|()| session.wire().send());
    session.wire().wait_until(first(messages, Deadline::answer_until));
    match sent.and_then(|()| session.answer(tag)) {
        Ok(Event::Done(answer)) => Ok(receipts(&answer, messages.len())),
        Ok(Event::Refused(no)) if UNSURE.contains(&no.code.as_str()) => Err(in_doubt(no.text)),
        Ok(Event::Refused(no)) => {
            answered(messages);
            Err(ImapError::Refused(no))
        }
        Ok(Event::GoOn) => Err(in_doubt(session.close(WANTS_MORE))),
        Err(why) => Err(in_doubt(session.close(why))),
    }
}

fn in_doubt(why: String) -> ImapError {
    ImapError::Final(StoreError::InDoubt, why)
}

/// APPENDUID (RFC 4315, section 3) where it names as many messages as there are, in their order;
/// servers were seen that leave it out or get it wrong.
fn receipts(answer: &CommandOutput, count: usize) -> Vec<Receipt> {
    let named = answer.code.as_ref().filter(|(name, _)| name == "APPENDUID");
    named
        .and_then(|(_, arguments)| uid_receipts(arguments, count))
        .unwrap_or_else(|| vec![Receipt::UNNAMED; count])
}

/// A UIDVALIDITY and a set of exactly `count` UIDs that rise, as those of messages appended
/// together do.
fn uid_receipts(arguments: &str, count: usize) -> Option<Vec<Receipt>> {
    let (validity, set) = arguments.split_once(' ')?;
    let validity = validity.parse::<u32>().ok().filter(|validity| *validity > 0)?;
    let mut uids = Vec::with_capacity(count);
    for range in set.split(',') {
        let (from, to) = range.split_once(':').unwrap_or((range, range));
        let (from, to) = (from.parse::<u32>().ok()?, to.parse::<u32>().ok()?);
        let last = uids.last().copied().unwrap_or(0);
        if from <= last || to < from || (to - from) as usize >= count - uids.len() {
            return None;
        }
        uids.extend(from..=to);
    }
    let receipts = uids.into_iter().map(|uid| Receipt::uid(validity, uid)).collect::<Vec<_>>();
    (receipts.len() == count).then_some(receipts)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use onedrop_core::lock_key::Hash;
    use onedrop_core::message::{DedupBy, Message};

    #[test]
    fn messages_appended_together_have_a_receipt_each_or_none_has() {
        let uids = |uids: &[u32]| Some(uids.iter().map(|uid| Receipt::uid(7, *uid)).collect());
        assert_eq!(uid_receipts("7 42", 1), uids(&[42]));
        assert_eq!(uid_receipts("7 42:44", 3), uids(&[42, 43, 44]));
        assert_eq!(uid_receipts("7 1,3:4", 3), uids(&[1, 3, 4]));
        let one = "|7|0 42|7 0|7 42:43|7 42,43|7 -1|7 42 1|7 4294967296|x y|7 0:0";
        let three = "7 42|7 42:43|7 42:45|7 44:42|7 3,2,1|7 1:2,2|7 1:4294967295|7 1,2,3,4|7 1,,3";
        for (count, odd) in [(1, one), (3, three)] {
            for arguments in odd.split('|') {
                assert_eq!(uid_receipts(arguments, count), None, "{arguments}");
            }
        }
    }

    #[test]
    fn messages_that_go_in_one_command_are_small_and_not_empty() {
        let message = Message::new(b"\r\n".to_vec(), DedupBy::Content);
        let (key, identity) = (Hash::default(), message.identity());
        let recorded_at = SystemTime::UNIX_EPOCH;
        let looks_back = false;
        let (head, bytes): (&[u8], &[u8]) = (b"", b"");
        let copy = Copy {
            key: &key,
            head,
            bytes,
            identity,
            recorded_at,
            looks_back,
            looked: None,
            newer_than: None,
            handed: None,
        };
        let deadline = Deadline::new(Duration::from_secs(60), Duration::from_secs(20));
        let takes = |list: &str, sizes: [usize; 2]| {
            let one = |size| AppendMessage { copy: &copy, deadline: &deadline, size };
            take_together(&Capabilities::parse(list), &sizes.map(one))
        };
        assert!(takes("MULTIAPPEND LITERAL+ APPENDLIMIT=9", [1, 9]));
        assert!(!takes("MULTIAPPEND LITERAL+ APPENDLIMIT=9", [1, 10]));
        assert!(!takes("MULTIAPPEND LITERAL+", [1, 0]), "an empty one would be a wish to stop");
        assert!(!takes("MULTIAPPEND", [1, 1]), "each would wait for a plus");
        assert!(!takes("MULTIAPPEND LITERAL-", [1, 4097]));
        assert!(!takes("LITERAL+", [1, 1]));
    }

    #[test]
    fn a_message_waits_for_the_plus_by_its_size() {
        let waits = |list: &str, size| waits_for_plus(&Capabilities::parse(list), size);
        assert!(!waits("LITERAL+", ANNOUNCED_BYTES) && waits("LITERAL+", ANNOUNCED_BYTES + 1));
        assert!(!waits("LITERAL-", 4096) && waits("LITERAL-", 4097));
        assert!(waits("IMAP4REV1", 1));
    }
}
