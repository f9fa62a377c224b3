//! One authenticated IMAP session. Commands go out through the `imap` crate, which makes their
//! tags; answers are read here, line by line, and matched with the tag that really went out. We do
//! not use the crate's reader after login: it gives up on text it cannot parse, and then it is not
//! known how a command ended. Whatever is not understood closes the session; a closed one is never
//! used again. An idle session is looked at before each command: left-over lines that could pass
//! for an answer, a BYE or a closed connection end it before anything is sent.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::syntax;
use super::wire::Wire;

/// What the answer to a command may bring.
const ANSWER_BYTES: usize = 256 * 1024;
/// What the answer to SEARCH or FETCH may bring: half a million hits, or a piece of a message.
const LARGE_ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// How long a session that ends may take to say so.
const GOODBYE: Duration = Duration::from_millis(50);

/// Why there is no session, in words.
#[derive(Debug)]
pub enum ConnectError {
    /// The server does not let us act for this account, while it does for others.
    NoAccount(String),
    /// The server does not let us in as we are set up.
    Setup(String),
    /// The server cannot be used now.
    Failed(String),
}

/// Why a command brought nothing.
#[derive(Debug)]
pub enum CommandError {
    ConnectError(ConnectError),
    /// The server answered NO or BAD; the session goes on.
    Refused(Refusal),
    /// The session is closed, for this reason.
    Lost(String),
}

/// An error of something that is done in a session.
pub trait SessionError: From<CommandError> {
    /// Whether it may be done again where it ended with the session.
    fn is_lost_session(&self) -> bool;
}

impl SessionError for CommandError {
    fn is_lost_session(&self) -> bool {
        matches!(self, CommandError::Lost(_))
    }
}

impl ConnectError {
    pub fn why(self) -> String {
        let (ConnectError::NoAccount(why) | ConnectError::Setup(why) | ConnectError::Failed(why)) =
            self;
        why
    }

    pub fn map(self, say: impl FnOnce(String) -> String) -> ConnectError {
        match self {
            ConnectError::NoAccount(why) => ConnectError::NoAccount(say(why)),
            ConnectError::Setup(why) => ConnectError::Setup(say(why)),
            ConnectError::Failed(why) => ConnectError::Failed(say(why)),
        }
    }
}

/// A tagged NO or BAD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the response code in upper case, empty without one.
    pub code: String,
    /// `NO` or `BAD` and the server's text with its code, cleaned.
    pub text: String,
}

/// A tagged OK and what came before it.
#[derive(Debug, Default)]
pub struct CommandOutput {
    /// Name and arguments of the response code.
    pub code: Option<(String, String)>,
    pub responses: Vec<Response>,
}

/// An untagged response, without its `* `. Its literals stand aside; their `{n}` is still in the
/// line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Response {
    pub line: Vec<u8>,
    pub literals: Vec<Vec<u8>>,
}

/// The next thing a server says to a command.
#[derive(Debug)]
pub enum Event {
    /// `+`: it waits for the literal.
    GoOn,
    Done(CommandOutput),
    Refused(Refusal),
}

/// What the server can do, from its CAPABILITY.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities(Vec<String>);

impl Capabilities {
    /// Parses a list of names with blanks in between.
    pub fn parse(list: &str) -> Capabilities {
        Capabilities(list.split_ascii_whitespace().map(str::to_ascii_uppercase).collect())
    }

    /// Whether `name` (upper case) is among them.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|capability| capability == name)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Largest message in bytes, where the server names one for all mailboxes (RFC 7889).
    pub fn append_limit(&self) -> Option<u64> {
        self.0.iter().find_map(|capability| capability.strip_prefix("APPENDLIMIT=")?.parse().ok())
    }
}

/// An authenticated session.
pub struct Session {
    imap: imap::Session<Wire>,
    wire: Wire,
    capabilities: Capabilities,
    open: bool,
    /// A command was begun and has not ended.
    in_command: bool,
    /// What an untagged BYE said.
    bye: Option<String>,
    /// When a command ended last.
    since: Instant,
}

impl Session {
    /// Takes over a connection that has just logged in. Without `capabilities` it asks for them.
    ///
    /// # Errors
    /// The server does not tell its capabilities.
    pub fn new(
        imap: imap::Session<Wire>,
        wire: Wire,
        capabilities: Capabilities,
        until: Instant,
    ) -> Result<Session, CommandError> {
        wire.collect_output();
        let (in_command, bye, since) = (false, None, Instant::now());
        let mut session = Session { imap, wire, capabilities, open: true, in_command, bye, since };
        if session.capabilities.is_empty() {
            let answer = session.run("CAPABILITY", until)?;
            let lists = answer.responses.iter().filter_map(|response| response.after("CAPABILITY"));
            session.capabilities = Capabilities::parse(&lists.collect::<Vec<_>>().join(" "));
        }
        Ok(session)
    }

    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    pub fn wire(&self) -> &Wire {
        &self.wire
    }

    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Whether another command can follow.
    pub fn is_sound(&self) -> bool {
        self.open && !self.in_command
    }

