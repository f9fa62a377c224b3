//! Reads sources as tokens: which modules there are, and which paths, strings and code each holds.
//! Not by `syn`, which leaves what stands in macros as tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A module's file.
#[derive(Default)]
pub struct Module {
    /// Modules named by its paths, as they are named.
    pub uses: BTreeSet<String>,
    /// The same, and for what another module passes on the one that has it.
    pub reaches: BTreeSet<String>,
    pub strings: BTreeSet<String>,
    /// Its tokens without blanks, tests and attributes.
    pub code: String,
    /// Paths that begin at the crate's root, in full.
    paths: BTreeSet<Vec<String>>,
    /// Names that `use` brings in, and the paths that they stand for.
    names: BTreeMap<String, Vec<String>>,
}

/// Modules by their paths: `""` is lib.rs, `check::store` is check/store.rs.
pub struct Tree {
    pub modules: BTreeMap<String, Module>,
}

impl Tree {
    /// The `.rs` files in `folder` and below; `tests.rs` and `tests/` are for tests.
    pub fn read(folder: &Path) -> Tree {
        let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
        while let Some(one) = folders.pop() {
            for entry in fs::read_dir(&one).expect("a folder") {
                let path = entry.expect("an entry").path();
                let name = path.strip_prefix(folder).expect("within").with_extension("");
                let name = name.to_str().expect("UTF-8").to_owned();
                if name.split('/').any(|part| part == "tests") {
                    continue;
                } else if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    files.push((name, fs::read_to_string(&path).expect("a source")));
                }
            }
        }
        Tree::of(files.iter().map(|(name, text)| (name.as_str(), text.as_str())))
    }

    /// Files by their names without `.rs`, and their texts.
    pub fn of<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Tree {
        let files: Vec<_> = files
            .map(|(name, text)| {
                (if name == "lib" { String::new() } else { name.replace('/', "::") }, text)
            })
            .collect();
        let known: BTreeSet<String> = files.iter().map(|(name, _)| name.clone()).collect();
        let mut modules = BTreeMap::new();
        for (name, text) in files {
            let tokens: TokenStream = text.parse().unwrap_or_else(|why| panic!("{name}: {why}"));
            let place: Vec<String> =
                name.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
            let mut module = Module::default();
            Reader { module: &mut module, known: &known }.read(&place, tokens);
            modules.insert(name, module);
        }
        let mut tree = Tree { modules };
        tree.resolve();
        tree
    }

    fn resolve(&mut self) {
        let mut all = Vec::new();
        for (name, module) in &self.modules {
            let uses: BTreeSet<_> = module.paths.iter().map(|path| self.module_of(path)).collect();
            let reaches: BTreeSet<_> =
                module.paths.iter().map(|path| self.origin_of(path)).collect();
            all.push((name.clone(), uses, reaches));
        }
        for (name, uses, reaches) in all {
            let others = |set: BTreeSet<String>| {
                set.into_iter().filter(|one| !one.is_empty() && *one != name).collect()
            };
            let (uses, reaches) = (others(uses), others(reaches));
            let module = self.modules.get_mut(&name).expect("just seen");
            (module.uses, module.reaches) = (uses, reaches);
        }
    }

    /// The longest beginning of the path that is a module.
    fn module_of(&self, path: &[String]) -> String {
        let beginnings = (0..=path.len()).rev().map(|length| path[..length].join("::"));
        beginnings.into_iter().find(|one| self.modules.contains_key(one)).unwrap_or_default()
    }

    /// The module that has what the path names.
    fn origin_of(&self, path: &[String]) -> String {
        let mut path = path.to_vec();
        // A name may be passed on more than once.
        for _ in 0..8 {
            let module = self.module_of(&path);
            let length = module.split("::").filter(|part| !part.is_empty()).count();
            let names = self.modules.get(&module).map(|module| &module.names);
            let Some(next) = path.get(length).and_then(|name| names?.get(name)) else {
                return module;
            };
            path = next.iter().chain(&path[length + 1..]).cloned().collect();
        }
        self.module_of(&path)
    }
}

struct Reader<'a> {
    module: &'a mut Module,
    known: &'a BTreeSet<String>,
}

