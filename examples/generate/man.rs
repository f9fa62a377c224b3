//! A manual page for each command: what clap knows of it, then the examples and exit statuses of
//! its long help.

use clap::{Arg, ArgAction, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use onedrop::command_line::manual;

/// What a page's foot names; see the release's entry in CHANGELOG.md.
pub const DATE: &str = "2026-11-23";
pub const SOURCE: &str = concat!("onedrop ", env!("CARGO_PKG_VERSION"));

/// Each page with its file's name.
pub fn pages() -> Vec<(String, String)> {
    let mut root = manual().disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    add(&root, None, &mut pages);
    pages
}

fn add(command: &Command, parent: Option<&str>, pages: &mut Vec<(String, String)>) {
    let name = page_name(command);
    let subcommands: Vec<&Command> =
        command.get_subcommands().filter(|sub| !sub.is_hide_set()).collect();
    pages.push((format!("{name}.1"), page(command, &name, parent, &subcommands)));
    for sub in subcommands {
        add(sub, Some(&name), pages);
    }
}

/// `onedrop-jobs-run`.
fn page_name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn page(command: &Command, name: &str, parent: Option<&str>, subs: &[&Command]) -> String {
    // The help text has them.
    let command = command.clone().mut_args(|arg| arg.hide_possible_values(true));
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .date(DATE)
        .source(SOURCE)
        .manual("Onedrop");
    let mut text = Vec::new();
    let written = man
        .render_title(&mut text)
        .and_then(|()| man.render_name_section(&mut text))
        .and_then(|()| synopsis(&command).to_writer(&mut text))
        .and_then(|()| man.render_description_section(&mut text))
        .and_then(|()| man.render_options_section(&mut text))
        .and_then(
            |()| if subs.is_empty() { Ok(()) } else { man.render_subcommands_section(&mut text) },
        );
    written.expect("a page in memory");
    let mut more = Roff::new();
    if let Some(help) = command.get_after_long_help() {
        add_help(&mut more, &help.to_string());
    }
    if parent.is_none() {
        add_places(&mut more);
    }
    let mut also: Vec<String> = parent.into_iter().map(|parent| format!("{parent}(1)")).collect();
    also.extend(subs.iter().map(|sub| format!("{}(1)", page_name(sub))));
    also.push("onedrop.toml(5)".to_owned());
    more.control("SH", ["SEE ALSO"]).text([roman(also.join(", "))]);
    String::from_utf8(text).expect("UTF-8") + &more.to_roff()
}

/// With the values of options, which clap_mangen leaves out.
fn synopsis(command: &Command) -> Roff {
    let mut line = vec![bold(command.get_bin_name().unwrap_or_default())];
    let alternatives: Vec<_> =
        command.get_groups().filter(|group| group.is_required_set()).collect();
    let is_one_of =
        |arg: &Arg| alternatives.iter().any(|g| g.get_args().any(|id| id == arg.get_id()));
    let (positional, options): (Vec<_>, Vec<_>) = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set())
        .partition(|arg| arg.is_positional());
    for arg in options.into_iter().chain(positional) {
        if matches!(arg.get_action(), ArgAction::Help | ArgAction::HelpLong) || is_one_of(arg) {
            continue;
        }
        let (left, right) = if arg.is_required_set() { (" ", "") } else { (" [", "]") };
        line.push(roman(left));
        line.extend(words_of(arg));
        let is_many = matches!(arg.get_action(), ArgAction::Append) || takes_many(arg);
        line.push(roman(if is_many { format!("{right}...") } else { right.to_owned() }));
    }
    for group in alternatives {
        for (at, id) in group.get_args().enumerate() {
            let arg = command.get_arguments().find(|arg| arg.get_id() == id).expect("its own");
            line.push(roman(if at == 0 { " {" } else { " | " }));
            line.extend(words_of(arg));
        }
        line.push(roman("}"));
    }
    if command.has_subcommands() {
        line.extend([roman(" "), italic("COMMAND")]);
    }
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]).text(line);
    roff
}

fn takes_many(arg: &Arg) -> bool {
    arg.get_num_args().is_some_and(|count| count.max_values() > 1)
}

/// `--since TIME`, `NAME`, `-- COMMAND`.
fn words_of(arg: &Arg) -> Vec<Inline> {
    let mut words = Vec::new();
    match (arg.get_long(), arg.get_short()) {
        (Some(long), _) => words.push(bold(format!("--{long}"))),
        (None, Some(short)) => words.push(bold(format!("-{short}"))),
        (None, None) if arg.is_last_set() => words.extend([bold("--"), roman(" ")]),
        (None, None) => {}
    }
    if arg.is_positional() || arg.get_action().takes_values() {
        let names = arg.get_value_names().map(|names| names.join(" "));
        let name = names.unwrap_or_else(|| arg.get_id().as_str().to_uppercase());
        if !arg.is_positional() {
            words.push(roman(" "));
        }
        words.push(italic(name));
    }
    words
}

/// The long help's last part: headings that end in a colon, and below each items and their words.
fn add_help(roff: &mut Roff, help: &str) {
    for section in help.split("\n\n") {
        let mut lines = section.lines();
        let heading = lines.next().unwrap_or_default().trim_end_matches(':');
        roff.control("SH", [heading.to_uppercase().as_str()]);
        if heading == "Exit status" {
            for line in lines {
                match line.trim().split_once("  ").filter(|_| !line.starts_with("      ")) {
                    Some((status, when)) => {
                        roff.control("TP", ["6"]).text([bold(status)]).text([roman(when.trim())])
                    }
                    None => roff.text([roman(line.trim())]),
                };
            }
        } else {
            for line in lines {
                if line.starts_with("      ") {
                    roff.text([roman(line.trim())]);
                } else {
                    roff.control("TP", []).text([bold(line.trim())]);
                }
            }
        }
    }
}

fn add_places(roff: &mut Roff) {
    let entry = |roff: &mut Roff, name: Inline, what: &str| {
        roff.control("TP", []).text([name]).text([roman(what)]);
    };
    roff.control("SH", ["ENVIRONMENT"]);
    entry(roff, bold("ONEDROP_CONFIG"), "The configuration file, where --config names none.");
    entry(
        roff,
        bold("ONEDROP__SECTION__KEY"),
        "A key of the configuration, such as ONEDROP__STORE__URL; it wins over the files.",
    );
    roff.control("SH", ["FILES"]);
    entry(roff, italic("/etc/onedrop/onedrop.toml"), "The configuration: onedrop.toml(5).");
    entry(roff, italic("/etc/onedrop/conf.d/*.toml"), "More of it; later files win.");
    let shared = "Lines for Postfix, Dovecot and others, a dashboard, and rules for alerts.";
    entry(roff, italic("/usr/share/onedrop/"), shared);
    entry(roff, italic("/usr/share/doc/onedrop/"), "Set-up, operation, guarantees and limits.");
}
