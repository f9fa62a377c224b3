//! Whose Sent a message belongs in: From and Authentication-Results, which anyone can write.

use onedrop::envelope::Envelope;
use onedrop::message::{DedupBy, Message};
use onedrop::sender::{Author, Trust, author};

use super::harness::Target;
use super::message::{DICTIONARY, crlf, folded, seeds, takes_fields_on_top};

pub const TARGET: Target = Target { seeds, dictionary: DICTIONARY, check };

const OURS: &str = "mail.axial.net";

pub fn check(input: &[u8]) {
    let message = Message::new(input.to_vec(), DedupBy::Content);
    let own = message.own_copy();
    let by_results = author_of(own, "", Trust::Authenticated);
    assert_eq!(author_of(&crlf(own), "", Trust::Authenticated), by_results, "with CRLF");
    assert_eq!(author_of(&folded(own), "", Trust::Authenticated), by_results, "folded");
    assert_eq!(author_of(own, "doug", Trust::Never), None);

    let anyone = author_of(own, "", Trust::Header);
    let by_login = author_of(own, "doug", Trust::Authenticated);
    if let Some(author) = &anyone {
        let address = &author.address;
        assert!(
            address.matches('@').count() == 1 && *address == address.to_lowercase(),
            "{address:?}"
        );
        assert!(!address.contains(char::is_control), "{address:?}");
        assert_eq!(author.if_same_account_as, None);
    }
    let same = |one: &Option<Author>, other: &Option<Author>| {
        one.as_ref().map(|author| &author.address) == other.as_ref().map(|author| &author.address)
    };
    // Of one that was sent anew a login alone says who did it.
    // Read anew: a second line `From ` at its begin is taken off then.
    let again = Message::new(own.to_vec(), DedupBy::Content);
    let is_resent = again.fields().any(|field| field.name_lower().starts_with(b"resent-"));
    assert!(same(&anyone, &by_login) || is_resent && anyone.is_none());
    assert!(by_results.is_none() || by_results == anyone);
    assert_eq!(
        by_login.is_some_and(|author| author.if_same_account_as.is_none()),
        by_results.is_some()
    );

    // Where our name stands nowhere, no results count.
    let others: Vec<u8> = input
        .iter()
        .map(|byte| if byte.eq_ignore_ascii_case(&b'x') { b'y' } else { *byte })
        .collect();
    assert_eq!(author_of(&others, "", Trust::Authenticated), None, "nobody's results");

    if takes_fields_on_top(&message) {
        let with = |results: &str| {
            let field = format!("Authentication-Results: {OURS}; {results}\n");
            author_of(&[field.as_bytes(), own].concat(), "", Trust::Authenticated)
        };
        assert_eq!(with("dmarc=fail header.from=gmail.com"), None, "one says fail");
        assert_eq!(with("dmarc=pass header.from=nobody.invalid"), None, "one names another domain");
        if let Some(Author { address, .. }) = &anyone {
            let domain = address.split_once('@').expect("one @").1;
            // Characters that mean something in the field are no domain's.
            let is_plain = domain
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'));
            // Another field of ours may say something else.
            if is_plain && message.first("authentication-results").is_none() {
                assert_eq!(
                    with(&format!("dmarc=pass header.from={domain}")),
                    anyone,
                    "it says pass"
                );
            }
        }
    }
}

fn author_of(bytes: &[u8], login: &str, trust: Trust) -> Option<Author> {
    let message = Message::new(bytes.to_vec(), DedupBy::Content);
    let envelope = Envelope { sasl_username: login.to_owned(), ..Envelope::default() };
    author(&message, &envelope, trust, OURS)
}
