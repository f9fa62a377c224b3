//! Reads Authentication-Results (RFC 8601 section 2.2) by hand: the crate that knows the field,
//! mail-auth, only writes it. Promise: where a server copied a sender's text into its field as it
//! came, so that a comment or a quoted text ends too early, or swallows what follows it, no result
//! of the field counts. Comments (RFC 5322 section 3.2.2, nested) are blanks.

/// What the field says of DMARC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Dmarc {
    /// Nothing, or another server wrote the field.
    Silent,
    Pass {
        /// Whose From it was, in lower case.
        from: String,
    },
    /// Another result, results that differ, or a field that is broken.
    NoPass,
}

/// What the field with this value says, if `authserv_id` wrote it.
pub(super) fn dmarc(value: &str, authserv_id: &str) -> Dmarc {
    let (tokens, is_whole) = tokens(value);
    let mut clauses = tokens.split(|token| *token == Piece::Semicolon);
    match clauses.next().and_then(<[Piece]>::first) {
        Some(Piece::Word(id)) if id.trim_matches('"').eq_ignore_ascii_case(authserv_id) => {}
        _ => return Dmarc::Silent,
    }
    if !is_whole || names_another_result(value) {
        return Dmarc::NoPass;
    }
    let of_clauses = clauses.map(of_clause).filter(|said| *said != Dmarc::Silent);
    of_clauses.reduce(agreed).unwrap_or(Dmarc::Silent)
}

/// What two results come to that speak of the same mail.
pub(super) fn agreed(one: Dmarc, other: Dmarc) -> Dmarc {
    if one == other { one } else { Dmarc::NoPass }
}

/// Whether `dmarc=` with another result than `pass` stands anywhere, in comments and quoted text as
/// well: a sender's text before it and after it may have made it a part of a comment.
fn names_another_result(value: &str) -> bool {
    let mut squeezed = value.to_ascii_lowercase();
    squeezed.retain(|c| !c.is_ascii_whitespace());
    squeezed
        .match_indices("dmarc=")
        .any(|(at, name)| !squeezed[at + name.len()..].starts_with("pass"))
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Semicolon,
    Equal,
    /// Quoted text in it keeps its quotes.
    Word(String),
}

/// The tokens, and whether all comments and quoted texts begin and end. Quotes in a comment count,
/// though they mean nothing there: an address with `)` in its quotes ends the comment.
fn tokens(value: &str) -> (Vec<Piece>, bool) {
    let (mut tokens, mut word) = (Vec::new(), String::new());
    let (mut depth, mut is_quoted, mut is_quoted_in_comment) = (0u32, false, false);
    let mut is_whole = true;
    let mut chars = value.chars();
    let end_word = |tokens: &mut Vec<Piece>, word: &mut String| {
        if !word.is_empty() {
            tokens.push(Piece::Word(std::mem::take(word)));
        }
    };
    while let Some(c) = chars.next() {
        if c == '\\' {
            let escaped = chars.next();
            is_whole &= escaped.is_some() && (is_quoted || depth > 0);
            if depth == 0 {
                word.extend([c].into_iter().chain(escaped));
            }
            continue;
        }
        if depth > 0 {
            match c {
                '(' => depth += 1,
                ')' => {
                    depth -= 1;
                    is_whole &= depth > 0 || !is_quoted_in_comment;
                }
                '"' => is_quoted_in_comment = !is_quoted_in_comment,
                _ => {}
            }
            continue;
        }
        match c {
            '"' => {
                is_quoted = !is_quoted;
                word.push(c);
            }
            _ if is_quoted => word.push(c),
            '(' => {
                end_word(&mut tokens, &mut word);
                (depth, is_quoted_in_comment) = (1, false);
            }
            ')' => is_whole = false,
            ';' | '=' => {
                end_word(&mut tokens, &mut word);
                tokens.push(if c == ';' { Piece::Semicolon } else { Piece::Equal });
            }
            _ if c.is_ascii_whitespace() => end_word(&mut tokens, &mut word),
            _ => word.push(c),
        }
    }
    end_word(&mut tokens, &mut word);
    (tokens, is_whole && depth == 0 && !is_quoted)
}

/// What one clause says: `dmarc=pass header.from=gmail.com`, with blanks and comments around each
/// `=`, the dot of a property and the slash of a version.
fn of_clause(clause: &[Piece]) -> Dmarc {
    let mut parts = clause.split(|token| *token == Piece::Equal);
    let method = joined(parts.next().unwrap_or_default());
    if !method.split('/').next().is_some_and(|name| name.eq_ignore_ascii_case("dmarc")) {
        return Dmarc::Silent;
    }
    // Between two `=` are a value and the name of what comes next.
    let parts: Vec<&[Piece]> = parts.collect();
    let value = |part: &[Piece]| part.first().map(|word| joined(std::slice::from_ref(word)));
    let result = parts.first().and_then(|part| value(part));
    let from = parts.windows(2).filter(|pair| {
        let name = pair[0].get(1..).unwrap_or_default();
        joined(last_name(name)).eq_ignore_ascii_case("header.from")
    });
    let mut from: Vec<String> = from
        .map(|pair| value(pair[1]).unwrap_or_default().trim_matches('"').to_ascii_lowercase())
        // Some servers write the whole address.
        .map(|from| from.rsplit_once('@').map_or(from.clone(), |(_, domain)| domain.to_owned()))
        .collect();
    from.dedup();
    match (result, from.as_slice()) {
        (Some(result), [from]) if result.eq_ignore_ascii_case("pass") => {
            Dmarc::Pass { from: from.clone() }
        }
        _ => Dmarc::NoPass,
    }
}

/// The last name in these words: one word, or several around dots.
fn last_name(words: &[Piece]) -> &[Piece] {
    let touches = |pair: &[Piece]| match pair {
        [Piece::Word(one), Piece::Word(next)] => one.ends_with('.') || next.starts_with('.'),
        _ => false,
    };
    let joints = words.windows(2).rev().take_while(|pair| touches(pair)).count();
    &words[words.len() - words.len().min(joints + 1)..]
}

fn joined(words: &[Piece]) -> String {
    let text = |token: &Piece| match token {
        Piece::Word(word) => word.clone(),
        Piece::Semicolon | Piece::Equal => String::new(),
    };
    words.iter().map(text).collect()
}
