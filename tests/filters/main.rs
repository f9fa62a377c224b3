//! Users' Sieve filters, run by a real Dovecot with Pigeonhole for copies that are handed over by
//! LMTP: the guard that is shipped for it, and each kind of filter with each kind of failure.

mod again;
mod dovecot_24;
mod forged;
mod guard;
mod limit;
mod replayed;
mod stories;
mod sweep;
mod variants;

use onedrop_kit as support;
