//! The messages of a soak, each made from its number alone: what stands in a mailbox can be
//! compared byte for byte with what was sent, without keeping a million messages.

use std::time::SystemTime;

/// How many accounts they go to.
pub const ACCOUNTS: u64 = 200;
pub const DOMAIN: &str = "mail.axial.net";
pub const SENDER: &str = "ann@elsewhere.example";

const ID: &str = "<soak.";

/// All messages of a run.
#[derive(Clone)]
pub struct Letters {
    /// Two hours ahead: an hour beyond what the ledger remembers, so that the Date of a message
    /// never makes it one of long ago, however short the ledger's memory is.
    date: String,
}

impl Letters {
    pub fn new() -> Letters {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let ahead = i64::try_from(now.as_secs()).unwrap_or_default() + 7200;
        let time = chrono::DateTime::from_timestamp(ahead, 0).expect("a time");
        Letters { date: time.format("%a, %d %b %Y %H:%M:%S +0000").to_string() }
    }

    /// The message of this number, of 400 to 6,000 bytes.
    pub fn letter(&self, number: u64) -> String {
        let mut text = format!(
            "From: Ann <{SENDER}>\nTo: u{}@{DOMAIN}\nDate: {}\nSubject: letter {number}\n\
             Message-ID: {ID}{number}@elsewhere.example>\nMIME-Version: 1.0\n\
             Content-Type: text/plain; charset=utf-8\n\nThis is letter {number}.\n",
            number % ACCOUNTS,
            self.date
        );
        let line =
            format!("one of the lines of letter {number}, with as much text as lines have\n");
        text.push_str(&line.repeat((number * 7919 % 80) as usize));
        text
    }
}

/// The accounts that a message goes to; every eighth has two.
pub fn accounts(number: u64) -> impl Iterator<Item = u64> {
    let second = number.is_multiple_of(8).then(|| (number + ACCOUNTS / 2) % ACCOUNTS);
    std::iter::once(number % ACCOUNTS).chain(second)
}

/// Which message this is, by its Message-ID.
fn number_of(copy: &[u8]) -> Option<u64> {
    let at = memchr::memmem::find(copy, ID.as_bytes())? + ID.len();
    let digits = copy[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&copy[at..at + digits]).ok()?.parse().ok()
}

impl Letters {
    /// Which message a file in a Maildir is: its trace fields, and then, byte for byte, what was
    /// sent.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn number_of(&self, copy: &[u8]) -> Result<u64, String> {
        let number = number_of(copy).ok_or("no message of ours")?;
        let head = copy.strip_suffix(self.letter(number).as_bytes());
        let head = head.ok_or(format!("{number} is not what was sent"))?;
        let fields = head.split_inclusive(|byte| *byte == b'\n');
        let names = [&b"Return-Path:"[..], b"Delivered-To:", b"Received:", b" ", b"\t"];
        for line in fields {
            if !names.iter().any(|name| line.starts_with(name)) {
                return Err(format!("{number} begins with {:?}", line.escape_ascii().to_string()));
            }
        }
        Ok(number)
    }
}
