//! The queue id of a message for which none came by XFORWARD: lmtp(8) sends that only for mail with
//! a client, so not for what was submitted on its own host. Postfix wrote it into the top-most
//! Received field (smtpd_proto.c and pickup.c in its sources): `by HOST (Postfix...) ... id
//! QUEUEID`. That field is text like any other, so the id is for people: it goes into log and
//! trace, and nothing else follows from it.

use crate::message::Message;

/// The longest queue id, with room to spare: long ones have 11 to 15 characters
/// (enable_long_queue_ids in postconf(5)).
const LONGEST: usize = 20;

/// The queue id in the message's top-most Received field, if Postfix wrote that.
pub fn of(message: &Message) -> Option<String> {
    in_received(&String::from_utf8_lossy(&message.first("received")?)).map(str::to_owned)
}

fn in_received(value: &str) -> Option<&str> {
    let tokens = tokens(value);
    let by = tokens.windows(3).position(|three| match three {
        [Token::Word("by"), Token::Word(_), Token::Comment(by)] => by.starts_with("(Postfix"),
        _ => false,
    })?;
    let id = tokens[by..].windows(2).find_map(|two| match two {
        [Token::Word("id"), Token::Word(id)] => Some(*id),
        _ => None,
    })?;
    let is_one =
        (1..=LONGEST).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_one.then_some(id)
}

enum Token<'a> {
    Word(&'a str),
    /// With its parentheses.
    Comment(&'a str),
}

/// Words and comments up to the semicolon before the date (RFC 5322 section 3.6.7).
fn tokens(value: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = value.trim_start();
    while let Some(first) = rest.chars().next().filter(|first| *first != ';') {
        let is_comment = first == '(';
        let end = if is_comment { comment_end(rest) } else { rest.find([' ', '\t', '(', ';']) };
        let (token, after) = rest.split_at(end.unwrap_or(rest.len()));
        tokens.push(if is_comment { Token::Comment(token) } else { Token::Word(token) });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::DedupBy;

    #[test]
    fn it_stands_where_postfix_writes_it_and_is_nothing_else() {
        let cases = [
            (
                "by mx.axial.net (Postfix, from userid 1000)\n\tid 4dDgX61Kz9z1bC; Sat, 21 Nov \
                 2026 12:00:00 +0000 (UTC)",
                "4dDgX61Kz9z1bC",
            ),
            (
                "from mail (host [192.0.2.1])\n\t(using TLSv1.3 with cipher X (256/256 bits))\n\
                 \t(No client certificate requested)\n\t(Authenticated sender: a\\)b)\n\tby \
                 mx.axial.net (Postfix) with ESMTPSA id A1B2C3D4E5F\n\tfor <x@y>; today",
                "A1B2C3D4E5F",
            ),
            (
                "from by (id EVIL (Postfix) id EVIL2) by mx (Postfix/Debian) with SMTP id \
                 0123456789abcdefABCD;",
                "0123456789abcdefABCD",
            ),
            ("by mx (Postfix) id 0123456789abcdefABCDE;", ""),
            ("by mx (Postfix) with LMTP id a-b;", ""),
            ("by mx (Postfix) with LMTP id ;", ""),
            ("by mx (Postfix) with LMTP; id A1", ""),
            ("by mx (Postfix id A1", ""),
            ("by mx (Exim) with LMTP id A1;", ""),
            ("by mx with LMTP id A1;", ""),
            ("from (by mx (Postfix) id A1) by mx (Onedrop) with LMTP id A2;", ""),
            ("(((((", ""),
            ("by mx (Postfix) id \u{fc}1;", ""),
            ("", ""),
        ];
        for (value, expected) in cases {
            let text = format!(
                "X: y\nReceived: {value}\nReceived: by mx (Postfix) id OTHER; then\n\nbody\n"
            );
            let message = Message::new(text.into_bytes(), DedupBy::Content);
            assert_eq!(of(&message).unwrap_or_default(), expected, "{value}");
        }
        assert_eq!(
            of(&Message::new(
                b"Subject: x\n\nReceived: by a (Postfix) id A1;\n".to_vec(),
                DedupBy::Content
            )),
            None
        );
    }
}
