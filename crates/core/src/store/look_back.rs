//! A look back: a look among all that is in a mailbox, which may take long. It is done outside of
//! the copy's turn, and its marks say how far it has read. In its turn the
//! delivery reads what came since, and both together are one look in that turn: what comes into a
//! mailbox stands above the marks (RFC 3501 section 2.3.1.1: UIDs rise), and a mailbox that was
//! made anew, or is as it was before its mark, has no mark. Values only.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::SystemTime;

use super::{Copy, CopySearch, FoundCopy, Unindexed};
use crate::lock_key::Hash;
use crate::message::{Identity, SoughtVariant};

/// What a look back has come to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LookedBack {
    pub found: Option<FoundCopy>,
    /// Of each mailbox, by its name as the store has it.
    pub marks: BTreeMap<String, Mark>,
}

/// How far a mailbox was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub validity: u32,
    /// What came since has this UID or a higher one.
    pub next: u32,
}

impl LookedBack {
    /// How much memory it takes, about.
    pub fn bytes(&self) -> usize {
        self.marks.keys().map(|name| name.len() + 64).sum::<usize>() + 256
    }

    /// The lowest UID of what came since into a mailbox that gives its next message the UID
    /// `next_uid` (`None`: it does not say); `None`: all is to be read. A mailbox whose next UID is
    /// below its mark was restored, or its server failed over to one that lacks the last messages:
    /// what comes then has UIDs from below the mark on.
    pub fn next_in(&self, mailbox: &str, validity: u32, next_uid: Option<u32>) -> Option<u32> {
        let mark = self.marks.get(mailbox).filter(|mark| mark.validity == validity)?;
        Some(mark.next).filter(|next| next_uid.is_none_or(|now| now >= *next))
    }
}

/// What is known of a copy that is looked back for, after its message is gone from memory.
#[derive(Debug, Clone)]
pub struct LookBack {
    key: Hash,
    identity: Identity,
    recorded_at: SystemTime,
    handed: Option<[u8; 16]>,
    variant: Option<SoughtVariant>,
    size_bytes: RangeInclusive<u64>,
    has_several_ids: bool,
    is_apart: bool,
}

impl LookBack {
    pub fn of(copy: &Copy<'_>) -> LookBack {
        let CopySearch { handed, variant, size_bytes, has_several_ids, recorded_at, .. } =
            copy.sought();
        let (key, identity) = (*copy.key, copy.identity.clone());
        LookBack {
            key,
            identity,
            recorded_at,
            handed,
            variant,
            size_bytes,
            has_several_ids,
            is_apart: false,
        }
    }

    /// How much memory it takes, about.
    pub fn bytes(&self) -> usize {
        self.identity.message_id.as_ref().map_or(0, Vec::len) + 256
    }

    /// The same, in a session that no delivery waits for.
    pub fn apart(self) -> LookBack {
        LookBack { is_apart: true, ..self }
    }

    /// Whether it has a session of its own; else that of the delivery that goes on with it.
    pub fn is_apart(&self) -> bool {
        self.is_apart
    }

    pub fn recorded_at(&self) -> SystemTime {
        self.recorded_at
    }

    pub fn sought(&self) -> CopySearch<'_> {
        CopySearch {
            key: &self.key,
            identity: &self.identity,
            recorded_at: self.recorded_at,
            looks_back: true,
            looked: None,
            handed: self.handed,
            variant: self.variant.clone(),
            size_bytes: self.size_bytes.clone(),
            has_several_ids: self.has_several_ids,
            needs_proof: false,
            on_record: None,
            by_id: false,
            since: None,
            at_most: 1,
            unindexed: Unindexed::All,
        }
    }
}
