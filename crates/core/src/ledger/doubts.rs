//! The copies that are shown to people as doubts.

/// What the rules ask of a copy's row.
#[derive(Debug, Clone, Copy)]
pub struct CopyDoubt {
    pub in_doubt: bool,
    pub prior_doubt: bool,
    pub looks_back: bool,
    pub has_lease: bool,
    /// NULL is 0.
    pub placed_epoch: i64,
    pub epoch: i64,
    pub is_placed: bool,
    pub is_settled: bool,
}

impl CopyDoubt {
    /// Whether a copy that is not placed may stand in its mailbox. That it looks back is no doubt
    /// by itself.
    pub fn is_in_doubt(self) -> bool {
        let was_only_given_back = !self.has_lease && self.placed_epoch == self.epoch;
        self.in_doubt && !(self.looks_back && was_only_given_back)
    }

    /// Whether more than one delivery may have written it.
    pub fn may_be_double(self) -> bool {
        self.epoch > 1 || self.prior_doubt
    }

    /// Whether it is shown to people as one that wants another look.
    pub fn wants_a_look(self) -> bool {
        !self.is_placed || !self.is_settled && (self.epoch > 1 || !self.looks_back)
    }
}
