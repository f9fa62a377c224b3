//! Spoils inputs and runs a target's check on each. By hand because the fuzzers there are need a
//! nightly compiler (libFuzzer) or another process (AFL); these targets run in every test run.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What is fuzzed.
pub struct Target {
    /// Good inputs, which are spoilt.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// What matters to the reader under test: its keywords, separators, odd bytes.
    pub dictionary: &'static [&'static [u8]],
    /// Panics where what must hold does not. The same for the same input.
    pub check: fn(&[u8]),
}

/// Without an environment variable, for each target; and for all together where CI is true.
const SECS_EACH: f64 = 2.0;
const SECS_IN_CI: f64 = 30.0;
/// An input whose check takes longer than this is a fault. Far above what a busy machine needs for
/// [`LONGEST`] bytes.
const SLOWEST: Duration = Duration::from_secs(30);
/// Spoilt inputs grow to this, and a few to more: what takes time with the square of its input
/// shows in them.
const LONG: usize = 8 * 1024;
const LONGEST: usize = 128 * 1024;
/// At least as many, however slow the machine is.
const FEWEST: u64 = 200;
/// For making a failing input small.
const SHRINKING: Duration = Duration::from_secs(10);

/// Runs the kept inputs of `name`, then spoilt ones for its share of the time.
pub fn run(name: &str, target: &Target, targets: usize) {
    quiet_panics();
    let seed = seed();
    let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    let default = if in_ci { SECS_IN_CI / targets as f64 } else { SECS_EACH };
    let secs = number("ONEDROP_FUZZ_SECS").map_or(default, |all| all / targets as f64);
    println!("fuzz {name}: seed {seed}, {secs:.1} s");
    let run = Run { name, target, seed };

    let watched = Arc::new(Mutex::new(None));
    watch(name, &watched);
    let folder = folder(name);
    let mut paths: Vec<PathBuf> = fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .map(|entry| entry.expect("entry").path())
        .collect();
    paths.sort();
    let mut inputs = (target.seeds)();
    for path in &paths {
        let input = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        if let Err(said) = run.checked(&input, &watched) {
            panic!("fuzz {name}: the kept input {} fails: {said}", path.display());
        }
        inputs.push(input);
    }
    assert!(!inputs.is_empty(), "{name} has no seeds");
    for input in inputs.clone() {
        run.check(&input, &watched);
    }

    let mut random = Random(seed);
    let (began, mut count) = (Instant::now(), 0u64);
    while count < FEWEST || began.elapsed().as_secs_f64() < secs {
        run.check(&random.input(&inputs, target.dictionary), &watched);
        count += 1;
    }
    println!(
        "fuzz {name}: {count} inputs in {:.1} s, and {} kept ones",
        began.elapsed().as_secs_f64(),
        paths.len()
    );
}

/// `count` spoilt inputs, for checks that take them together.
pub fn spoilt(name: &str, seeds: &[Vec<u8>], dictionary: &[&[u8]], count: usize) -> Vec<Vec<u8>> {
    let seed = seed();
    println!("fuzz {name}: seed {seed}, {count} inputs; the same again: ONEDROP_FUZZ_SEED={seed}");
    let mut random = Random(seed);
    (0..count).map(|_| random.input(seeds, dictionary)).collect()
}

fn seed() -> u64 {
    number("ONEDROP_FUZZ_SEED").map_or_else(clock, |seed| seed as u64)
}

/// What is being checked, and since when.
type Watched = Arc<Mutex<Option<(Instant, Vec<u8>)>>>;

struct Run<'a> {
    name: &'a str,
    target: &'a Target,
    seed: u64,
}

impl Run<'_> {
    fn check(&self, input: &[u8], watched: &Watched) {
        let Err(said) = self.checked(input, watched) else { return };
        let (input, said) = self.shrunk(input.to_vec(), said, watched);
        let path = keep(self.name, &input);
        panic!(
            "fuzz {}: {said}\ninput, {} bytes: {}\nIt is kept as {} and runs first from now on: \
             cargo nextest run --test values fuzz::{}\n\
             The run as it was: ONEDROP_FUZZ_SEED={} cargo nextest run --test values fuzz::{}",
            self.name,
            input.len(),
            shown(&input),
            path.display(),
            self.name,
            self.seed,
            self.name
        );
    }

    /// What the check said when it panicked.
    fn checked(&self, input: &[u8], watched: &Watched) -> Result<(), String> {
        *lock(watched) = Some((Instant::now(), input.to_vec()));
        QUIET.set(Some(String::new()));
        let result = panic::catch_unwind(AssertUnwindSafe(|| (self.target.check)(input)));
        let said = QUIET.take().unwrap_or_default();
        *lock(watched) = None;
        result.map_err(|_| said)
    }

    /// A smaller input that fails as well: parts are left out as long as it does.
    fn shrunk(&self, mut input: Vec<u8>, mut said: String, watched: &Watched) -> (Vec<u8>, String) {
        let end = Instant::now() + SHRINKING;
        let mut part = input.len() / 2;
        while part > 0 {
            let mut at = 0;
            while at < input.len() && Instant::now() < end {
                let mut smaller = input.clone();
                smaller.drain(at..(at + part).min(input.len()));
                match self.checked(&smaller, watched) {
                    Err(now) => (input, said) = (smaller, now),
                    Ok(()) => at += part,
                }
            }
            part /= 2;
        }
        (input, said)
    }
}

