//! APPEND, with its point of no return. The command and the literal go out first; the CRLF that
//! ends the command makes the server execute it (RFC 3501 section 6.3.11), so up to there certainly
//! nothing is stored: whatever happens, the connection is closed and the literal with it. From
//! there on only a tagged answer tells; all else is in doubt, and so is a NO by a server that is in
//! trouble itself. A large message is announced and waits for the server's `+`, also where LITERAL+
//! would spare the round trip: a missing mailbox or a full one is then known before the upload. The
//! message is streamed from the caller's bytes; what is small goes out in one piece with its last
//! bytes, after the look at the clock. Several small ones for one mailbox can go in one command,
//! with one sync of the server's: all of them are stored or none.

use std::time::Instant;

use crate::deadline::Deadline;
use crate::store::{Copy, Receipt};

use super::session::{
    Capabilities, CommandError, CommandOutput, ConnectError, Event, Refusal, Session, SessionError,
};
use super::syntax;

/// Messages above this size wait for the server's `+`.
const ANNOUNCED_BYTES: usize = 1024 * 1024;
/// RFC 7888: LITERAL- takes non-synchronising literals up to this size.
const LITERAL_MINUS_BYTES: usize = 4096;

/// Why a copy was not appended.
#[derive(Debug)]
pub enum AppendError {
    /// Certainly not stored: the server answered NO or BAD, and was not itself in trouble.
    Refused(Refusal),
    /// Certainly not stored.
    NotStored(String),
    /// Certainly not stored: too little time is left for the answer.
    TooLate(String),
    /// Certainly not stored: there is no session for the account.
    ConnectError(ConnectError),
    /// Certainly not stored: the mailbox is not there, and is not to be made or cannot be.
    NoMailbox(String),
    /// Certainly not stored: larger than this limit.
    TooBig { size: u64, limit: u64 },
    /// The server may have taken it.
    InDoubt(String),
}

impl From<CommandError> for AppendError {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::Refused(refusal) => AppendError::Refused(refusal),
            CommandError::Lost(why) => AppendError::NotStored(why),
            CommandError::ConnectError(no) => AppendError::ConnectError(no),
        }
    }
}

impl SessionError for AppendError {
    fn is_lost_session(&self) -> bool {
        matches!(self, AppendError::NotStored(_))
    }
}

/// One message of an APPEND.
pub struct AppendMessage<'a> {
    pub copy: &'a Copy<'a>,
    pub deadline: &'a Deadline,
    /// Of its literal, in bytes.
    pub size: usize,
}

