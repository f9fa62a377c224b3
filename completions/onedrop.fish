# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_onedrop_global_optspecs
    string join \n config= color= h/help V/version
end

function __fish_onedrop_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_onedrop_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_onedrop_using_subcommand
    set -l cmd (__fish_onedrop_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c onedrop -n "__fish_onedrop_needs_command" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_needs_command" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_needs_command" -s V -l version -d 'Print version'
complete -c onedrop -n "__fish_onedrop_needs_command" -f -a "deliver" -d 'Deliver the message on standard input'
complete -c onedrop -n "__fish_onedrop_needs_command" -f -a "lmtp" -d 'Serve LMTP until SIGTERM; SIGHUP reads the configuration again'
complete -c onedrop -n "__fish_onedrop_needs_command" -f -a "web" -d 'Serve pages for administrators, read only, until SIGTERM'
complete -c onedrop -n "__fish_onedrop_needs_command" -f -a "migrate" -d 'Bring the ledger\'s schema to this program\'s version, while mail goes on'
complete -c onedrop -n "__fish_onedrop_needs_command" -f -a "check" -d 'Test the configuration, the ledger, the store and the local Postfix set-up, a line per finding'
complete -c onedrop -n "__fish_onedrop_needs_command" -f -a "trace" -d 'Show what is on record: messages, their copies, every attempt'
complete -c onedrop -n "__fish_onedrop_needs_command" -f -a "status" -d 'Show on one screen whether all is well, and if not, which command comes next'
complete -c onedrop -n "__fish_onedrop_needs_command" -f -a "verify" -d 'Compare ledger and mailboxes, a line per finding'
complete -c onedrop -n "__fish_onedrop_needs_command" -f -a "settle" -d 'Write Sent copies that were left for later, unless the sender\'s mail program has saved its own, and record copies that stand without a receipt'
complete -c onedrop -n "__fish_onedrop_needs_command" -f -a "purge" -d 'Forget what is older than retention says, in small steps beside deliveries'
complete -c onedrop -n "__fish_onedrop_needs_command" -f -a "forget" -d 'Let messages in again, after a mail store was restored; or erase an account'
complete -c onedrop -n "__fish_onedrop_needs_command" -f -a "replay" -d 'Deliver again, from files or from the ledger, and write nothing twice'
complete -c onedrop -n "__fish_onedrop_needs_command" -f -a "with-lock" -d 'Run a command while no other host or process holds the same lock'
complete -c onedrop -n "__fish_onedrop_needs_command" -f -a "lock" -d 'Show who holds locks, assert one, make one free'
complete -c onedrop -n "__fish_onedrop_needs_command" -f -a "jobs" -d 'Show jobs and their runs; pause, resume or reset one; report them to a monitoring system'
complete -c onedrop -n "__fish_onedrop_needs_command" -f -a "completions" -d 'Print the completions of a shell'
complete -c onedrop -n "__fish_onedrop_needs_command" -f -a "man" -d 'Show the manual page of a command'
complete -c onedrop -n "__fish_onedrop_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c onedrop -n "__fish_onedrop_using_subcommand deliver" -s d -d 'Envelope recipient; may be repeated [default: $RECIPIENT, else the top-most Delivered-To field above the first Received field]' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand deliver" -s f -d 'Envelope sender, empty for the null sender [default: $SENDER, else the top-most Return-Path field there]' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand deliver" -l size -d 'Size of the message as Postfix states it (${size}); a much shorter message is refused as cut' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand deliver" -l queue-id -d 'Postfix queue id (${queue_id}), for the record' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand deliver" -l sasl-username -d 'Login of the client that submitted the message (${sasl_username}), empty for none' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand deliver" -l via -d 'Hand the message to the server that listens at this socket (/run/onedrop/users.sock), and read no configuration: so every user of this host may run it, for its own account' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand deliver" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand deliver" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand deliver" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand lmtp" -l listen -d 'Where to listen: ADDRESS:PORT or unix:/path; may be repeated [default: systemd\'s sockets, else lmtp.listen]' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand lmtp" -l metrics -d 'Serve Prometheus text at /metrics on this address [default: lmtp.metrics]' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand lmtp" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand lmtp" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand lmtp" -l check -d 'Serve nothing: read the configuration as the server would, and say what is wrong in it'
complete -c onedrop -n "__fish_onedrop_using_subcommand lmtp" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand web" -l listen -d 'Where to listen: ADDRESS:PORT or unix:/path [default: systemd\'s sockets, else web.listen]' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand web" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand web" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand web" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand migrate" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand migrate" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand migrate" -l dry-run -d 'Say what would be done, and about how long it takes'
complete -c onedrop -n "__fish_onedrop_using_subcommand migrate" -l json -d 'Print what would be done as JSON'
complete -c onedrop -n "__fish_onedrop_using_subcommand migrate" -l accept-config -d 'Take this host\'s dedup.by, dedup.filter_fields, directory.account, directory.detail, [[file]], sent.mailbox, store.lmtp and store.url for all hosts; let Postfix\'s queues run empty first, but for a change of dedup.filter_fields alone'
complete -c onedrop -n "__fish_onedrop_using_subcommand migrate" -l first -d 'This ledger is the first of its site: mail that Postfix took before it was made is not looked for; never after a ledger was lost'
complete -c onedrop -n "__fish_onedrop_using_subcommand migrate" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand check" -l account -d 'Account to log in for [default: one of the directory\'s, else of the latest copy on record]' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand check" -l dovecot -d 'Dovecot configuration file, for doveconf [default: the system\'s, if the mailboxes are on this host]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand check" -l postfix -d 'Postfix configuration directory [default: the system\'s]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand check" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand check" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand check" -l json -d 'Print findings as JSON'
complete -c onedrop -n "__fish_onedrop_using_subcommand check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand trace" -l since -d 'Recorded since: a duration back (24h, 7d) or a date (2026-11-01) [default: 7d if no name is given]' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand trace" -l sender -d 'Part of the envelope sender or of an address in From' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand trace" -l subject -d 'Part of the subject' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand trace" -l limit -d 'Show at most this many messages, the newest first' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand trace" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand trace" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand trace" -l failed -d 'Messages with a copy that is not placed, or a recipient whose last attempt failed'
complete -c onedrop -n "__fish_onedrop_using_subcommand trace" -l utc -d 'Print times in UTC instead of this host\'s time zone'
complete -c onedrop -n "__fish_onedrop_using_subcommand trace" -l json -d 'Print as JSON, with times in UTC'
complete -c onedrop -n "__fish_onedrop_using_subcommand trace" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand status" -l prometheus -d 'Write figures as metrics into this file (node_exporter\'s textfile collector), print nothing' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand status" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand status" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand status" -l json -d 'Print findings and figures as JSON'
complete -c onedrop -n "__fish_onedrop_using_subcommand status" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand verify" -l since -d 'Messages recorded since: a duration back (24h, 7d) or a date (2026-11-01)' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand verify" -l account -d 'This account\'s mailboxes only' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand verify" -l parallel -d 'Accounts at a time, each with a connection to the mail server [default: 4, or pool.store if that is less]' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand verify" -l resume -d 'Note in this file how far the run has come; one that was ended goes on there when it is started again' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand verify" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand verify" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand verify" -l all -d 'Compare also the copies that cannot be double or missing: those that one delivery wrote and put on record'
complete -c onedrop -n "__fish_onedrop_using_subcommand verify" -l repair -d 'Record what is found for copies in doubt, place Sent copies that were kept for later, and remove surplus copies that Onedrop wrote'
complete -c onedrop -n "__fish_onedrop_using_subcommand verify" -l json -d 'Print findings as JSON'
complete -c onedrop -n "__fish_onedrop_using_subcommand verify" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand settle" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand settle" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand settle" -l dry-run -d 'Say what would be done, and write nothing'
complete -c onedrop -n "__fish_onedrop_using_subcommand settle" -l json -d 'Print findings as JSON'
complete -c onedrop -n "__fish_onedrop_using_subcommand settle" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand purge" -l older-than -d 'Messages that are older: 35d, at least 1d [default: retention.days]' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand purge" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand purge" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand purge" -l dry-run -d 'Say what would go, and take out nothing'
complete -c onedrop -n "__fish_onedrop_using_subcommand purge" -l json -d 'Print the numbers as JSON'
complete -c onedrop -n "__fish_onedrop_using_subcommand purge" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand forget" -l since -d 'All copies that were placed since: a duration back (24h, 7d) or a date (2026-11-01)' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand forget" -l account -d 'Erase what is on record about this account and its messages, but for hashes and times' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand forget" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand forget" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand forget" -l dry-run -d 'Say what would be forgotten, and change nothing'
complete -c onedrop -n "__fish_onedrop_using_subcommand forget" -l json -d 'Print the copies as JSON'
complete -c onedrop -n "__fish_onedrop_using_subcommand forget" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand replay" -l to -d 'Deliver each message to this address; may be repeated [default: its top-most Delivered-To, else X-Original-To, above the first Received field]' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand replay" -l mbox -d 'Files are mboxes; QUOTING says which lines of messages got a `>` when they were written. rd: those that begin with `From `, or with `>From ` at any depth; o: with `From ` alone' -r -f -a "rd\t'mboxrd: `From `, and `>From ` at any depth'
o\t'mboxo: `From ` alone'"
complete -c onedrop -n "__fish_onedrop_using_subcommand replay" -l rate -d 'Deliver at most this number of messages a time: 50/s, 600/m, 1000/h' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand replay" -l parallel -d 'Messages at a time; with more than one they do not come in the order of the source' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand replay" -l state -d 'Note in this file what is delivered; a run that was ended goes on there' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand replay" -l since -d 'With --from-ledger: messages recorded since: a duration back (24h, 7d) or a date (2026-11-01) [default: all]' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand replay" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand replay" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand replay" -l subfolders -d 'Read the folders below as well: those of a Maildir (.Sent, Archive/2020), or any'
complete -c onedrop -n "__fish_onedrop_using_subcommand replay" -l from-ledger -d 'From the bytes in the ledger (ledger.keep_raw): each copy that is on record and not placed'
complete -c onedrop -n "__fish_onedrop_using_subcommand replay" -l dry-run -d 'Say what would be delivered, and write nothing'
complete -c onedrop -n "__fish_onedrop_using_subcommand replay" -l json -d 'Print as JSON'
complete -c onedrop -n "__fish_onedrop_using_subcommand replay" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand with-lock" -l slots -d 'How many may hold the lock at a time' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand with-lock" -l wait -d 'How long to wait for the lock: 0, 10s, 5m, forever' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand with-lock" -l ttl -d 'How long the lock outlives a host that is gone; it is renewed in time, every 30 s at least' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand with-lock" -l grace -d 'What the command gets to end after SIGTERM, before SIGKILL' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand with-lock" -l timeout -d 'End the command after this time, with exit status 124; 0: never' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand with-lock" -l on-busy -d 'What to do when the lock is held: fail says so and exits 200, quiet says nothing and exits 0' -r -f -a "fail\t''
quiet\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand with-lock" -l busy-exit -d 'Exit status when the lock is held' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand with-lock" -l codes -d 'wrapper: 124 to 127, 200 and 201; mail: 75 for all of these; auto: mail where Postfix gives it a message' -r -f -a "auto\t''
wrapper\t''
mail\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand with-lock" -l note -d 'Why the lock is held, for `onedrop lock list`' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand with-lock" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand with-lock" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand with-lock" -l foreground -d 'Keep the command in the caller\'s process group, as on a terminal'
complete -c onedrop -n "__fish_onedrop_using_subcommand with-lock" -l hold -d 'In place of a command: hold the lock until standard input ends, write "held TOKEN OWNER" to standard output when it is ours, and "lost" when it is to end before'
complete -c onedrop -n "__fish_onedrop_using_subcommand with-lock" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and not __fish_seen_subcommand_from list holder assert release steal help" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and not __fish_seen_subcommand_from list holder assert release steal help" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and not __fish_seen_subcommand_from list holder assert release steal help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and not __fish_seen_subcommand_from list holder assert release steal help" -f -a "list" -d 'Show the locks that are held, and leases that have run out'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and not __fish_seen_subcommand_from list holder assert release steal help" -f -a "holder" -d 'Show who holds a lock'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and not __fish_seen_subcommand_from list holder assert release steal help" -f -a "assert" -d 'Print whether the lock is still held under which this command runs, and for how many seconds'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and not __fish_seen_subcommand_from list holder assert release steal help" -f -a "release" -d 'Make a slot free whose holder is known to be gone'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and not __fish_seen_subcommand_from list holder assert release steal help" -f -a "steal" -d 'Make a slot free whose lease has run out, and let its holder know that it has lost it'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and not __fish_seen_subcommand_from list holder assert release steal help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from list" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from list" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from list" -l stale -d 'Only leases that have run out: their holders are gone or hang'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from list" -l json -d 'Print as JSON'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from holder" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from holder" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from holder" -l json -d 'Print as JSON'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from holder" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from assert" -l min -d 'How long it must last at least' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from assert" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from assert" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from assert" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from release" -l slot -r
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from release" -l epoch -d 'The epoch that `onedrop lock list` shows' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from release" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from release" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from release" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from steal" -l slot -d '[default: every slot whose lease has run out]' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from steal" -l note -d 'Why, for the record' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from steal" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from steal" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from steal" -l force -d 'Also a lease that lasts: its holder may still be running'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from steal" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from help" -f -a "list" -d 'Show the locks that are held, and leases that have run out'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from help" -f -a "holder" -d 'Show who holds a lock'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from help" -f -a "assert" -d 'Print whether the lock is still held under which this command runs, and for how many seconds'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from help" -f -a "release" -d 'Make a slot free whose holder is known to be gone'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from help" -f -a "steal" -d 'Make a slot free whose lease has run out, and let its holder know that it has lost it'
complete -c onedrop -n "__fish_onedrop_using_subcommand lock; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and not __fish_seen_subcommand_from list show pause resume stop reset mark-done run tick audit import check help" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and not __fish_seen_subcommand_from list show pause resume stop reset mark-done run tick audit import check help" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and not __fish_seen_subcommand_from list show pause resume stop reset mark-done run tick audit import check help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and not __fish_seen_subcommand_from list show pause resume stop reset mark-done run tick audit import check help" -f -a "list" -d 'Show every job: how it stands, its last run, when it runs next'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and not __fish_seen_subcommand_from list show pause resume stop reset mark-done run tick audit import check help" -f -a "show" -d 'Show a job: its schedule and next times, its last runs, what the last one wrote'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and not __fish_seen_subcommand_from list show pause resume stop reset mark-done run tick audit import check help" -f -a "pause" -d 'Let no run of a job begin until it is resumed; one that runs goes on'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and not __fish_seen_subcommand_from list show pause resume stop reset mark-done run tick audit import check help" -f -a "resume" -d 'Let a paused job run again; `backfill` says what becomes of the times it has missed'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and not __fish_seen_subcommand_from list show pause resume stop reset mark-done run tick audit import check help" -f -a "stop" -d 'End the run of a job, on whatever host, and wait for that; it is not tried again'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and not __fish_seen_subcommand_from list show pause resume stop reset mark-done run tick audit import check help" -f -a "reset" -d 'Forget a job\'s failures and what it has missed, and begin with its next time (with `every` at once); its runs stay on record'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and not __fish_seen_subcommand_from list show pause resume stop reset mark-done run tick audit import check help" -f -a "mark-done" -d 'Put the time that is due on record as done, without a run'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and not __fish_seen_subcommand_from list show pause resume stop reset mark-done run tick audit import check help" -f -a "run" -d 'Run a job if it is due and what it depends on has succeeded'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and not __fish_seen_subcommand_from list show pause resume stop reset mark-done run tick audit import check help" -f -a "tick" -d 'Run every job that is due, look again when one has ended and each minute while any runs'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and not __fish_seen_subcommand_from list show pause resume stop reset mark-done run tick audit import check help" -f -a "audit" -d 'Compare the ledger with the configuration, a line per finding'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and not __fish_seen_subcommand_from list show pause resume stop reset mark-done run tick audit import check help" -f -a "import" -d 'Write the lines of a crontab as jobs for the configuration'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and not __fish_seen_subcommand_from list show pause resume stop reset mark-done run tick audit import check help" -f -a "check" -d 'Report how jobs are to a monitoring system: one line with performance data'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and not __fish_seen_subcommand_from list show pause resume stop reset mark-done run tick audit import check help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from list" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from list" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from list" -l json -d 'Print as JSON, with times in UTC'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from show" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from show" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from show" -l json -d 'Print as JSON, with times in UTC'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from pause" -l note -d 'Why, for `onedrop jobs list`' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from pause" -l until -d 'It is resumed by itself then: 2026-11-01T03:17:00Z, or 2026-11-01 03:17 in the job\'s time zone' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from pause" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from pause" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from pause" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from resume" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from resume" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from resume" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from stop" -l note -d 'Why, for the record' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from stop" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from stop" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from stop" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from reset" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from reset" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from reset" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from mark-done" -l due -d 'This time instead, and all before it: 2026-11-01T03:17:00Z, or 2026-11-01 03:17 in the job\'s time zone' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from mark-done" -l at -d 'It succeeded then, elsewhere: its next time is the one after that, which may have passed. Not where it has run here since' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from mark-done" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from mark-done" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from mark-done" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from run" -l due -d 'Run it for this time of its schedule: 2026-11-01T03:17:00Z, or 2026-11-01 03:17 in the job\'s time zone' -r
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from run" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from run" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from run" -l force -d 'Run it now, due or not, paused or not, whatever it depends on'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from run" -l by-tick -d '`onedrop jobs tick` has started it'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from tick" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from tick" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from tick" -l by-server -d '`onedrop lmtp` has started it'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from tick" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from audit" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from audit" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from audit" -l remove-ghosts -d 'Take jobs off the record, with their runs, that the configuration does not have'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from audit" -l json -d 'Print findings as JSON'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from audit" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from import" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from import" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from import" -l system -d 'It has the form of /etc/crontab and /etc/cron.d: a user before each command'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from import" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from check" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from check" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from check" -l json -d 'Print as JSON in place of the line'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from help" -f -a "list" -d 'Show every job: how it stands, its last run, when it runs next'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from help" -f -a "show" -d 'Show a job: its schedule and next times, its last runs, what the last one wrote'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from help" -f -a "pause" -d 'Let no run of a job begin until it is resumed; one that runs goes on'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from help" -f -a "resume" -d 'Let a paused job run again; `backfill` says what becomes of the times it has missed'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from help" -f -a "stop" -d 'End the run of a job, on whatever host, and wait for that; it is not tried again'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from help" -f -a "reset" -d 'Forget a job\'s failures and what it has missed, and begin with its next time (with `every` at once); its runs stay on record'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from help" -f -a "mark-done" -d 'Put the time that is due on record as done, without a run'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from help" -f -a "run" -d 'Run a job if it is due and what it depends on has succeeded'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from help" -f -a "tick" -d 'Run every job that is due, look again when one has ended and each minute while any runs'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from help" -f -a "audit" -d 'Compare the ledger with the configuration, a line per finding'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from help" -f -a "import" -d 'Write the lines of a crontab as jobs for the configuration'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from help" -f -a "check" -d 'Report how jobs are to a monitoring system: one line with performance data'
complete -c onedrop -n "__fish_onedrop_using_subcommand jobs; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c onedrop -n "__fish_onedrop_using_subcommand completions" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand completions" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand completions" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand man" -l config -d 'Configuration file [default: $ONEDROP_CONFIG, else /etc/onedrop/onedrop.toml]' -r -F
complete -c onedrop -n "__fish_onedrop_using_subcommand man" -l color -d 'Colours: auto (on a terminal, unless NO_COLOR is set), always or never' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onedrop -n "__fish_onedrop_using_subcommand man" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and not __fish_seen_subcommand_from deliver lmtp web migrate check trace status verify settle purge forget replay with-lock lock jobs completions man help" -f -a "deliver" -d 'Deliver the message on standard input'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and not __fish_seen_subcommand_from deliver lmtp web migrate check trace status verify settle purge forget replay with-lock lock jobs completions man help" -f -a "lmtp" -d 'Serve LMTP until SIGTERM; SIGHUP reads the configuration again'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and not __fish_seen_subcommand_from deliver lmtp web migrate check trace status verify settle purge forget replay with-lock lock jobs completions man help" -f -a "web" -d 'Serve pages for administrators, read only, until SIGTERM'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and not __fish_seen_subcommand_from deliver lmtp web migrate check trace status verify settle purge forget replay with-lock lock jobs completions man help" -f -a "migrate" -d 'Bring the ledger\'s schema to this program\'s version, while mail goes on'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and not __fish_seen_subcommand_from deliver lmtp web migrate check trace status verify settle purge forget replay with-lock lock jobs completions man help" -f -a "check" -d 'Test the configuration, the ledger, the store and the local Postfix set-up, a line per finding'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and not __fish_seen_subcommand_from deliver lmtp web migrate check trace status verify settle purge forget replay with-lock lock jobs completions man help" -f -a "trace" -d 'Show what is on record: messages, their copies, every attempt'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and not __fish_seen_subcommand_from deliver lmtp web migrate check trace status verify settle purge forget replay with-lock lock jobs completions man help" -f -a "status" -d 'Show on one screen whether all is well, and if not, which command comes next'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and not __fish_seen_subcommand_from deliver lmtp web migrate check trace status verify settle purge forget replay with-lock lock jobs completions man help" -f -a "verify" -d 'Compare ledger and mailboxes, a line per finding'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and not __fish_seen_subcommand_from deliver lmtp web migrate check trace status verify settle purge forget replay with-lock lock jobs completions man help" -f -a "settle" -d 'Write Sent copies that were left for later, unless the sender\'s mail program has saved its own, and record copies that stand without a receipt'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and not __fish_seen_subcommand_from deliver lmtp web migrate check trace status verify settle purge forget replay with-lock lock jobs completions man help" -f -a "purge" -d 'Forget what is older than retention says, in small steps beside deliveries'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and not __fish_seen_subcommand_from deliver lmtp web migrate check trace status verify settle purge forget replay with-lock lock jobs completions man help" -f -a "forget" -d 'Let messages in again, after a mail store was restored; or erase an account'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and not __fish_seen_subcommand_from deliver lmtp web migrate check trace status verify settle purge forget replay with-lock lock jobs completions man help" -f -a "replay" -d 'Deliver again, from files or from the ledger, and write nothing twice'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and not __fish_seen_subcommand_from deliver lmtp web migrate check trace status verify settle purge forget replay with-lock lock jobs completions man help" -f -a "with-lock" -d 'Run a command while no other host or process holds the same lock'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and not __fish_seen_subcommand_from deliver lmtp web migrate check trace status verify settle purge forget replay with-lock lock jobs completions man help" -f -a "lock" -d 'Show who holds locks, assert one, make one free'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and not __fish_seen_subcommand_from deliver lmtp web migrate check trace status verify settle purge forget replay with-lock lock jobs completions man help" -f -a "jobs" -d 'Show jobs and their runs; pause, resume or reset one; report them to a monitoring system'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and not __fish_seen_subcommand_from deliver lmtp web migrate check trace status verify settle purge forget replay with-lock lock jobs completions man help" -f -a "completions" -d 'Print the completions of a shell'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and not __fish_seen_subcommand_from deliver lmtp web migrate check trace status verify settle purge forget replay with-lock lock jobs completions man help" -f -a "man" -d 'Show the manual page of a command'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and not __fish_seen_subcommand_from deliver lmtp web migrate check trace status verify settle purge forget replay with-lock lock jobs completions man help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and __fish_seen_subcommand_from lock" -f -a "list" -d 'Show the locks that are held, and leases that have run out'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and __fish_seen_subcommand_from lock" -f -a "holder" -d 'Show who holds a lock'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and __fish_seen_subcommand_from lock" -f -a "assert" -d 'Print whether the lock is still held under which this command runs, and for how many seconds'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and __fish_seen_subcommand_from lock" -f -a "release" -d 'Make a slot free whose holder is known to be gone'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and __fish_seen_subcommand_from lock" -f -a "steal" -d 'Make a slot free whose lease has run out, and let its holder know that it has lost it'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and __fish_seen_subcommand_from jobs" -f -a "list" -d 'Show every job: how it stands, its last run, when it runs next'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and __fish_seen_subcommand_from jobs" -f -a "show" -d 'Show a job: its schedule and next times, its last runs, what the last one wrote'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and __fish_seen_subcommand_from jobs" -f -a "pause" -d 'Let no run of a job begin until it is resumed; one that runs goes on'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and __fish_seen_subcommand_from jobs" -f -a "resume" -d 'Let a paused job run again; `backfill` says what becomes of the times it has missed'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and __fish_seen_subcommand_from jobs" -f -a "stop" -d 'End the run of a job, on whatever host, and wait for that; it is not tried again'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and __fish_seen_subcommand_from jobs" -f -a "reset" -d 'Forget a job\'s failures and what it has missed, and begin with its next time (with `every` at once); its runs stay on record'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and __fish_seen_subcommand_from jobs" -f -a "mark-done" -d 'Put the time that is due on record as done, without a run'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and __fish_seen_subcommand_from jobs" -f -a "run" -d 'Run a job if it is due and what it depends on has succeeded'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and __fish_seen_subcommand_from jobs" -f -a "tick" -d 'Run every job that is due, look again when one has ended and each minute while any runs'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and __fish_seen_subcommand_from jobs" -f -a "audit" -d 'Compare the ledger with the configuration, a line per finding'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and __fish_seen_subcommand_from jobs" -f -a "import" -d 'Write the lines of a crontab as jobs for the configuration'
complete -c onedrop -n "__fish_onedrop_using_subcommand help; and __fish_seen_subcommand_from jobs" -f -a "check" -d 'Report how jobs are to a monitoring system: one line with performance data'
