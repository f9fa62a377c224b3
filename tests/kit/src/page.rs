//! A page of the documentation: its lines, its blocks of code, its headings and links.

use std::fs;
use std::path::{Path, PathBuf};

pub use crate::PROJECT;

/// A page that has been read.
pub struct Page {
    /// From the project's folder: `docs/verify.md`.
    pub name: String,
    pub text: String,
}

/// A block of code.
pub struct Block {
    /// What follows the fence: `sh`, `toml`, or nothing.
    pub language: String,
    pub text: String,
    /// The last `##` heading before it.
    pub section: String,
}

impl Page {
    pub fn read(name: &str) -> Page {
        let path = Path::new(PROJECT).join(name);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        Page { name: name.to_owned(), text }
    }

    /// README and every page under `docs/`, in the order of their names.
    pub fn all() -> Vec<Page> {
        let folder = fs::read_dir(Path::new(PROJECT).join("docs")).expect("docs");
        let mut names: Vec<String> = folder
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .map(|name| format!("docs/{name}"))
            .collect();
        names.sort();
        assert!(names.iter().all(|name| name.ends_with(".md")), "{names:?}");
        ["README.md".to_owned()].into_iter().chain(names).map(|name| Page::read(&name)).collect()
    }

    /// The folder that its links start from.
    pub fn folder(&self) -> PathBuf {
        Path::new(PROJECT).join(&self.name).parent().expect("a folder").to_owned()
    }

    pub fn blocks(&self) -> Vec<Block> {
        let (mut blocks, mut section) = (Vec::new(), String::new());
        let mut open: Option<(usize, Block)> = None;
        for line in self.text.lines() {
            let bare = line.trim_start();
            match &mut open {
                Some(_) if bare == "```" => blocks.extend(open.take().map(|(_, block)| block)),
                Some((indent, block)) => {
                    block.text.push_str(line.get(*indent..).unwrap_or_default());
                    block.text.push('\n');
                }
                None if bare.starts_with("```") => {
                    let language = bare.trim_start_matches('`').to_owned();
                    let block = Block { language, text: String::new(), section: section.clone() };
                    open = Some((line.len() - bare.len(), block));
                }
                None => {
                    if let Some(heading) = line.strip_prefix("## ") {
                        heading.clone_into(&mut section);
                    }
                }
            }
        }
        assert!(open.is_none(), "{}: a block has no end", self.name);
        blocks
    }

    /// The commands to run, block by block.
    pub fn commands(&self) -> Vec<Block> {
        self.blocks().into_iter().filter(|block| block.language == "sh").collect()
    }

    /// The lines that are no code.
    pub fn prose(&self) -> Vec<&str> {
        let mut is_code = false;
        let is_prose = |line: &&str| {
            let is_fence = line.trim_start().starts_with("```");
            is_code ^= is_fence;
            !is_code && !is_fence
        };
        self.text.lines().filter(is_prose).collect()
    }

    /// Where its headings can be linked to: in lower case, without punctuation, blanks as hyphens.
    pub fn anchors(&self) -> Vec<String> {
        let headings = self.prose().into_iter().filter(|line| line.starts_with('#'));
        let anchor = |heading: &str| {
            let kept = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = kept.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        };
        headings.map(anchor).collect()
    }

    /// What its links lead to, as written.
    pub fn links(&self) -> Vec<String> {
        let text = self.prose().join("\n");
        // A link in a span of code is none.
        let text: String = text.split('`').step_by(2).collect();
        let parts = text.split("](").skip(1);
        parts.filter_map(|part| Some(part.split_once(')')?.0.to_owned())).collect()
    }

    /// Its spans of code.
    pub fn spans(&self) -> Vec<String> {
        let text = self.prose().join("\n");
        text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    /// The rows of its tables under a heading: their cells. Header rows and lines are left out.
    pub fn rows(&self, section: &str) -> Vec<Vec<String>> {
        let (mut rows, mut here, mut before) = (Vec::new(), section.is_empty(), "");
        let mut is_body = false;
        for line in self.prose() {
            if let Some(heading) = line.strip_prefix("## ") {
                here = section.is_empty() || heading == section;
            }
            if !line.starts_with('|') {
                is_body = false;
            } else if line.starts_with("|---") {
                assert!(before.starts_with('|'), "{}: {line}", self.name);
                is_body = true;
            } else if here && is_body {
                let row = line.trim_matches('|').replace("\\|", "\u{1}");
                let cells = row.split('|').map(|cell| cell.trim().replace('\u{1}', "|"));
                rows.push(cells.collect());
            }
            before = line;
        }
        rows
    }

    /// The sections, by their headings.
    pub fn sections(&self) -> Vec<&str> {
        self.prose().into_iter().filter_map(|line| line.strip_prefix("## ")).collect()
    }
}

/// What stands in a cell as code; empty for an empty cell.
pub fn code(cell: &str) -> &str {
    let inside = cell.strip_prefix('`').and_then(|cell| cell.strip_suffix('`'));
    inside.unwrap_or_else(|| {
        assert!(cell.is_empty(), "{cell:?} is no code");
        ""
    })
}