impl<'a> AppendMessage<'a> {
    pub fn new(copy: &'a Copy<'a>, deadline: &'a Deadline) -> AppendMessage<'a> {
        AppendMessage {
            copy,
            deadline,
            size: syntax::literal_size(copy.head) + syntax::literal_size(copy.bytes),
        }
    }

    /// The options and the announcement of the literal.
    fn announced(&self, seen: bool, plus: &str) -> String {
        let flags = if seen { " (\\Seen)" } else { "" };
        format!("{flags} \"{}\" {{{}{plus}}}", syntax::date_time(self.copy.recorded_at), self.size)
    }
}

/// Whether the server takes `messages` in one command (MULTIAPPEND, RFC 3502: all of them or none).
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

/// Appends `messages` (one, or such as [`take_together`]) to `mailbox` (as it is in a command),
/// with `\Seen` if `seen`; returns a receipt for each.
///
/// # Errors
/// See [`AppendError`]; it is that of all. The session is closed wherever it may be out of step.
pub fn append(
    session: &mut Session,
    mailbox: &str,
    seen: bool,
    messages: &[AppendMessage<'_>],
) -> Result<Vec<Receipt>, AppendError> {
    if messages.len() > 1 && !take_together(session.capabilities(), messages) {
        return Err(AppendError::NotStored("not taken in one command".to_owned()));
    }
    let started = begin(session, mailbox, seen, messages, until(messages))?;
    complete(session, &started, messages)
}

/// Until when the last bytes of all may be sent.
pub fn until(messages: &[AppendMessage<'_>]) -> Instant {
    messages.iter().map(|message| message.deadline.last_bytes()).min().unwrap_or_else(Instant::now)
}

/// An APPEND up to the last bytes, which make it take effect.
pub struct StartedAppend {
    tag: String,
}

/// Puts everything but the last bytes on the wire, until `until`; small messages stay unsent.
///
/// # Errors
/// As for [`append`]; never in doubt.
fn begin(
    session: &mut Session,
    mailbox: &str,
    seen: bool,
    messages: &[AppendMessage<'_>],
    until: Instant,
) -> Result<StartedAppend, AppendError> {
    let [first, others @ ..] = messages else {
        return Err(AppendError::NotStored("nothing to append".to_owned()));
    };
    if let Some(limit) =
        session.capabilities().append_limit().filter(|limit| first.size as u64 > *limit)
    {
        return Err(AppendError::TooBig { size: first.size as u64, limit });
    }
    let plus = if waits_for_plus(session.capabilities(), first.size) { "" } else { "+" };
    let tag = session.queue(&format!("APPEND {mailbox}{}", first.announced(seen, plus)), until)?;
    if plus.is_empty() {
        wait_for_plus(session, &tag)?;
    }
    put_literal(session, &tag, first.copy)?;
    for message in others {
        let announced = format!("{}\r\n", message.announced(seen, plus));
        session
            .wire()
            .put(announced.as_bytes())
            .map_err(|error| not_sent(session, &tag, &error))?;
        put_literal(session, &tag, message.copy)?;
    }
    Ok(StartedAppend { tag })
}

/// Begins the append of one small message and sends what is not the last bytes, so that the server
/// can work on it. Waits for no longer than `until`.
///
/// # Errors
/// As for [`append`], never in doubt; also where the server would have to be waited for.
pub fn begin_early(
    session: &mut Session,
    mailbox: &str,
    seen: bool,
    message: &AppendMessage<'_>,
    until: Instant,
) -> Result<StartedAppend, AppendError> {
    if waits_for_plus(session.capabilities(), message.size) {
        return Err(AppendError::NotStored("the server is to be waited for".to_owned()));
    }
    let started = begin(session, mailbox, seen, std::slice::from_ref(message), until)?;
    session.wire().send().map_err(|error| not_sent(session, &started.tag, &error))?;
    Ok(started)
}

/// Ends what was begun: looks at the clock, sends the last bytes and waits for the answer.
///
/// # Errors
/// As for [`append`].
pub fn complete(
    session: &mut Session,
    started: &StartedAppend,
    messages: &[AppendMessage<'_>],
) -> Result<Vec<Receipt>, AppendError> {
    let tag = &started.tag;
    session.wire().wait_until(until(messages));
    // What is small goes out in one piece, and until then nothing has.
    if session.wire().has_sent() {
        session.wire().send().map_err(|error| not_sent(session, tag, &error))?;
        nothing_said_yet(session, tag)?;
    }
    for (at, message) in messages.iter().enumerate() {
        if let Err(too_late) = message.deadline.pass_point_of_no_return() {
            messages[..at].iter().for_each(|message| message.deadline.answered());
            return Err(AppendError::TooLate(session.close(too_late)));
        }
    }
    let outcome = finish(session, tag, messages);
    if !matches!(outcome, Ok(_) | Err(AppendError::InDoubt(_))) {
        messages.iter().for_each(|message| message.deadline.answered());
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

fn wait_for_plus(session: &mut Session, tag: &str) -> Result<(), AppendError> {
    let event =
        session.wire().send().map_err(|error| error.to_string()).and_then(|()| session.next(tag));
    match event {
        Ok(Event::GoOn) => Ok(()),
        // Instead of `+`: the command is over, and the session can go on.
        Ok(Event::Refused(refusal)) => Err(AppendError::Refused(refusal)),
        Ok(Event::Done(_)) => Err(AppendError::NotStored(
            session.close("the server said OK to a message it has not got"),
        )),
        Err(why) => Err(AppendError::NotStored(session.close(why))),
    }
}

fn put_literal(session: &mut Session, tag: &str, copy: &Copy<'_>) -> Result<(), AppendError> {
    let wire = session.wire();
    let put = syntax::literal_form(copy.head, |piece| wire.put(piece))
        .and_then(|()| syntax::literal_form(copy.bytes, |piece| wire.put(piece)));
    put.map_err(|error| not_sent(session, tag, &error))
}

/// A server that hangs up in the middle may have said why.
fn not_sent(session: &mut Session, tag: &str, error: &std::io::Error) -> AppendError {
    let refusal = match session.early(tag) {
        Ok(Some(Event::Refused(refusal))) => Some(refusal),
        _ => None,
    };
    let why = session.close(format!("sending the message: {error}"));
    refusal.map_or(AppendError::NotStored(why), AppendError::Refused)
}

/// An answer to a command that is not complete yet: a refusal is final; an OK proves nothing, but a
/// server that says it may have stored the literal, so the copy is in doubt.
fn nothing_said_yet(session: &mut Session, tag: &str) -> Result<(), AppendError> {
    let error = match session.early(tag) {
        Ok(None) => return Ok(()),
        Ok(Some(Event::Refused(refusal))) => {
            session.close("refused early");
            AppendError::Refused(refusal)
        }
        Ok(Some(_)) => AppendError::InDoubt(
            session.close("the server answered before the command was complete"),
        ),
        Err(why) => AppendError::NotStored(session.close(why)),
    };
    Err(error)
}

/// Codes of a NO (RFC 5530) by a server that is in trouble itself, and may have failed behind the
/// point where the message stands: Dovecot says SERVERBUG where a lock does not come free, also the
/// one that it takes last.
const UNSURE: [&str; 3] = ["SERVERBUG", "INUSE", "UNAVAILABLE"];

/// Sends the last bytes and waits for the answer. They have the time that is kept for it, so that
/// what was in time when the clock was looked at is not cut off in the middle; one whose deadline
/// has passed by now is not sent.
fn finish(
    session: &mut Session,
    tag: &str,
    messages: &[AppendMessage<'_>],
) -> Result<Vec<Receipt>, AppendError> {
    let first = |ends: fn(&Deadline) -> Instant| {
        messages.iter().map(|message| ends(message.deadline)).min()
    };
    session.wire().wait_until(first(Deadline::end).unwrap_or_else(Instant::now));
    let sent = session.wire().put(b"\r\n").and_then(|()| session.wire().send());
    session.wire().wait_until(first(Deadline::answer_until).unwrap_or_else(Instant::now));
    let event = sent.map_err(|error| error.to_string()).and_then(|()| session.next(tag));
    match event {
        Ok(Event::Done(answer)) => Ok(receipts(&answer, messages.len())),
        Ok(Event::Refused(refusal)) if UNSURE.contains(&refusal.code.as_str()) => {
            Err(AppendError::InDoubt(refusal.text))
        }
        Ok(Event::Refused(refusal)) => Err(AppendError::Refused(refusal)),
        Ok(Event::GoOn) => {
            Err(AppendError::InDoubt(session.close("the server wants more of a complete command")))
        }
        Err(why) => Err(AppendError::InDoubt(session.close(why))),
    }
}

/// APPENDUID (RFC 4315, section 3) where it names as many messages as there are, in their order;
/// servers were seen that leave it out or get it wrong.
fn receipts(answer: &CommandOutput, count: usize) -> Vec<Receipt> {
    named(answer, count).unwrap_or_else(|| vec![Receipt::Unnamed; count])
}

fn named(answer: &CommandOutput, count: usize) -> Option<Vec<Receipt>> {
    let (name, arguments) = answer.code.as_ref()?;
    let (validity, set) = arguments.split_once(' ')?;
    let validity = validity.parse::<u32>().ok().filter(|validity| *validity > 0)?;
    let uids = uids(set, count)?;
    (name == "APPENDUID")
        .then(|| uids.into_iter().map(|uid| Receipt::Uid { validity, uid }).collect())
}

/// A set of exactly `count` UIDs that rise, as those of messages appended together do.
fn uids(set: &str, count: usize) -> Option<Vec<u32>> {
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
    (uids.len() == count).then_some(uids)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(name: &str, arguments: &str, count: usize) -> Vec<Receipt> {
        receipts(
            &CommandOutput {
                code: Some((name.to_owned(), arguments.to_owned())),
                responses: Vec::new(),
            },
            count,
        )
    }

    #[test]
    fn only_a_plain_pair_of_numbers_is_a_receipt() {
        let uid = |uid| Receipt::Uid { validity: 7, uid };
        assert_eq!(told("APPENDUID", "7 42", 1), [uid(42)]);
        for odd in [
            "",
            "7",
            "0 42",
            "7 0",
            "7 42:43",
            "7 42,43",
            "7 -1",
            "7 42 1",
            "7 4294967296",
            "x y",
            "7 0:0",
        ] {
            assert_eq!(told("APPENDUID", odd, 1), [Receipt::Unnamed], "{odd}");
        }
        assert_eq!(told("COPYUID", "7 42", 1), [Receipt::Unnamed]);
        assert_eq!(receipts(&CommandOutput::default(), 2), [Receipt::Unnamed, Receipt::Unnamed]);
    }

    #[test]
    fn messages_appended_together_have_a_receipt_each_or_none_has() {
        let uids = |uids: [u32; 3]| uids.map(|uid| Receipt::Uid { validity: 7, uid });
        assert_eq!(told("APPENDUID", "7 42:44", 3), uids([42, 43, 44]));
        assert_eq!(told("APPENDUID", "7 1,3:4", 3), uids([1, 3, 4]));
        for odd in [
            "7 42",
            "7 42:43",
            "7 42:45",
            "7 44:42",
            "7 3,2,1",
            "7 1:2,2",
            "7 1:4294967295",
            "7 1,2,3,4",
            "7 1,,3",
        ] {
            assert_eq!(told("APPENDUID", odd, 3), vec![Receipt::Unnamed; 3], "{odd}");
        }
    }

    #[test]
    fn who_waits_for_the_plus() {
        let waits = |list: &str, size| waits_for_plus(&Capabilities::parse(list), size);
        assert!(!waits("LITERAL+", ANNOUNCED_BYTES) && waits("LITERAL+", ANNOUNCED_BYTES + 1));
        assert!(!waits("LITERAL-", 4096) && waits("LITERAL-", 4097));
        assert!(waits("IMAP4REV1", 1));
    }
}
