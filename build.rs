//! Links the unwinder (libgcc_eh) into the program where the system's compiler has it as an
//! archive. As a shared library the dynamic loader finds, maps and relocates it in every process,
//! which takes 4 % of a delivery. Without the archive everything works the same, from libgcc_s.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // With musl the compiler brings an unwinder of its own.
    if std::env::var("CARGO_CFG_TARGET_ENV").as_deref() != Ok("gnu") {
        return;
    }
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let Ok(answer) = Command::new(compiler).arg("-print-file-name=libgcc_eh.a").output() else {
        return;
    };
    let answer = String::from_utf8_lossy(&answer.stdout);
    // A compiler that has no such file repeats the bare name.
    if let Some(folder) = Path::new(answer.trim()).parent().filter(|folder| folder.is_absolute()) {
        println!("cargo:rustc-link-search=native={}", folder.display());
        // Whole: what needs it comes later on the linker's command line. Not bundled: it is the
        // program's alone.
        println!("cargo:rustc-link-lib=static:+whole-archive,-bundle=gcc_eh");
    }
}