    /// For how long nothing was done in it.
    pub fn idle(&self) -> Duration {
        self.since.elapsed()
    }

    /// Ends the session at once; nothing more is sent. Returns `why`, with what the server said at
    /// the end.
    pub fn close(&mut self, why: impl std::fmt::Display) -> String {
        self.open = false;
        self.wire.close();
        match self.bye.take() {
            Some(bye) => format!("{why}; the server said BYE {bye}"),
            None => why.to_string(),
        }
    }

    /// Whether the session can still be used, as far as can be seen without asking the server.
    pub fn is_alive(&mut self, until: Instant) -> bool {
        self.wire.begin(until, ANSWER_BYTES);
        self.open && self.settle().map_err(|why| self.close(why)).is_ok()
    }

    /// Whether the server still knows the session: asks it.
    pub fn answers(&mut self, until: Instant) -> bool {
        !matches!(self.run("NOOP", until), Err(CommandError::Lost(_)))
    }

    /// Runs `command` to its tagged answer.
    ///
    /// # Errors
    /// [`CommandError::Refused`] or [`CommandError::Lost`].
    pub fn run(&mut self, command: &str, until: Instant) -> Result<CommandOutput, CommandError> {
        let tag = self.queue(command, until)?;
        self.complete(&tag)
    }

    /// Runs a command that may bring much.
    ///
    /// # Errors
    /// As for [`run`](Session::run).
    pub fn run_large(
        &mut self,
        command: &str,
        until: Instant,
    ) -> Result<CommandOutput, CommandError> {
        let tag = self.queue(command, until)?;
        self.wire.begin(until, LARGE_ANSWER_BYTES);
        self.complete(&tag)
    }

    fn complete(&mut self, tag: &str) -> Result<CommandOutput, CommandError> {
        let event =
            self.wire.send().map_err(|error| error.to_string()).and_then(|()| self.next(tag));
        match event {
            Ok(Event::Done(answer)) => Ok(answer),
            Ok(Event::Refused(refusal)) => Err(CommandError::Refused(refusal)),
            Ok(Event::GoOn) => {
                Err(CommandError::Lost(self.close("the server wants more of a complete command")))
            }
            Err(why) => Err(CommandError::Lost(self.close(why))),
        }
    }

    /// Puts `command` on the wire without sending it, and returns its tag.
    ///
    /// # Errors
    /// [`CommandError::Lost`]: the session cannot be used.
    pub fn queue(&mut self, command: &str, until: Instant) -> Result<String, CommandError> {
        self.wire.begin(until, ANSWER_BYTES);
        self.settle()
            .and_then(|()| self.put(command))
            .map_err(|why| CommandError::Lost(self.close(why)))
    }

    fn put(&mut self, command: &str) -> Result<String, String> {
        if !command.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err("a command must be one line of printable ASCII".to_owned());
        }
        guarded(|| self.imap.run_command(command))?.map_err(|error| error.to_string())?;
        let unsent = String::from_utf8(self.wire.unsent()).unwrap_or_default();
        self.in_command = true;
        match unsent.strip_suffix(&format!(" {command}\r\n")) {
            Some(tag)
                if !tag.is_empty() && tag.bytes().all(|byte| byte.is_ascii_alphanumeric()) =>
            {
                Ok(tag.to_owned())
            }
            _ => Err("the imap crate did not write the command".to_owned()),
        }
    }

    /// Reads to the next `+` or tagged line. Untagged responses are kept for the answer only if the
    /// command ends.
    ///
    /// # Errors
    /// The connection is gone, too late, too much, or something that no answer to this command can
    /// be.
    pub fn next(&mut self, tag: &str) -> Result<Event, String> {
        let mut responses = Vec::new();
        loop {
            let line = self.wire.read_line().map_err(|error| error.to_string())?;
            if let Some(rest) = line.strip_prefix(b"* ") {
                responses.push(self.response(rest)?);
            } else if line.starts_with(b"+") {
                return Ok(Event::GoOn);
            } else {
                self.in_command = false;
                self.since = Instant::now();
                return tagged(&line, tag, responses);
            }
        }
    }

    fn response(&mut self, line: &[u8]) -> Result<Response, String> {
        let mut response = Response { line: line.to_vec(), literals: Vec::new() };
        if let Some(bye) = response.after("BYE") {
            self.bye = Some(syntax::clean(bye.as_bytes()));
        }
        // Text for people may end in braces; only data responses have literals.
        let is_text =
            ["OK", "NO", "BAD", "BYE", "PREAUTH"].iter().any(|word| response.rest(word).is_some());
        while let (false, Some(size)) = (is_text, literal_at_end(&response.line)) {
            let read = |error: std::io::Error| error.to_string();
            response.literals.push(self.wire.read_exactly(size).map_err(read)?);
            response.line.extend(self.wire.read_line().map_err(read)?);
        }
        Ok(response)
    }

    /// Reads what came unasked since the last answer. It must be untagged, and no BYE.
    fn settle(&mut self) -> Result<(), String> {
        while self.wire.has_input().map_err(|error| error.to_string())? {
            let line = self.wire.read_line().map_err(|error| error.to_string())?;
            let Some(rest) = line.strip_prefix(b"* ") else {
                return Err(format!("the server is out of step: {}", syntax::clean(&line)));
            };
            self.response(rest)?;
            if self.bye.is_some() {
                return Err("the server ended the session".to_owned());
            }
        }
        Ok(())
    }

    /// What the server has said about command `tag` up to now; does not wait for more than the rest
    /// of a line.
    ///
    /// # Errors
    /// As for [`next`](Session::next).
    pub fn early(&mut self, tag: &str) -> Result<Option<Event>, String> {
        while self.wire.has_input().map_err(|error| error.to_string())? {
            let line = self.wire.read_line().map_err(|error| error.to_string())?;
            match line.strip_prefix(b"* ") {
                Some(rest) => drop(self.response(rest)?),
                None => {
                    self.in_command = false;
                    return tagged(&line, tag, Vec::new()).map(Some);
                }
            }
            if self.bye.is_some() {
                return Err("the server ended the session".to_owned());
            }
        }
        Ok(None)
    }
}

