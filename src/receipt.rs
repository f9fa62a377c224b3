//! Where a copy is in its mailbox, as the store named it when it took the copy.

/// What tells one stored copy from all others in its mailbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Receipt {
    /// IMAP: UIDVALIDITY and UID (RFC 4315, APPENDUID).
    Uid { validity: u32, uid: u32 },
    /// Maildir: the file's unique name, without the `:2,` flags that others may change. Should two
    /// files have it, a store names the one that is to stay like this and the others with
    /// their folder and flags (`new/NAME`, `cur/NAME:2,S`).
    Name(String),
    /// The store took the copy and gave nothing to name it by (an IMAP server without UIDPLUS).
    Unnamed,
}

impl Receipt {
    /// UIDVALIDITY, UID and file name, as a ledger's columns hold them.
    pub fn columns(&self) -> (Option<i64>, Option<i64>, Option<&str>) {
        match self {
            Receipt::Uid { validity, uid } => {
                (Some(i64::from(*validity)), Some(i64::from(*uid)), None)
            }
            Receipt::Name(name) => (None, None, Some(name)),
            Receipt::Unnamed => (None, None, None),
        }
    }

    /// Whether it names its copy for good: a file named with folder and flags has another name as
    /// soon as it is read.
    pub fn is_lasting(&self) -> bool {
        !matches!(self, Receipt::Name(name) if name.contains('/'))
    }

    /// The receipt that [`columns`](Receipt::columns) took apart; `None` if no version of this
    /// program writes such.
    pub fn from_columns(
        validity: Option<i64>,
        uid: Option<i64>,
        name: Option<String>,
    ) -> Option<Receipt> {
        match (validity, uid, name) {
            (Some(validity), Some(uid), None) => Some(Receipt::Uid {
                validity: u32::try_from(validity).ok()?,
                uid: u32::try_from(uid).ok()?,
            }),
            (None, None, Some(name)) => Some(Receipt::Name(name)),
            (None, None, None) => Some(Receipt::Unnamed),
            _ => None,
        }
    }
}

impl std::fmt::Display for Receipt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Receipt::Uid { uid, .. } => write!(f, "uid={uid}"),
            Receipt::Name(name) => write!(f, "name={name}"),
            Receipt::Unnamed => f.write_str("uid=?"),
        }
    }
}
