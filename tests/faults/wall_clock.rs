//! Wall clocks that tests set: a process that is started with one sees it in place of the
//! machine's, and so does what it starts (`wall_clock.c`, by LD_PRELOAD). Its other clocks stay.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::{TempRoot, run};

/// See `wall_clock.c`.
pub struct WallClock {
    library: PathBuf,
    face: PathBuf,
}

impl WallClock {
    /// One that shows the machine's time.
    pub fn start(root: &TempRoot, name: &str) -> WallClock {
        let library = root.join("wall_clock.so");
        if !library.exists() {
            let source = root.write("wall_clock.c", include_str!("wall_clock.c"));
            run(Command::new("gcc")
                .args(["-shared", "-fPIC", "-O2", "-o"])
                .args([&library, &source]));
        }
        let clock = WallClock { library, face: root.join(name) };
        let now = SystemTime::now();
        clock.write(now, now, 1);
        clock
    }

    /// From now on it shows another time, and goes on from there.
    pub fn set(&self, to: SystemTime) {
        self.write(SystemTime::now(), to, 1);
    }

    /// The same, and from there on `rate` times as fast as the machine's.
    pub fn run_at(&self, to: SystemTime, rate: u32) {
        self.write(SystemTime::now(), to, rate.into());
    }

    fn write(&self, origin: SystemTime, shown: SystemTime, rate: i64) {
        let nanos = |time: SystemTime| {
            let time = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
            i64::try_from(time.as_nanos()).expect("before 2262")
        };
        let numbers = [nanos(origin), nanos(shown), rate].map(i64::to_ne_bytes).concat();
        // In place: it is mapped into those who look at it.
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true);
        let file = options.open(&self.face).expect("clock");
        file.write_all_at(&numbers, 0).expect("clock");
    }

    /// What `command` starts sees this clock.
    pub fn shown_to(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("WALL_CLOCK", &self.face);
    }
}
