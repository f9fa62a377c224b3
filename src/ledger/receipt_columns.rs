//! A receipt as the columns of SQL hold it: UIDVALIDITY, UID and file name, each of which may be
//! NULL.

use crate::receipt::Receipt;

/// The columns of `receipt`.
pub fn columns(receipt: &Receipt) -> (Option<i64>, Option<i64>, Option<&str>) {
    match receipt {
        Receipt::Uid { validity, uid } => (Some((*validity).into()), Some((*uid).into()), None),
        Receipt::Name(name) => (None, None, Some(name)),
        Receipt::Unnamed => (None, None, None),
    }
}

/// The receipt that [`columns`] took apart; `None` if no version of this program writes such.
pub fn receipt(validity: Option<i64>, uid: Option<i64>, name: Option<String>) -> Option<Receipt> {
    match (validity, uid, name) {
        (Some(validity), Some(uid), None) => {
            Some(Receipt::Uid { validity: validity.try_into().ok()?, uid: uid.try_into().ok()? })
        }
        (None, None, Some(name)) => Some(Receipt::Name(name)),
        (None, None, None) => Some(Receipt::Unnamed),
        _ => None,
    }
}
