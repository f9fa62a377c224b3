//! One authenticated IMAP session. Commands go out through the `imap` crate, which makes their
//! tags; answers are read here, line by line, and matched with the tag that really went out. We do
//! not use the crate's reader after login: it gives up on text it cannot parse, and then it is not
//! known how a command ended. Whatever is not understood closes the session; a closed one is never
//! used again. An idle session is looked at before each command: left-over lines that could pass
//! for an answer, a BYE or a closed connection end it before anything is sent.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::error::{ImapError, Rejection};
use super::namespace::Namespace;
use super::syntax;
use super::wire::Wire;
use onedrop_core::deadline::UNACKNOWLEDGED;

/// What the answer to a command may bring.
const ANSWER_BYTES: usize = 256 * 1024;
/// What the answer to SEARCH or FETCH may bring: half a million hits, or a piece of a message.
const LARGE_ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// How long a session that ends may take to say so.
const GOODBYE: Duration = Duration::from_millis(50);

/// A session that was idle for this long is asked whether it is still there before anything is done
/// in it: an append whose last bytes went to a host that is gone would be in doubt.
pub const IDLE: Duration = Duration::from_secs(2);

/// A tagged OK and what came before it.
#[derive(Debug, Default)]
pub struct CommandOutput {
    /// Name and arguments of the response code.
    pub code: Option<(String, String)>,
    pub responses: Vec<Response>,
}

/// An untagged response, without its `* `. Its literals stand aside; their `{n}` is still in the
/// line.
#[derive(Debug)]
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
    Refused(Rejection),
}

/// What the server can do, from its CAPABILITY.
#[derive(Debug, Default)]
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

    /// How it lets in (SASL).
    pub fn mechanisms(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|capability| capability.strip_prefix("AUTH="))
    }

    /// Largest message in bytes, where the server names one for all mailboxes (RFC 7889).
    pub fn append_limit(&self) -> Option<u64> {
        self.0.iter().find_map(|capability| capability.strip_prefix("APPENDLIMIT=")?.parse().ok())
    }
}

/// An authenticated session.
pub struct ImapSession {
    imap: imap::Session<Wire>,
    wire: Wire,
    capabilities: Capabilities,
    open: bool,
    /// A command was begun and has not ended.
    in_command: bool,
    /// A mailbox may be open.
    has_mailbox: bool,
    /// What an untagged BYE said.
    bye: Option<String>,
    /// When a command ended last.
    since: Instant,
    /// Once it was asked for: see `names`.
    pub namespace: Option<Namespace>,
    /// In lower case, once it was asked for: see `unindexed`.
    pub server_name: Option<String>,
    /// The server's, from the configuration.
    pub lock_timeout: Duration,
}

