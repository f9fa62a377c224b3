//! What a page shows below a command, beside what the command says: `...` in a line stands for any
//! text, a line of `...` for any lines.

use crate::page::Page;

/// A block of commands, and what the page shows of their output, if it does.
pub struct ShownBlock {
    pub section: String,
    pub commands: String,
    pub shown: Option<String>,
}

/// The blocks to run, each with the one that follows it if that is output.
pub fn said_and_shown(page: &Page) -> Vec<ShownBlock> {
    let mut all: Vec<ShownBlock> = Vec::new();
    let mut is_open = false;
    for block in page.blocks() {
        match block.language.as_str() {
            "sh" => {
                let (section, commands) = (block.section, block.text);
                all.push(ShownBlock { section, commands, shown: None });
                is_open = true;
            }
            "" if is_open => {
                if let Some(last) = all.last_mut() {
                    last.shown = Some(block.text);
                }
                is_open = false;
            }
            _ => is_open = false,
        }
    }
    all
}

/// Whether all of what was said is shown.
pub fn is_as_shown(said: &str, shown: &str) -> bool {
    let (said, shown): (Vec<&str>, Vec<&str>) = (said.lines().collect(), shown.lines().collect());
    lines_fit(&said, &shown)
}

fn lines_fit(said: &[&str], shown: &[&str]) -> bool {
    match (said, shown) {
        ([], []) => true,
        (_, ["...", rest @ ..]) => (0..=said.len()).any(|skip| lines_fit(&said[skip..], rest)),
        ([line, said @ ..], [pattern, shown @ ..]) => fits(line, pattern) && lines_fit(said, shown),
        _ => false,
    }
}

fn fits(line: &str, pattern: &str) -> bool {
    match pattern.split_once("...") {
        None => line == pattern,
        Some((before, rest)) => line.strip_prefix(before).is_some_and(|line| {
            let mut ends = line.char_indices().map(|(at, _)| at).chain([line.len()]);
            ends.any(|at| fits(&line[at..], rest))
        }),
    }
}