/// Ends the process when a check hangs, with its input kept.
fn watch(name: &str, watched: &Watched) {
    let (name, watched) = (name.to_owned(), Arc::downgrade(watched));
    std::thread::spawn(move || {
        while let Some(watched) = watched.upgrade() {
            if let Some((since, input)) = &*lock(&watched)
                && since.elapsed() > SLOWEST
            {
                let path = keep(&name, input);
                eprintln!(
                    "fuzz {name}: an input takes more than {} s, it is kept as {} and runs first \
                     from now on",
                    SLOWEST.as_secs(),
                    path.display()
                );
                std::process::abort();
            }
            drop(watched);
            std::thread::sleep(Duration::from_millis(200));
        }
    });
}

fn keep(name: &str, input: &[u8]) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    input.hash(&mut hasher);
    let folder = folder(name);
    let path = folder.join(format!("found-{:016x}", hasher.finish()));
    let written = fs::create_dir_all(&folder).and_then(|()| fs::write(&path, input));
    written.unwrap_or_else(|error| eprintln!("{}: {error}", path.display()));
    path
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/fuzz").join(name)
}

fn shown(input: &[u8]) -> String {
    let start = &input[..input.len().min(2000)];
    format!("{}{}", start.escape_ascii(), if start.len() < input.len() { "..." } else { "" })
}

fn number(variable: &str) -> Option<f64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

fn clock() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Numbers that an f64 holds exactly, so that each can be given again.
    now.as_micros() as u64 % 1_000_000_000_000
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// While a check runs on this thread: what the last panic said, which is not printed.
    static QUIET: std::cell::Cell<Option<String>> = const { std::cell::Cell::new(None) };
}

fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let default = panic::take_hook();
        panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| match QUIET.take() {
            Some(_) => QUIET.set(Some(info.to_string())),
            None => default(info),
        }));
    });
}

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `end`; 0 of nothing.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn one<'a>(&mut self, of: &'a [impl AsRef<[u8]>]) -> &'a [u8] {
        of.get(self.below(of.len())).map_or(&[], AsRef::as_ref)
    }

    /// One of `inputs` spoilt, or words of the dictionary alone.
    fn input(&mut self, inputs: &[Vec<u8>], dictionary: &[&[u8]]) -> Vec<u8> {
        let mut input = match self.below(16) {
            0 => (0..self.below(24)).flat_map(|_| self.one(dictionary)).copied().collect(),
            _ => self.one(inputs).to_vec(),
        };
        for _ in 0..=self.below(8) {
            self.spoil(&mut input, inputs, dictionary);
        }
        input
    }

    fn spoil(&mut self, input: &mut Vec<u8>, others: &[Vec<u8>], dictionary: &[&[u8]]) {
        let at = self.below(input.len() + 1);
        let longest = if self.below(4) == 0 { input.len() } else { 40 };
        let end = at + self.below((input.len() - at).min(longest) + 1);
        match self.below(10) {
            0..=2 => drop(input.splice(at..at, self.one(dictionary).iter().copied())),
            3 => drop(input.splice(at..end, self.one(dictionary).iter().copied())),
            4 => drop(input.drain(at..end)),
            5 => {
                let part = input[at..end].to_vec();
                let to = self.below(input.len() + 1);
                input.splice(to..to, part);
            }
            6 if at < input.len() => input[at] = self.next() as u8,
            7 if at < input.len() => input[at] ^= 1 << self.below(8),
            8 => {
                let most = if self.below(64) == 0 { LONGEST } else { LONG };
                let part = input[at..end].to_vec();
                let times = self.below(most.saturating_sub(input.len()) / part.len().max(1) + 1);
                let times = if self.below(16) == 0 { times } else { times.min(3) };
                input.splice(at..at, part.repeat(times));
            }
            _ => {
                let other = self.one(others);
                let start = self.below(other.len() + 1);
                let stop = start + self.below((other.len() - start).min(200) + 1);
                input.splice(at..end, other[start..stop].iter().copied());
            }
        }
    }
}
