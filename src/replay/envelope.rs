//! For whom a message in a file is. Without `--to` the message itself must say: the top-most
//! Delivered-To, or else X-Original-To, above the first Received field. There only the server that
//! delivered it writes. What stands below, or in To and Cc, anybody can have written, and mail
//! would go into mailboxes that the sender chose.

use crate::envelope::Envelope;
use crate::message::Message;

/// Best first: where pipe(8) writes both, Delivered-To is the address behind aliases.
const RECIPIENT_FIELDS: [&[u8]; 2] = [b"delivered-to", b"x-original-to"];

/// The envelope; without a recipient where the message does not say for whom it is.
pub fn of(message: &Message, to: &[String]) -> Envelope {
    let text = |value: Vec<u8>| {
        let text = String::from_utf8_lossy(&value).into_owned();
        text.trim_matches(['<', '>']).to_owned()
    };
    let is_above = |field: &crate::message::Field<'_>| !field.is(b"received");
    let said = |name: &[u8]| {
        let mut above = message.fields().take_while(is_above);
        let value = above.find(|field| field.is(name)).map(|field| text(field.unfolded()));
        value.filter(|address| !address.is_empty())
    };
    let recipients = match to {
        [] => RECIPIENT_FIELDS.into_iter().find_map(said).into_iter().collect(),
        to => to.to_vec(),
    };
    let sender = message.first("return-path").map(text).unwrap_or_default();
    Envelope { sender, recipients, ..Envelope::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::DedupBy;

    fn of_text(text: &str, to: &[&str]) -> (String, Vec<String>) {
        let message = Message::new(text.as_bytes().to_vec(), DedupBy::Content);
        let to: Vec<String> = to.iter().map(|one| (*one).to_owned()).collect();
        let Envelope { sender, recipients, .. } = of(&message, &to);
        (sender, recipients)
    }

    #[test]
    fn what_the_last_server_wrote_counts_and_what_stands_below_does_not() {
        let forged =
            "Received: from far\nDelivered-To: boss@x\nX-Original-To: boss@x\nTo: boss@x\n";
        for (head, recipient) in [
            ("Delivered-To: doug@x\n", Some("doug@x")),
            ("X-Original-To: info@x\nDelivered-To: <doug@x>\n", Some("doug@x")),
            ("X-Original-To: info@x\n", Some("info@x")),
            ("Delivered-To:\nX-Original-To: info@x\n", Some("info@x")),
            ("X-Spam: no\ndelivered-to: doug@x\nDelivered-To: other@x\n", Some("doug@x")),
            ("", None),
        ] {
            let (sender, recipients) =
                of_text(&format!("Return-Path: <ann@y>\n{head}{forged}\nbody\n"), &[]);
            assert_eq!(sender, "ann@y");
            assert_eq!(recipients, recipient.into_iter().collect::<Vec<_>>(), "{head}");
        }
    }

    #[test]
    fn who_is_named_counts_alone() {
        let (sender, recipients) = of_text("Delivered-To: doug@x\n\n", &["zoe@x", "max@x"]);
        assert_eq!((sender.as_str(), recipients), ("", vec!["zoe@x".into(), "max@x".into()]));
    }
}