impl Reader<'_> {
    /// Reads what stands in the module `place`.
    fn read(&mut self, place: &[String], tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at += 1;
            match token {
                TokenTree::Punct(punct) if punct.as_char() == '#' => {
                    at += usize::from(is_punct(tokens.get(at), '!'));
                    let attribute = tokens.get(at).map(ToString::to_string).unwrap_or_default();
                    at += 1;
                    if attribute.replace(' ', "") == "[cfg(test)]" {
                        at = end_of_item(&tokens, at);
                    }
                }
                TokenTree::Ident(word) if word == "use" => {
                    let end = end_of_item(&tokens, at);
                    self.import(place, &tokens[at..end]);
                    at = end;
                }
                TokenTree::Ident(word) if word == "mod" => {
                    if let (Some(name), Some(TokenTree::Group(body))) =
                        (tokens.get(at), tokens.get(at + 1))
                    {
                        let inner = [place, &[name.to_string()]].concat();
                        self.read(&inner, body.stream());
                        at += 2;
                    }
                }
                TokenTree::Ident(word) if word == "crate" || word == "super" || word == "self" => {
                    let mut path = vec![word.to_string()];
                    while is_punct(tokens.get(at), ':') && is_punct(tokens.get(at + 1), ':') {
                        let Some(TokenTree::Ident(next)) = tokens.get(at + 2) else { break };
                        path.push(next.to_string());
                        at += 3;
                    }
                    self.module.code.push_str(&path.join("::"));
                    if path.len() > 1 || word == "crate" {
                        self.note(place, &path);
                    }
                }
                TokenTree::Group(group) => {
                    self.module.code.push('(');
                    self.read(place, group.stream());
                    self.module.code.push(')');
                }
                TokenTree::Literal(literal) => {
                    let text = literal.to_string();
                    let inside = text.split_once('"').and_then(|(_, rest)| rest.rsplit_once('"'));
                    self.module.strings.extend(inside.map(|(inside, _)| inside.to_owned()));
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) => {
                    // Words that follow each other are kept apart.
                    if matches!(token, TokenTree::Ident(_)) && !self.module.code.ends_with(':') {
                        self.module.code.push(' ');
                    }
                    self.module.code.push_str(&token.to_string());
                }
            }
        }
    }

    /// `a::{b, c as d}`: each path, with the name that it gets.
    fn import(&mut self, place: &[String], tree: &[TokenTree]) {
        let mut leaves = Vec::new();
        leaves_of(&[], tree, &mut leaves);
        for (name, path) in leaves {
            self.module.code.push_str(&path.join("::"));
            let Some(path) = self.note(place, &path) else { continue };
            self.module.names.insert(name, path);
        }
    }

    /// Notes the path if it leads into the crate; in full.
    fn note(&mut self, place: &[String], path: &[String]) -> Option<Vec<String>> {
        let is_child =
            |name: &str| self.known.contains(&[place, &[name.to_owned()]].concat().join("::"));
        let mut full = match path[0].as_str() {
            "crate" => Vec::new(),
            "self" | "super" => place.to_vec(),
            first if is_child(first) => [place, &path[..1]].concat(),
            _ => return None,
        };
        for part in &path[usize::from(path[0] != "super")..] {
            if part == "super" {
                full.pop();
            } else if part != "self" {
                full.push(part.clone());
            }
        }
        self.module.paths.insert(full.clone());
        Some(full)
    }
}

fn leaves_of(before: &[String], tree: &[TokenTree], leaves: &mut Vec<(String, Vec<String>)>) {
    let mut path = before.to_vec();
    let mut name = None;
    for (at, token) in tree.iter().enumerate() {
        match token {
            TokenTree::Ident(word) if word == "as" => {
                name = tree.get(at + 1).map(ToString::to_string);
                break;
            }
            TokenTree::Ident(word) => path.push(word.to_string()),
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                for one in
                    inner.split(|token| is_punct(Some(token), ',')).filter(|one| !one.is_empty())
                {
                    leaves_of(&path, one, leaves);
                }
                return;
            }
            _ => {}
        }
    }
    // `self` at the end stands for what is before it.
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    if let Some(last) = path.last() {
        leaves.push((name.unwrap_or_else(|| last.clone()), path.clone()));
    }
}

fn is_punct(token: Option<&TokenTree>, c: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == c)
}

/// Behind the next `;` or braces.
fn end_of_item(tokens: &[TokenTree], from: usize) -> usize {
    let is_body = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        _ => false,
    };
    let ends = |token: &TokenTree| is_punct(Some(token), ';') || is_body(token);
    tokens[from..].iter().position(ends).map_or(tokens.len(), |end| from + end + 1)
}
