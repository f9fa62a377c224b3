//! Reading what `postconf -M` prints: a line per service, eight columns, then the daemon's
//! arguments, where braces hold a word together (master(5); Postfix' mystrtokq and extpar).

/// One service of master.cf.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct MasterService {
    pub(super) name: String,
    pub(super) unprivileged: String,
    pub(super) chroot: String,
    pub(super) command: String,
    /// `-o name=value`, in order.
    pub(super) overrides: Vec<(String, String)>,
    /// What follows the generic daemon options.
    pub(super) arguments: Vec<String>,
}

impl MasterService {
    /// The service's own value of a parameter; the last one counts.
    pub(super) fn own(&self, parameter: &str) -> Option<&str> {
        self.overrides.iter().rfind(|(name, _)| name == parameter).map(|(_, value)| value.as_str())
    }
}

/// The attributes of a pipe(8) command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) flags: String,
    pub(super) user: Option<String>,
    pub(super) null_sender: Option<String>,
    pub(super) size: Option<String>,
    pub(super) eol: Option<String>,
    pub(super) directory: Option<String>,
    pub(super) chroot: Option<String>,
    pub(super) argv: Vec<String>,
}

impl Attributes {
    /// As pipe(8) reads them: names in any case, the last of each counts, flags accumulate, argv is
    /// the last.
    pub(super) fn read(arguments: &[String]) -> Attributes {
        let mut read = Attributes::default();
        for (at, argument) in arguments.iter().enumerate() {
            let Some((name, value)) = argument.split_once('=') else { continue };
            let own = || Some(value.to_owned());
            match name.to_ascii_lowercase().as_str() {
                "flags" => read.flags.push_str(value),
                "user" => read.user = own(),
                "null_sender" => read.null_sender = own(),
                "size" => read.size = own(),
                "eol" => read.eol = own(),
                "directory" => read.directory = own(),
                "chroot" => read.chroot = own(),
                "argv" => {
                    read.argv.extend(own());
                    read.argv.extend_from_slice(&arguments[at + 1..]);
                    break;
                }
                _ => {}
            }
        }
        read
    }
}

/// The services in `listing`.
pub(super) fn services(listing: &str) -> Vec<MasterService> {
    listing.lines().filter_map(service).collect()
}

fn service(line: &str) -> Option<MasterService> {
    let mut words = words(line).into_iter();
    let mut column = || words.next();
    let (name, _kind, _private, unprivileged, chroot) =
        (column()?, column()?, column()?, column()?, column()?);
    let (_wakeup, _processes, command) = (column()?, column()?, column()?);
    let mut service =
        MasterService { name, unprivileged, chroot, command, ..MasterService::default() };
    let mut words = words.peekable();
    while let Some(option) = words.next_if(|word| word.starts_with('-')) {
        if option == "-o"
            && let Some((name, value)) =
                words.next().as_deref().and_then(|setting| setting.split_once('='))
        {
            service.overrides.push((name.trim().to_owned(), value.trim().to_owned()));
        }
    }
    service.arguments = words.collect();
    Some(service)
}

/// The words of `line`: blanks separate them except in braces; outer braces are removed.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut depth = 0_usize;
    for c in line.chars().chain([' ']) {
        if c.is_ascii_whitespace() && (depth == 0 || word.is_empty()) {
            if !word.is_empty() {
                words.push(unbraced(&word));
                word.clear();
            }
            continue;
        }
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        word.push(c);
    }
    words
}

fn unbraced(word: &str) -> String {
    let inner = word.strip_prefix('{').and_then(|word| word.strip_suffix('}'));
    inner.map_or(word, str::trim).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_parsed() {
        let line = "drop unix - n y - 20 pipe -v -o {a = b c} -o time=5s flags=DR FLAGS=X user=v \
                    null_sender= argv=/usr/bin/onedrop deliver -d ${recipient} {-f ${sender} x}";
        let services = services(line);
        let service = &services[0];
        assert_eq!((service.name.as_str(), service.command.as_str()), ("drop", "pipe"));
        assert_eq!((service.unprivileged.as_str(), service.chroot.as_str()), ("n", "y"));
        assert_eq!(service.own("a"), Some("b c"));
        assert_eq!(service.own("time"), Some("5s"));
        let attributes = Attributes::read(&service.arguments);
        assert_eq!(attributes.flags, "DRX");
        assert_eq!(attributes.null_sender.as_deref(), Some(""));
        assert_eq!(
            attributes.argv,
            ["/usr/bin/onedrop", "deliver", "-d", "${recipient}", "-f ${sender} x"]
        );
    }

    #[test]
    fn lines_without_a_service_are_skipped() {
        assert_eq!(services("\n# comment\nsmtp inet n\n"), []);
        assert_eq!(words("a {b"), ["a"]); // postconf does not print unbalanced braces
    }
}
