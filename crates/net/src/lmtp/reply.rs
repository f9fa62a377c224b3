//! Replies. Written, each is one line of printable ASCII, at most 512 bytes with its CRLF (RFC 5321
//! section 4.5.3.1.5); the digits follow the outcome. Read, a reply may have several lines.

use onedrop_core::outcome::Outcome;
use onedrop_core::text;

/// Bytes of the longest reply line, CRLF included.
pub const LONGEST: usize = 512;

/// A recipient's reply for how its delivery ended: `250 2.0.0 text`, `451 4.3.0 text`, `550 5.1.1
/// text`, with CRLF.
pub fn reply(outcome: &Outcome) -> Vec<u8> {
    let status = outcome.status().to_string();
    let code = match outcome {
        Outcome::Delivered(_) => "250",
        Outcome::TempFail(..) => match status.as_str() {
            "4.2.2" | "4.2.3" => "452",
            _ => "451",
        },
        Outcome::PermFail(..) => match status.as_str() {
            "5.2.2" | "5.2.3" | "5.3.4" => "552",
            _ => "550",
        },
    };
    let mut out = Vec::new();
    line(&mut out, &format!("{code} {status} {}", outcome.text()));
    out
}

/// Appends one reply line; what is too long is cut.
pub fn line(out: &mut Vec<u8>, text: &str) {
    out.extend(text::ascii(text).bytes().take(LONGEST - 2));
    out.extend_from_slice(b"\r\n");
}

/// A reply that was read: its code, and its lines' texts.
#[derive(Debug)]
pub struct Reply {
    pub code: u16,
    pub lines: Vec<String>,
}

impl Reply {
    /// How a delivery ended, by a server of ours.
    pub fn outcome(&self) -> Outcome {
        Outcome::of_reply(self.code, &self.lines.join(" "))
    }
}

/// A reply line's code, whether it is the reply's last, and its text (RFC 5321 section 4.2).
pub fn parse(line: &str) -> Option<(u16, bool, &str)> {
    let code = line
        .get(..3)
        .filter(|code| code.bytes().all(|byte| byte.is_ascii_digit()))?
        .parse()
        .ok()?;
    match line[3..].chars().next() {
        _ if !(200..600).contains(&code) => None,
        None => Some((code, true, "")),
        Some(' ') => Some((code, true, &line[4..])),
        Some('-') => Some((code, false, &line[4..])),
        Some(_) => None,
    }
}
