//! Running the cases that the command line names, or all.

use std::str::FromStr;
use std::time::Instant;

/// A case's name and what it does.
pub type Case = (&'static str, fn());

/// Runs those of `cases` that `wanted` names, all if it names none; ends the process if it cannot.
pub fn run(cases: &[Case], mut wanted: Vec<String>) {
    if let Some(unknown) = wanted.iter().find(|word| cases.iter().all(|(name, _)| name != word)) {
        let names: Vec<&str> = cases.iter().map(|(name, _)| *name).collect();
        eprintln!("no case {unknown}; there are: {}", names.join(" "));
        std::process::exit(2);
    }
    if !crate::is_root() {
        eprintln!("the servers that are measured run as several users: run this as root");
        std::process::exit(2);
    }
    if wanted.is_empty() {
        wanted.extend(cases.iter().map(|(name, _)| (*name).to_owned()));
    }
    let began = Instant::now();
    println!("{}", machine());
    for (name, run) in cases.iter().filter(|(name, _)| wanted.iter().any(|word| word == name)) {
        println!("\n## {name} (load average {})", load());
        run();
    }
    println!("\n{} s in all, load average {}", began.elapsed().as_secs(), load());
}

/// The words of the command line that are ours.
pub fn words() -> Vec<String> {
    std::env::args().skip(1).filter(|word| word != "--bench").collect()
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let folder = std::env::temp_dir();
    let mut df = std::process::Command::new("df");
    let kind = crate::run(df.args(["--output=fstype"]).arg(&folder));
    format!("{cores} cores, {} on {}", folder.display(), kind.lines().last().unwrap_or("?").trim())
}

/// How many messages there are, if `$ONEDROP_MESSAGES` does not say it.
pub fn messages<T: FromStr>(usual: T) -> T {
    let given = std::env::var("ONEDROP_MESSAGES").ok();
    given.map_or(usual, |given| given.parse().ok().expect("ONEDROP_MESSAGES: a number"))
}

pub fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("?").to_owned()
}
