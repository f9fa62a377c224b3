//! The queue id of a message for which none came by XFORWARD: lmtp(8) sends that only for mail with
//! a client, so not for what was submitted on its own host. Postfix wrote it into the top-most
//! Received field (smtpd_proto.c and pickup.c in its sources): `by HOST (Postfix...) ... id
//! QUEUEID`. That field is text like any other, so the id is for people, in log and trace. What
//! else goes by it is the age of the message, which the same field would say without it.

use onedrop_core::message::Message;

/// The longest queue id, with room to spare: long ones have 11 to 15 characters
/// (enable_long_queue_ids in postconf(5)).
const LONGEST: usize = 20;

/// The queue id in the message's top-most Received field, if Postfix wrote that.
pub fn of(message: &Message) -> Option<String> {
    in_received(&String::from_utf8_lossy(&message.first("received")?)).map(str::to_owned)
}

fn in_received(value: &str) -> Option<&str> {
    let tokens = tokens(value);
    let is_word = |token: &str| !token.starts_with('(');
    let by = tokens.windows(3).position(|three| {
        three[0] == "by" && is_word(three[1]) && three[2].starts_with("(Postfix")
    })?;
    let id = tokens[by..].windows(2).find(|two| two[0] == "id" && is_word(two[1]))?[1];
    let is_one =
        (1..=LONGEST).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_one.then_some(id)
}

/// Words, and comments with their parentheses, up to the semicolon before the date (RFC 5322
/// section 3.6.7).
fn tokens(value: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = value.trim_start();
    while let Some(first) = rest.chars().next().filter(|first| *first != ';') {
        let end = match first {
            '(' => comment_end(rest),
            _ => rest.find([' ', '\t', '(', ';']),
        };
        let (token, after) = rest.split_at(end.unwrap_or(rest.len()));
        tokens.push(token);
        rest = after.trim_start();
    }
    tokens
}

/// Where the comment ends that `text` begins with; comments nest (RFC 5322 section 3.2.2).
fn comment_end(text: &str) -> Option<usize> {
    let (mut depth, mut is_quoted) = (0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_quoted => is_quoted = false,
            b'\\' => is_quoted = true,
            b'(' => depth += 1,
            b')' if depth == 1 => return Some(at + 1),
            b')' => depth -= 1,
            _ => {}
        }
    }
    None
}
