//! Rules that file a recipient's copy by a field of its message (`[[file]]`), such as the verdict
//! of a spam filter. Values only.

use onedrop_core::message::Message;

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRule {
    /// A field's name; case means nothing in it.
    pub header: String,
    /// Its whole value, but for case and blanks around it.
    pub is: String,
    pub mailbox: String,
}

impl FileRule {
    /// Whether one of the fields of that name, wherever it stands, has that value: filters add
    /// theirs on top or at the end, and what a sender forges files nothing but the sender's mail.
    fn applies(&self, message: &Message) -> bool {
        let (name, wanted) = (self.header.to_ascii_lowercase(), self.is.trim().to_lowercase());
        message
            .fields()
            .filter(|field| field.is(name.as_bytes()))
            .any(|field| String::from_utf8_lossy(&field.unfolded()).trim().to_lowercase() == wanted)
    }
}

/// The mailbox of the first rule that applies.
pub fn mailbox_by_rule<'a>(rules: &'a [FileRule], message: &Message) -> Option<&'a str> {
    rules.iter().find(|rule| rule.applies(message)).map(|rule| rule.mailbox.as_str())
}
