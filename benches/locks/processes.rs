//! `with-lock -- true` beside `flock -n FILE true`.

use crate::place::{Place, timed};
use crate::process::program;
use crate::table::{Contender, in_turn, verdict};

const ROUNDS: usize = 60;

pub fn run() {
    let place = Place::new();
    let file = place.root.join("file").display().to_string();
    let locked = |config| {
        let place = &place;
        move || timed(&mut place.with_lock(config, &["--", "true"]))
    };
    let mut contenders = [
        Contender::new("flock -n FILE true", || {
            timed(&mut program("flock", &["-n", &file, "true"]))
        }),
        Contender::new("with-lock -- true, SQLite", locked(&place.sqlite)),
        Contender::new("with-lock -- true, Postgres by socket", locked(&place.socket)),
        Contender::new("true", || timed(&mut program("true", &[]))),
    ];
    place.print_probes();
    let times = in_turn(&mut contenders, ROUNDS);
    println!("| medians of {ROUNDS}, in turn | median ms | least ms | more than flock | target |");
    println!("|---|---:|---:|---:|---|");
    let targets = [None, Some(6.0), Some(12.0), None];
    for ((contender, own), target) in contenders.iter().zip(&times).zip(targets) {
        let more = own.median_ms() - times[0].median_ms();
        println!(
            "| {} | {:.2} | {:.2} | {more:.2} | {} |",
            contender.name,
            own.median_ms(),
            own.least_ms(),
            verdict(more, target)
        );
    }
}
