//! Sessions kept between deliveries: with a limit on those in use at a time, for one key and in
//! all, and on those that are kept. What a user had trouble with is thrown away; what was not used
//! for a while is closed. Waiting is bounded, first come is not promised to be first served. By
//! hand: r2d2 knows no keys, and has threads of its own.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// In use at a time.
    pub used: usize,
    /// In use at a time for one key.
    pub per_key: usize,
    /// Kept for the next user.
    pub kept: usize,
    /// Unused ones are closed after this.
    pub idle: Duration,
}

/// A pool of `T`, each for one key (an account; or one key for all).
pub struct Pool<T> {
    limits: Limits,
    state: Mutex<PoolState<T>>,
    freed: Condvar,
}

struct PoolState<T> {
    /// The one used last is at the end.
    idle: Vec<Idle<T>>,
    used: usize,
    by_key: HashMap<String, usize>,
    /// Those that wait for one to come free.
    waiting: usize,
    /// Nothing is kept any more.
    retired: bool,
}

struct Idle<T> {
    key: String,
    since: Instant,
    item: T,
}

/// All that may be in use are, and none came free in time.
#[derive(Debug, thiserror::Error)]
#[error("none free in time")]
pub struct Exhausted;

impl<T> Pool<T> {
    pub fn new(limits: Limits) -> Pool<T> {
        let (idle, by_key) = (Vec::new(), HashMap::new());
        let state = PoolState { idle, used: 0, by_key, waiting: 0, retired: false };
        Pool { limits, state: Mutex::new(state), freed: Condvar::new() }
    }

    /// Takes the right to use one for `key`, and a kept one if there is any; waits until `until`.
    ///
    /// # Errors
    /// See [`Exhausted`].
    pub fn take(self: &Arc<Self>, key: &str, until: Instant) -> Result<Pooled<T>, Exhausted> {
        let mut state = self.state();
        while state.used >= self.limits.used
            || state.by_key.get(key).copied().unwrap_or(0) >= self.limits.per_key
        {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Exhausted);
            }
            state.waiting += 1;
            state = self.freed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            state.waiting -= 1;
        }
        state.used += 1;
        *state.by_key.entry(key.to_owned()).or_insert(0) += 1;
        let at = state.idle.iter().rposition(|idle| idle.key == key);
        let item = at.map(|at| state.idle.remove(at).item);
        Ok(Pooled { pool: Arc::clone(self), key: key.to_owned(), item, is_sound: true })
    }

    /// Closes what was not used for too long.
    pub fn close_idle(&self) {
        let mut state = self.state();
        let stale = state.idle.partition_point(|idle| idle.since.elapsed() >= self.limits.idle);
        let closed: Vec<Idle<T>> = state.idle.drain(..stale).collect();
        // Closing may take a while, and others want the lock.
        drop(state);
        drop(closed);
    }

    /// Closes those that are kept for `key`.
    pub fn close(&self, key: &str) {
        let mut state = self.state();
        let (closed, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.idle).into_iter().partition(|idle| idle.key == key);
        state.idle = kept;
        drop(state);
        drop(closed);
    }

    /// Closes all that are kept, and keeps none from now on.
    pub fn retire(&self) {
        let mut state = self.state();
        state.retired = true;
        let closed = std::mem::take(&mut state.idle);
        drop(state);
        drop(closed);
    }

    /// How many are in use, and how many are kept.
    pub fn count(&self) -> (usize, usize) {
        let state = self.state();
        (state.used, state.idle.len())
    }

    fn give_back(&self, key: String, item: Option<T>, is_sound: bool) {
        let mut state = self.state();
        state.used -= 1;
        if let Some(count) = state.by_key.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                state.by_key.remove(&key);
            }
        }
        let mut surplus = None;
        match item {
            Some(item) if is_sound => {
                state.idle.push(Idle { key, since: Instant::now(), item });
                if state.retired || state.idle.len() > self.limits.kept {
                    surplus = Some(state.idle.remove(0).item);
                }
            }
            item => surplus = item,
        }
        let is_waited_for = state.waiting > 0;
        drop(state);
        // They may want different keys: each looks for itself. Where none waits, to wake all would
        // be a system call in vain.
        if is_waited_for {
            self.freed.notify_all();
        }
        drop(surplus);
    }

    fn state(&self) -> MutexGuard<'_, PoolState<T>> {
        // Nothing that can panic is done under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to use one, and the one, once there is one. Goes back to the pool when dropped.
pub struct Pooled<T> {
    pool: Arc<Pool<T>>,
    key: String,
    item: Option<T>,
    is_sound: bool,
}

impl<T> Pooled<T> {
    /// Whether one is at hand, so that none need be made.
    pub fn is_at_hand(&self) -> bool {
        self.item.is_some()
    }

    /// The one at hand, else what `make` makes.
    ///
    /// # Errors
    /// What `make` says.
    pub fn or_make<E>(mut self, make: impl FnOnce() -> Result<T, E>) -> Result<InUse<T>, E> {
        if self.item.is_none() {
            self.item = Some(make()?);
        }
        Ok(InUse(self))
    }
}

impl<T> Drop for Pooled<T> {
    fn drop(&mut self) {
        // A user that panicked may have left it in mid-sentence.
        let is_sound = self.is_sound && !std::thread::panicking();
        self.pool.give_back(std::mem::take(&mut self.key), self.item.take(), is_sound);
    }
}

/// One in use.
pub struct InUse<T>(Pooled<T>);

impl<T> InUse<T> {
    /// It had trouble: not for the next user.
    pub fn throw_away(&mut self) {
        self.0.is_sound = false;
    }
}

impl<T> Deref for InUse<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.item.as_ref().unwrap_or_else(|| unreachable!("made before, taken by drop only"))
    }
}

impl<T> DerefMut for InUse<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.item.as_mut().unwrap_or_else(|| unreachable!("made before, taken by drop only"))
    }
}
