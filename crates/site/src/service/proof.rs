//! The proof that the way into the store is right, renewed when a configuration begins to serve. It
//! is done in a thread of its own, for a mail server may take its time, and writes nothing but the
//! proof on record. What it comes to goes to the log; deliveries ask the gate.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::Service;
use onedrop_core::way::Unproven;

/// How long it may take to renew the proof; deliveries wait for it.
const PROOF: Duration = Duration::from_secs(10);

impl Service {
    /// Renews the proof that the way into the store is right, in the background; deliveries wait
    /// for it.
    pub fn begin_to_renew_the_proof(self: &Arc<Self>) {
        if self.store.way().is_none() {
            return;
        }
        let (asking, service) = (self.gate.begin(), Arc::clone(self));
        let renew = move || {
            let until = Instant::now() + PROOF;
            let directory = &service.config().directory;
            let homes = directory.accounts.values();
            let accounts: Vec<&str> = homes.map(|home| home.account.as_str()).collect();
            let (ledger, store) = (&*service.ledger, &*service.store);
            match asking.renew(&accounts, &service.host, ledger, store, until) {
                Ok(proof) => tracing::info!("store: {}", proof.unwrap_or_default()),
                Err(Unproven::Ignores(why)) => {
                    tracing::error!("store: {why}; until that is mended all mail is deferred")
                }
                Err(Unproven::Unknown(failure)) => {
                    tracing::warn!("{failure}; without a proof on record nothing is written")
                }
            }
        };
        if let Err(error) = thread::Builder::new().name("proof".to_owned()).spawn(renew) {
            tracing::warn!(%error, "no thread to find out for whom the mail server lets us act");
        }
    }
}