/// Says LOGOUT, and does not wait for the answer. In the middle of a command it says nothing: that
/// would end the command.
impl Drop for Session {
    fn drop(&mut self) {
        if self.open && !self.in_command && self.queue("LOGOUT", Instant::now() + GOODBYE).is_ok() {
            let _ = self.wire.send();
        }
        self.wire.close();
    }
}

impl Response {
    /// What follows `word` in the line, in any case; `word` must end at a blank or the line's end.
    pub fn after(&self, word: &str) -> Option<String> {
        self.rest(word).map(|rest| String::from_utf8_lossy(rest).trim().to_owned())
    }

    fn rest(&self, word: &str) -> Option<&[u8]> {
        let (head, rest) = self.line.split_at_checked(word.len())?;
        let ends = rest.is_empty() || rest.starts_with(b" ");
        (head.eq_ignore_ascii_case(word.as_bytes()) && ends).then_some(rest)
    }
}

/// Calls into the `imap` crate; a panic in there is an error.
pub fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| "the imap crate panicked".to_owned())
}

fn tagged(line: &[u8], tag: &str, responses: Vec<Response>) -> Result<Event, String> {
    let out_of_step = || format!("the server is out of step: {}", syntax::clean(line));
    let rest = line
        .strip_prefix(tag.as_bytes())
        .and_then(|rest| rest.strip_prefix(b" "))
        .ok_or_else(out_of_step)?;
    let rest = String::from_utf8_lossy(rest);
    let (status, text) = rest.split_once(' ').unwrap_or((&rest, ""));
    let code = syntax::response_code(text);
    match status.to_ascii_uppercase().as_str() {
        "OK" => Ok(Event::Done(CommandOutput { code, responses })),
        "NO" | "BAD" => Ok(Event::Refused(Refusal {
            code: code.map(|(name, _)| name).unwrap_or_default(),
            text: syntax::clean(rest.as_bytes()),
        })),
        _ => Err(out_of_step()),
    }
}

/// The size in a `{n}` at the end of `line`.
fn literal_at_end(line: &[u8]) -> Option<usize> {
    let inside = line.strip_suffix(b"}")?;
    let open = inside.iter().rposition(|byte| *byte == b'{')?;
    let digits = std::str::from_utf8(&inside[open + 1..]).ok()?;
    (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tagged_line_must_carry_exactly_our_tag() {
        for line in ["a11 OK x", "a1OK", "A1 OK x", "a1", "a1 OKAY", "", " a1 OK", "a1 BYE x"] {
            assert!(tagged(line.as_bytes(), "a1", Vec::new()).is_err(), "{line}");
        }
        assert!(matches!(tagged(b"a1 ok", "a1", Vec::new()), Ok(Event::Done(_))));
        let Ok(Event::Refused(refusal)) =
            tagged("a1 No [overquota] Überfüllt\x07".as_bytes(), "a1", Vec::new())
        else {
            panic!()
        };
        assert_eq!(
            (refusal.code.as_str(), refusal.text.as_str()),
            ("OVERQUOTA", "No [overquota] Überfüllt")
        );
    }

    #[test]
    fn literals_are_seen_at_the_end_of_a_line_only() {
        assert_eq!(literal_at_end(b"1 FETCH (BODY[] {12}"), Some(12));
        assert_eq!(literal_at_end(b"1 FETCH (BODY[] ~{12}"), Some(12));
        for line in [&b"{12} "[..], b"{}", b"{-1}", b"{+1}", b"x}", b"{99999999999999999999999}"] {
            assert_eq!(literal_at_end(line), None);
        }
    }

    #[test]
    fn capabilities_are_whole_words() {
        let capabilities = Capabilities::parse("IMAP4rev1 literal+ UIDPLUS APPENDLIMIT=35651584");
        assert!(
            capabilities.has("LITERAL+")
                && !capabilities.has("LITERAL-")
                && !capabilities.has("UID")
        );
        assert_eq!(capabilities.append_limit(), Some(35_651_584));
        assert_eq!(Capabilities::parse("APPENDLIMIT").append_limit(), None);
    }
}
