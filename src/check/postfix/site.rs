//! The rules for Postfix as a whole: whether anything runs onedrop, mailbox_command, queue ids. No
//! I/O.

use super::command::{Understood, runs_onedrop};
use super::routes;
use super::{Advice, ExpectedPostfix, Level, MailboxCommand, Setup, time_limit};

/// The characters of a command that local(8) runs without a shell (Postfix'
/// src/util/exec_command.c).
const NO_SHELL: &str = "!@%-_=+:,./ \t";

pub(super) fn judged(setup: &Setup, ours: &ExpectedPostfix) -> Vec<Advice> {
    let mut advice = Vec::new();
    for command in &setup.mailbox_commands {
        advice.extend(mailbox_command(command, ours));
    }
    let maps = setup.value("mailbox_command_maps");
    if runs_onedrop(maps) {
        let text = format!(
            "mailbox_command_maps = {maps} runs onedrop; what holds for mailbox_command holds for \
             it"
        );
        advice.push((Level::Warning, text));
    }
    advice.extend(missing_transport(setup));
    let nothing =
        setup.transports.is_empty() && setup.lmtp.is_empty() && setup.mailbox_commands.is_empty();
    if nothing && !runs_onedrop(maps) {
        let text = "nothing in this Postfix runs onedrop: master.cf has no pipe(8) service whose \
                    argv does, no lmtp(8) service gets mail for its socket, and mailbox_command \
                    does not run it";
        advice.push((Level::Warning, text.to_owned()));
    }
    advice.extend(queue_ids(setup));
    advice.extend(soft_bounce(setup));
    advice
}

fn mailbox_command(command: &MailboxCommand, ours: &ExpectedPostfix) -> Vec<Advice> {
    let place = &command.place;
    let mut advice = vec![(
        Level::Warning,
        format!(
            "{place}: local(8) replaces unusual characters of addresses by \"_\", gives neither \
             size nor queue id, and runs onedrop as the recipient's user, who must be able to use \
             the ledger and the store; a pipe(8) transport does none of that"
        ),
    )];
    if !command.shell.is_empty() || needs_shell(&command.text) {
        let text = format!(
            "{place}: it is run by a shell (local_command_shell, or characters such as quotes and \
             $), and should onedrop be missing, the shell's status 127 returns the mail to its \
             sender; write the program and plain words only: the recipient and sender come in the \
             environment"
        );
        advice.push((Level::Warning, text));
    } else {
        advice.extend(not_understood(command));
    }
    advice.extend(time_limit("command_time_limit", &command.time_limit, ours));
    advice
}

fn not_understood(command: &MailboxCommand) -> Option<Advice> {
    let why = match &command.command.understood {
        Understood::Deliver(_) => return None,
        Understood::Other => "it runs another command than \"onedrop deliver\"".to_owned(),
        Understood::Refused(why) => format!("it is refused: {why}"),
    };
    Some((
        Level::Error,
        format!("{}: {why}; nothing is delivered, and every message waits", command.place),
    ))
}

fn needs_shell(text: &str) -> bool {
    !text.chars().all(|c| c.is_ascii_alphanumeric() || NO_SHELL.contains(c))
}

/// A parameter names a transport onedrop or onedrop-lmtp that master.cf does not have.
fn missing_transport(setup: &Setup) -> Vec<Advice> {
    let is_missing = |name: &&str| !setup.services.iter().any(|service| service.name == *name);
    let advice = |name: &'static str| {
        routes::to(setup, name).into_iter().map(move |by| {
            let text = format!(
                "{by} names a transport that master.cf does not have: mail waits; add the \
                         service {name}"
            );
            (Level::Error, text)
        })
    };
    ["onedrop", "onedrop-lmtp"].into_iter().filter(is_missing).flat_map(advice).collect()
}

fn queue_ids(setup: &Setup) -> Option<Advice> {
    let text = "enable_long_queue_ids = no: Postfix uses queue ids again, so \"onedrop trace \
                QUEUE-ID\" may show several messages";
    (setup.value("enable_long_queue_ids") == "no").then(|| (Level::Ok, text.to_owned()))
}

fn soft_bounce(setup: &Setup) -> Option<Advice> {
    let text =
        "soft_bounce = yes: mail for unknown recipients waits in the queue instead of going back";
    (setup.value("soft_bounce") == "yes").then(|| (Level::Ok, text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_special_characters_needs_a_shell() {
        assert!(!needs_shell("/usr/bin/onedrop deliver --config /etc/onedrop/a_b-c.toml"));
        for text in [
            "onedrop \"x\"",
            "onedrop -d $RECIPIENT",
            "onedrop; true",
            "onedrop | x",
            "ónedrop",
            "a*",
            "a?",
        ] {
            assert!(needs_shell(text), "{text}");
        }
    }
}
