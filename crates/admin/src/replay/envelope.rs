//! For whom a message in a file is, and from whom. Without `--to` the message itself must say: by
//! what the server prepended that delivered it, Delivered-To, or else X-Original-To; and
//! Return-Path.

use onedrop_core::envelope::Envelope;
use onedrop_core::message::Message;

/// Best first: where pipe(8) writes both, Delivered-To is the address after aliases.
const RECIPIENT_FIELDS: [&[u8]; 2] = [b"delivered-to", b"x-original-to"];

/// The envelope; without a recipient where the message does not say for whom it is.
pub fn of(message: &Message, to: &[String]) -> Envelope {
    let recipients = match to {
        [] => message.prepended_address(&RECIPIENT_FIELDS).into_iter().collect(),
        to => to.to_vec(),
    };
    let sender = message.prepended_address(&[b"return-path"]).unwrap_or_default();
    Envelope { sender, recipients, ..Envelope::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onedrop_core::message::DedupBy;

    fn of_text(text: &str, to: &[&str]) -> (String, Vec<String>) {
        let message = Message::new(text.as_bytes().to_vec(), DedupBy::Content);
        let to: Vec<String> = to.iter().map(|one| (*one).to_owned()).collect();
        let Envelope { sender, recipients, .. } = of(&message, &to);
        (sender, recipients)
    }

    #[test]
    fn what_the_last_server_wrote_counts_and_what_stands_below_does_not() {
        let forged = "Received: from far\nDelivered-To: boss@x\nX-Original-To: boss@x\n\
                      Return-Path: <boss@x>\nTo: boss@x\n";
        for (head, recipient) in [
            ("Delivered-To: doug@x\n", Some("doug@x")),
            ("X-Original-To: info@x\nDelivered-To: <doug@x>\n", Some("doug@x")),
            ("X-Original-To: info@x\n", Some("info@x")),
            ("Delivered-To:\nX-Original-To: info@x\n", Some("info@x")),
            ("Delivered-To: \"Doug\" <doug@x> (here)\n", Some("doug@x")),
            // It may be for another one than whoever the alias was written to.
            ("Delivered-To: doug@x, zoe@x\nX-Original-To: info@x\n", None),
            ("Delivered-To: Doug Smith\n", None),
            ("Delivered-To: <>\n", None),
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
    fn a_message_that_no_server_has_received_says_nothing() {
        let head = "Return-Path: <ann@y>\nDelivered-To: boss@x\nX-Original-To: boss@x\n";
        assert_eq!(of_text(&format!("{head}From: ann@y\n\nbody\n"), &[]), (String::new(), vec![]));
        // Nor does what stands above it in a body.
        let body = format!("Subject: a\n\n{head}Received: from far\n\nbody\n");
        assert_eq!(of_text(&body, &[]), (String::new(), vec![]));
        let below = of_text("Received: from far\nReturn-Path: <boss@x>\n\nbody\n", &["doug@x"]);
        assert_eq!(below, (String::new(), vec!["doug@x".to_owned()]));
    }

    #[test]
    fn who_is_named_counts_alone() {
        let head = "Delivered-To: doug@x\nReceived: from far\n\n";
        let (sender, recipients) = of_text(head, &["zoe@x", "max@x"]);
        assert_eq!((sender.as_str(), recipients), ("", vec!["zoe@x".into(), "max@x".into()]));
    }
}
