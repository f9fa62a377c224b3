//! What strace(1) wrote with `-f -y -o FILE`: the calls of all threads, with when each began and
//! ended, and what their descriptors stand for.

use std::collections::HashMap;

/// One system call.
#[derive(Debug, Clone)]
pub struct Call {
    pub thread: u32,
    pub name: String,
    /// All that stands between the parentheses.
    pub args: String,
    /// What follows the equals sign: a number, a descriptor with its path, `-1 EIO (...)
    /// (INJECTED)`, `?`.
    pub result: String,
    /// Lines of the trace: a call that began after another ended is later.
    pub began: usize,
    /// Past the last line if it never ended.
    pub ended: usize,
}

impl Call {
    pub fn worked(&self) -> bool {
        self.result.starts_with(|c: char| c.is_ascii_digit())
    }

    /// Whether strace made it fail.
    pub fn was_injected(&self) -> bool {
        self.result.contains("(INJECTED)")
    }

    /// What the descriptor is that stands first among the arguments: a path, `TYPE:[...]` of what
    /// has none.
    pub fn on(&self) -> &str {
        path_in(&self.args).unwrap_or_default()
    }

    /// What the descriptor is that the call returned.
    pub fn returned(&self) -> Option<(i32, &str)> {
        let digits = self.result.bytes().take_while(u8::is_ascii_digit).count();
        Some((self.result[..digits].parse().ok()?, path_in(&self.result[digits..])?))
    }

    /// The `n`-th argument in quotes, as strace shows it.
    pub fn quoted(&self, n: usize) -> &str {
        self.args.split('"').nth(2 * n + 1).unwrap_or_default()
    }
}

/// Between angle brackets, right after a number if any.
fn path_in(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    Some(rest.strip_prefix('<')?.split_once('>')?.0)
}

/// The calls of a trace in the order in which they began.
pub fn calls(trace: &str) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    let mut open: HashMap<u32, usize> = HashMap::new();
    let lines = trace.lines().count();
    for (at, line) in trace.lines().enumerate() {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let Ok(thread) = thread.parse::<u32>() else { continue };
        let rest = rest.trim_start();
        if let Some(resumed) = rest.strip_prefix("<... ") {
            let Some((_, rest)) = resumed.split_once(" resumed>") else { continue };
            let Some(begun) = open.remove(&thread) else { continue };
            let (args, result) = halves(rest);
            calls[begun].args.push_str(args);
            result.clone_into(&mut calls[begun].result);
            calls[begun].ended = at;
            continue;
        }
        let Some((name, rest)) = rest.split_once('(') else { continue };
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            continue;
        }
        let (args, result, ended) = match rest.strip_suffix(" <unfinished ...>") {
            Some(args) => {
                open.insert(thread, calls.len());
                (args, "", lines)
            }
            None => {
                let (args, result) = halves(rest);
                (args, result, at)
            }
        };
        let (name, args, result) = (name.to_owned(), args.to_owned(), result.to_owned());
        calls.push(Call { thread, name, args, result, began: at, ended });
    }
    calls
}

/// What stands before and after `) = `; the last such, since the arguments may show one.
fn halves(rest: &str) -> (&str, &str) {
    let Some((args, result)) = rest.rsplit_once(" = ") else { return (rest, "") };
    (args.trim_end().trim_end_matches(')'), result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_two_threads_are_told_apart() {
        let trace = "7  openat(AT_FDCWD</x>, \"/x/tmp\", O_WRONLY|O_TMPFILE, 0600) = \
                     8</x/tmp/#5>(deleted)\n\
                     9  fsync(8</x/tmp/#5>(deleted) <unfinished ...>\n\
                     7  write(1</dev/null>, \"a) = b\", 6) = 6\n\
                     9  <... fsync resumed>)            = -1 EIO (Input/output error) (INJECTED)\n\
                     7  exit_group(0)                     = ?\n\
                     7  +++ exited with 0 +++\n";
        let calls = calls(trace);
        assert_eq!(
            calls.iter().map(|call| &*call.name).collect::<Vec<_>>(),
            ["openat", "fsync", "write", "exit_group"]
        );
        assert_eq!(calls[0].returned(), Some((8, "/x/tmp/#5")));
        assert_eq!(calls[0].quoted(0), "/x/tmp");
        assert_eq!((calls[1].on(), calls[1].began, calls[1].ended), ("/x/tmp/#5", 1, 3));
        assert!(!calls[1].worked() && calls[1].was_injected() && calls[2].worked());
        assert_eq!((calls[2].on(), calls[2].quoted(0)), ("/dev/null", "a) = b"));
        assert!(!calls[3].worked());
    }
}
