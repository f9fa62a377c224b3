//! What a test does around the calls of the adapters in memory: it lets one wait, fail before it
//! takes effect, or lose its answer. A hook may block; nothing is locked meanwhile but what the
//! port says.

use crate::directory::Destination;

/// A call of a port.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// The name that the port has for it.
    pub name: &'static str,
    /// The mailbox that it is about, if it is about one.
    pub destination: Option<&'a Destination>,
}

/// Called around each call of a port whose errors are `E`.
pub trait Hook<E>: Send + Sync {
    /// # Errors
    /// The call's, which then takes no effect.
    fn before(&self, _call: &Call<'_>) -> Result<(), E> {
        Ok(())
    }

    /// In the midst of a `record`: the message's lock is held and nothing written. Of an `append`:
    /// the clock was checked and the last bytes are sent; it takes effect with the return of this,
    /// unless the test lets it do so before.
    ///
    /// # Errors
    /// The call's. An append that ends in doubt here stays under way, until the test lets it take
    /// effect.
    fn within(&self, _call: &Call<'_>) -> Result<(), E> {
        Ok(())
    }

    /// # Errors
    /// The call's, though it took effect.
    fn after(&self, _call: &Call<'_>) -> Result<(), E> {
        Ok(())
    }
}

/// Does nothing.
impl<E> Hook<E> for () {}
