//! The part of the proxy that knows LMTP (RFC 2033): which command an answer answers, also where
//! commands travel together, and where a message's data begins and ends.
//!
//! STARTTLS is not passed on, or nothing could be seen.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};

use super::{Conversation, Fault, Flow, Stage, lock};

/// What the server has still to answer: commands, and `.` for a message's data.
#[derive(Default)]
pub struct Dialog {
    asked: VecDeque<String>,
    /// The server has said 354.
    is_data: bool,
}

impl Conversation {
    pub(super) fn lmtp_client(&self) -> Flow {
        let mut input = BufReader::new(self.client.another());
        let mut server = self.server.another();
        loop {
            let mut line = Vec::new();
            if input.read_until(b'\n', &mut line)? == 0 {
                return Ok(true);
            }
            if self.has_begun() && self.is_final() {
                // A server that has answered already, and does nothing more.
                std::io::copy(&mut input, &mut std::io::sink())?;
                return Ok(false);
            }
            if std::mem::take(&mut lock(&self.dialog).is_data) {
                if !self.data(line, &mut input)? {
                    return Ok(false);
                }
                continue;
            }
            let verb = String::from_utf8_lossy(&line).to_ascii_uppercase();
            let verb = verb.split_ascii_whitespace().next().unwrap_or_default().to_owned();
            if let Some((Stage::Before(at), _)) = self.plan
                && at == verb
                && !self.fail_here(Stage::Before(at))?
            {
                return Ok(false);
            }
            lock(&self.dialog).asked.push_back(verb);
            server.write_all(&line)?;
        }
    }

    /// Forwards a message's data, of which the first line is read.
    fn data(&self, first: Vec<u8>, input: &mut impl BufRead) -> Flow {
        let mut server = self.server.another();
        let (mut line, mut is_first) = (first, true);
        while line != b".\r\n" {
            server.write_all(&line)?;
            if std::mem::take(&mut is_first) && !self.fail_here(Stage::MidLiteral)? {
                return Ok(false);
            }
            line.clear();
            if input.read_until(b'\n', &mut line)? == 0 {
                return Ok(true);
            }
        }
        if !self.fail_here(Stage::LastBytes)? {
            return Ok(false);
        }
        lock(&self.dialog).asked.push_back(".".to_owned());
        server.write_all(&line)?;
        Ok(true)
    }

    /// Whether nothing passes after the fault.
    fn is_final(&self) -> bool {
        !matches!(self.plan, Some((_, Fault::Drip | Fault::Edit(_) | Fault::Hold)))
    }

    pub(super) fn lmtp_server(&self) -> Flow {
        let mut server = BufReader::new(self.server.another());
        let mut client = self.client.another();
        let mut is_greeting = true;
        loop {
            let mut reply = Vec::new();
            loop {
                let mut line = Vec::new();
                if server.by_ref().read_until(b'\n', &mut line)? == 0 {
                    return Ok(true);
                }
                let is_last = line.get(3) != Some(&b'-');
                match line.get(4..) {
                    Some(b"STARTTLS\r\n") if is_last => {
                        reply.extend_from_slice(b"250 8BITMIME\r\n");
                    }
                    Some(b"STARTTLS\r\n") => {}
                    _ => reply.extend_from_slice(&line),
                }
                if is_last {
                    break;
                }
            }
            let verb = match std::mem::take(&mut is_greeting) {
                true => String::new(),
                false => lock(&self.dialog).asked.pop_front().unwrap_or_else(|| ".".to_owned()),
            };
            let fails = match self.plan {
                Some((Stage::Greeting, _)) => verb.is_empty(),
                Some((Stage::After(at), _)) => at == verb,
                Some((Stage::Answer, _)) => verb == ".",
                // The client's direction has failed: it hears nothing more.
                _ if self.has_begun() => return Ok(false),
                _ => false,
            };
            if reply.starts_with(b"354") {
                lock(&self.dialog).is_data = true;
            }
            if !fails {
                client.write_all(&reply)?;
                continue;
            }
            self.arm();
            if !self.fail(&reply)? {
                return Ok(false);
            }
        }
    }
}
