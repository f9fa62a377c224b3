//! What the operating system does for us, in the places that need it.

pub mod byte_lock;
pub mod durable;
pub mod owner;

/// This host's name.
pub fn host_name() -> String {
    let name = nix::unistd::gethostname();
    name.map_or_else(|_| "?".to_owned(), |name| name.to_string_lossy().into_owned())
}
