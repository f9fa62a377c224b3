//! Writes the manual pages (`man/`) and the shells' completions (`completions/`) anew, from the
//! command line as clap reads it and from `conf/onedrop.toml`. They are checked in, and a test
//! holds them against the program: `cargo run --example generate`

use std::fs;
use std::io;
use std::path::Path;

mod configuration;
mod generated;
mod man;

fn main() -> io::Result<()> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in generated::FOLDERS {
        match fs::remove_dir_all(project.join(folder)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::create_dir(project.join(folder))?,
        }
    }
    for (name, text) in generated::generated() {
        fs::write(project.join(name), text)?;
    }
    Ok(())
}
