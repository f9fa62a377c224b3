//! The system's clock.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use onedrop_core::clock::{Clock, SystemClock};

#[test]
fn side_by_side_means_at_the_same_time_and_ends_with_the_last() {
    let (all, ended) = (Barrier::new(3), AtomicUsize::new(0));
    SystemClock.side_by_side(3, &|| {
        all.wait();
        ended.fetch_add(1, Ordering::SeqCst);
    });
    assert_eq!(ended.into_inner(), 3);
}
