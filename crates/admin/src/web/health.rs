//! What `/healthz` says. The ledger is asked for one client at a time, and the answer serves all
//! who ask within half a second: however many do, it costs two questions a second. So its turn
//! never rests: a probe must not hear that the ledger is away because others probe.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::turns::Turns;
use super::{PagesState, asked};

/// How long an answer is kept for the next clients.
const KEPT: Duration = Duration::from_millis(500);

/// Fit, or why not.
type Health = Result<(), String>;

/// The last answer, and the turn to ask for a new one.
pub struct KeptHealth {
    turns: Arc<Turns>,
    kept: Mutex<Option<(Instant, Health)>>,
}

impl Default for KeptHealth {
    fn default() -> KeptHealth {
        KeptHealth { turns: Arc::new(Turns::without_rests(1)), kept: Mutex::default() }
    }
}

impl KeptHealth {
    fn kept(&self) -> Option<Health> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.as_ref().filter(|(at, _)| at.elapsed() < KEPT).map(|(_, health)| health.clone())
    }

    fn keep(&self, health: Health) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), health));
    }
}

/// The answer that is kept, or a new one.
pub async fn of(site: &Arc<PagesState>) -> Health {
    if let Some(kept) = site.health.kept() {
        return kept;
    }
    let turn = site.health.turns.turn().await?;
    // Another may have asked while this one waited.
    if let Some(kept) = site.health.kept() {
        return kept;
    }
    let ask = |site: &Arc<PagesState>| {
        let health = site.fits().map_err(|error| format!("ledger: {}", site.told(&error)));
        site.health.keep(health.clone());
        health
    };
    asked(Arc::clone(site), turn, ask).await?
}
