//! The part of `onedrop check` about "onedrop lmtp": whether somebody listens where `deliver.via`
//! sends messages.

use super::bounded::{reach, shown};
use super::finding::{Finding, Severity};
use crate::config::Loaded;

pub(super) fn findings(loaded: &Loaded) -> Option<Finding> {
    let via = loaded.config.deliver.via.as_deref()?;
    let place = via.display();
    Some(match reach(via) {
        Ok(()) => {
            Finding::new(Severity::Ok, "lmtp", format!("deliver.via: somebody listens at {place}"))
        }
        Err(error) => {
            let text = format!(
                "deliver.via: nobody can be reached at {place} ({}): each delivery opens \
                 connections of its own; start onedrop-lmtp.socket, or leave the key out",
                shown(&error)
            );
            Finding::new(Severity::Warning, "lmtp", text)
        }
    })
}
