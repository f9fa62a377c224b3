//! A private single-threaded runtime of asynchronous clients: it turns only while a call waits.

use std::future::Future;
use std::io;

use tokio::runtime::{Builder, Runtime};

/// A runtime that can be dropped while a name look-up hangs in a thread.
pub struct PrivateRuntime(Option<Runtime>);

impl PrivateRuntime {
    pub fn new() -> io::Result<PrivateRuntime> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        Ok(PrivateRuntime(Some(runtime)))
    }

    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        match &self.0 {
            Some(runtime) => runtime.block_on(work),
            None => unreachable!("taken by drop only"),
        }
    }
}

impl Drop for PrivateRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
