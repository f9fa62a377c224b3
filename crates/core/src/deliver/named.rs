//! Which copy of the message each destination means. Where filters run, or NUL is kept, the message
//! may be a [variant](crate::message::filter_variant) of the one that is on record, and has a copy
//! of its own there; Sent, and the message itself, know no variants.
//!
//! Which fields count is on record in the ledger. A record that rests on another list is refused
//! there, whoever has changed it meanwhile. After a change a copy that was named by a list before
//! it keeps that name, so that what is in flight stays single.

use super::{DeliveryRequest, Failure, Means};
use crate::directory::Destination;
use crate::ledger::{FilterFields, LedgerError};
use crate::message;

/// Destinations by the names that the ledger has for their copies.
pub(super) struct Named {
    own: Vec<Option<Destination>>,
    destinations: Vec<Destination>,
    /// By which they are named, if one of them hangs on it.
    pub fields: Option<FilterFields>,
}

impl Named {
    /// `anew`: what was read of the ledger before is not on record any more.
    pub fn new(
        job: &DeliveryRequest<'_>,
        means: Means<'_>,
        anew: bool,
    ) -> Result<Named, LedgerError> {
        let Means { ledger, store, deadline, .. } = means;
        let mut named = Named { own: job.own.to_vec(), destinations: Vec::new(), fields: None };
        let mut by_nul = None;
        for one in job.destinations {
            let variant = if one.shared {
                String::new()
            } else if store.hands_over(one) {
                let fields = match named.fields.take() {
                    Some(fields) => fields,
                    None => ledger.filter_fields(anew, deadline.end())?,
                };
                let variant = by_fields(job, means, one, &fields)?;
                named.fields = Some(fields);
                variant
            } else if store.keeps_nul() {
                by_nul.get_or_insert_with(|| message::nul_variant(job.message)).clone()
            } else {
                String::new()
            };
            let copy = one.of_variant(&variant);
            for own in named.own.iter_mut().flatten().filter(|own| own.is_same_mailbox(one)) {
                *own = copy.clone();
            }
            named.destinations.push(copy);
        }
        Ok(named)
    }

    /// The names by what is on record now, if that is why the record was refused.
    pub fn anew(
        &self,
        job: &DeliveryRequest<'_>,
        means: Means<'_>,
        refused: &Failure,
    ) -> Option<Named> {
        let Failure::Ledger(LedgerError::OtherConfig(_)) = refused else { return None };
        Named::new(job, means, true).ok().filter(|anew| anew.fields != self.fields)
    }

    pub fn request<'a>(&'a self, job: &DeliveryRequest<'a>) -> DeliveryRequest<'a> {
        DeliveryRequest { own: &self.own, destinations: &self.destinations, ..*job }
    }
}

/// The variant by the list in force; by a list before it, where a copy of that name is on record
/// and none of the other.
fn by_fields(
    job: &DeliveryRequest<'_>,
    means: Means<'_>,
    destination: &Destination,
    fields: &FilterFields,
) -> Result<String, LedgerError> {
    let Means { ledger, deadline, .. } = means;
    let (identity, until) = (job.message.identity(), deadline.end());
    let variant = message::filter_variant(job.message, &fields.list);
    let is_on_record =
        |variant: &str| ledger.has_copy(identity, &destination.of_variant(variant), until);
    for list in fields.former_lists(ledger.time()) {
        let former = message::filter_variant(job.message, &list);
        if former != variant && is_on_record(&former)? && !is_on_record(&variant)? {
            return Ok(former);
        }
    }
    Ok(variant)
}