impl ImapSession {
    /// Takes over a connection that has just logged in. Without `capabilities` it asks for them.
    pub fn new(
        imap: imap::Session<Wire>,
        wire: Wire,
        capabilities: Capabilities,
        lock_timeout: Duration,
        until: Instant,
    ) -> Result<ImapSession, ImapError> {
        wire.collect_output();
        let mut session = ImapSession {
            imap,
            wire,
            capabilities,
            open: true,
            in_command: false,
            has_mailbox: false,
            bye: None,
            since: Instant::now(),
            namespace: None,
            server_name: None,
            lock_timeout,
        };
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

    /// Whether another command can follow.
    pub fn is_sound(&self) -> bool {
        self.open && !self.in_command
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

    /// Ends the session as [`close`](ImapSession::close) does.
    pub fn lost(&mut self, why: impl std::fmt::Display) -> ImapError {
        ImapError::Lost(self.close(why))
    }

    /// Whether the session can still be used, as far as can be seen; after [`IDLE`] the server is
    /// asked.
    pub fn is_there(&mut self, until: Instant) -> bool {
        let soon = until.min(Instant::now() + UNACKNOWLEDGED);
        let answers = self.since.elapsed() < IDLE
            || !matches!(self.run("NOOP", soon), Err(ImapError::Lost(_)));
        self.wire.begin(until, ANSWER_BYTES);
        answers && self.open && self.settle().map_err(|why| self.close(why)).is_ok()
    }

    /// Closes the mailbox that is open by UNSELECT (RFC 3691), if the server has it; CLOSE could
    /// expunge what an owner has marked as deleted. With a large mailbox open each command would
    /// first report what is new there: an APPEND into one of 20,000 messages takes twice as long.
    /// Its result says nothing about the commands before, and is ignored.
    pub fn unselect(&mut self, until: Instant) {
        let can = self.capabilities.has("UNSELECT") || self.capabilities.has("IMAP4REV2");
        if self.has_mailbox && can && self.is_sound() {
            let _ = self.run("UNSELECT", until.min(Instant::now() + IDLE));
            self.has_mailbox = false;
        }
    }

    /// Runs `command` to its tagged answer.
    pub fn run(&mut self, command: &str, until: Instant) -> Result<CommandOutput, ImapError> {
        self.run_within(command, until, ANSWER_BYTES)
    }

    /// Runs a command that may bring much.
    pub fn run_large(&mut self, command: &str, until: Instant) -> Result<CommandOutput, ImapError> {
        self.run_within(command, until, LARGE_ANSWER_BYTES)
    }

    fn run_within(
        &mut self,
        command: &str,
        until: Instant,
        budget: usize,
    ) -> Result<CommandOutput, ImapError> {
        let tag = self.queue(command, until)?;
        self.wire.begin(until, budget);
        match self.answer(&tag) {
            Ok(Event::Done(answer)) => Ok(answer),
            Ok(Event::Refused(no)) => Err(ImapError::Refused(no)),
            Ok(Event::GoOn) => Err(self.lost(WANTS_MORE)),
            Err(why) => Err(self.lost(why)),
        }
    }

    /// Runs `commands`, which are sent ahead of their answers; returns those in their order. The
    /// server carries them out one after the other, as each EXAMINE changes what the next one is
    /// about (RFC 3501 section 5.5).
    ///
    /// # Errors
    /// The session is closed; a command that is refused is none.
    pub fn run_together(
        &mut self,
        commands: &[String],
        until: Instant,
    ) -> Result<Vec<Result<CommandOutput, Rejection>>, ImapError> {
        self.wire.begin(until, LARGE_ANSWER_BYTES);
        let mut together = || -> Result<_, String> {
            self.settle()?;
            let tags =
                commands.iter().map(|command| self.put(command)).collect::<Result<Vec<_>, _>>()?;
            let mut answers = Vec::with_capacity(tags.len());
            for tag in &tags {
                self.in_command = true;
                answers.push(match self.answer(tag)? {
                    Event::Done(answer) => Ok(answer),
                    Event::Refused(no) => Err(no),
                    Event::GoOn => return Err(WANTS_MORE.to_owned()),
                });
            }
            Ok(answers)
        };
        together().map_err(|why| self.lost(why))
    }

    /// Puts `command` on the wire without sending it, and returns its tag.
    pub fn queue(&mut self, command: &str, until: Instant) -> Result<String, ImapError> {
        self.wire.begin(until, ANSWER_BYTES);
        self.settle().and_then(|()| self.put(command)).map_err(|why| self.lost(why))
    }

    fn put(&mut self, command: &str) -> Result<String, String> {
        if !command.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err("a command must be one line of printable ASCII".to_owned());
        }
        guarded(|| self.imap.run_command(command))?.map_err(|error| error.to_string())?;
        let unsent = String::from_utf8(self.wire.unsent()).unwrap_or_default();
        self.in_command = true;
        let name = command.split(' ').next().unwrap_or_default();
        self.has_mailbox |= ["EXAMINE", "SELECT"].contains(&name);
        let line = unsent.strip_suffix(&format!(" {command}\r\n"));
        // After those that wait to be sent with it.
        line.and_then(|line| line.rsplit("\r\n").next())
            .filter(|tag| !tag.is_empty() && tag.bytes().all(|byte| byte.is_ascii_alphanumeric()))
            .map(str::to_owned)
            .ok_or_else(|| "the imap crate did not write the command".to_owned())
    }

    /// Sends what was put, and reads to the next `+` or tagged line. Untagged responses are kept
    /// for the answer only if the command ends.
    ///
    /// # Errors
    /// The connection is gone, too late, too much, or something that no answer to this command can
    /// be.
    pub fn answer(&mut self, tag: &str) -> Result<Event, String> {
        self.wire.send()?;
        let mut responses = Vec::new();
        loop {
            let line = self.wire.read_line()?;
            if let Some(rest) = line.strip_prefix(b"* ") {
                responses.push(self.response(rest)?);
            } else if line.starts_with(b"+") {
                return Ok(Event::GoOn);
            } else {
                return self.tagged(&line, tag, responses);
            }
        }
    }

    fn tagged(
        &mut self,
        line: &[u8],
        tag: &str,
        responses: Vec<Response>,
    ) -> Result<Event, String> {
        self.in_command = false;
        self.since = Instant::now();
        let rest = line.strip_prefix(tag.as_bytes()).and_then(|rest| rest.strip_prefix(b" "));
        let rest = String::from_utf8_lossy(rest.ok_or_else(|| out_of_step(line))?);
        let (status, text) = rest.split_once(' ').unwrap_or((&rest, ""));
        let code = syntax::response_code(text);
        match status.to_ascii_uppercase().as_str() {
            "OK" => Ok(Event::Done(CommandOutput { code, responses })),
            "NO" | "BAD" => Ok(Event::Refused(Rejection {
                code: code.map(|(name, _)| name).unwrap_or_default(),
                text: syntax::clean(rest.as_bytes()),
            })),
            _ => Err(out_of_step(line)),
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
            response.literals.push(self.wire.read_exactly(size)?);
            response.line.extend(self.wire.read_line()?);
        }
        Ok(response)
    }

    /// Reads what came unasked since the last answer. It must be untagged, and no BYE.
    fn settle(&mut self) -> Result<(), String> {
        self.early(None).map(drop)
    }

    /// What the server has said about command `tag` up to now (without one: nothing); does not wait
    /// for more than the rest of a line.
    ///
    /// # Errors
    /// Those of [`answer`](ImapSession::answer), and a BYE.
    pub fn early(&mut self, tag: Option<&str>) -> Result<Option<Event>, String> {
        while self.wire.has_input()? {
            let line = self.wire.read_line()?;
            let Some(rest) = line.strip_prefix(b"* ") else {
                let tag = tag.ok_or_else(|| out_of_step(&line))?;
                return self.tagged(&line, tag, Vec::new()).map(Some);
            };
            self.response(rest)?;
            if self.bye.is_some() {
                return Err("the server ended the session".to_owned());
            }
        }
        Ok(None)
    }
}

/// Says LOGOUT, and does not wait for the answer. In the middle of a command it says nothing: that
/// would end the command.
impl Drop for ImapSession {
    fn drop(&mut self) {
        if self.is_sound() && self.queue("LOGOUT", Instant::now() + GOODBYE).is_ok() {
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

/// A `+` in answer to what was no beginning of a literal.
pub const WANTS_MORE: &str = "the server wants more of a complete command";

/// What a server said that is no answer to what was asked.
pub fn out_of_step(line: &[u8]) -> String {
    format!("the server is out of step: {}", syntax::clean(line))
}

/// The size in a `{n}` at the end of `line`.
fn literal_at_end(line: &[u8]) -> Option<usize> {
    let inside = line.strip_suffix(b"}")?;
    let open = inside.iter().rposition(|byte| *byte == b'{')?;
    let digits = std::str::from_utf8(&inside[open + 1..]).ok()?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}
