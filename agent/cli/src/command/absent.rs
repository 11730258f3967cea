//! Errors for a command or an option of Consul, or of flock(1), that Lockmesh does not have. They
//! take the place of clap's tip, which suggests the name with the most similar spelling.

use crate::config::{Spelling, similar};
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use lockmesh_agent::consul;
use std::ffi::OsString;

/// Options of flock(1), and their counterparts of `lock` and `semaphore`.
const FLOCK: [(&str, &str); 4] = [
    ("-w", "here it is `--timeout DURATION`, as in `--timeout 10s`"),
    ("-E", "here the exit code is 120 if the lock is not acquired in time"),
    ("-x", "a lock is exclusive by default: leave it out"),
    ("-s", "here it is `lockmesh lock --shared`"),
];

/// The remedy for an option of flock(1).
pub(super) fn of_flock(option: &str) -> Option<String> {
    let found = FLOCK.iter().find(|(name, _)| *name == option);
    found.map(|(name, remedy)| format!("`{name}` of flock(1): {remedy}"))
}

/// The same error; or, if the arguments name something that only Consul has, one that names the
/// feature and a remedy.
pub(super) fn explained(error: clap::Error, arguments: &[OsString], root: &Command) -> clap::Error {
    if !matches!(error.kind(), ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument) {
        return error;
    }
    let own: Vec<&str> =
        arguments.iter().skip(1).map(|argument| argument.to_str().unwrap_or_default()).collect();
    let words: Vec<&str> = own.iter().copied().take_while(|word| !word.starts_with('-')).collect();
    // `help intention` and `config help read` are about the same commands.
    let named: Vec<&str> = words.iter().copied().filter(|word| *word != "help").collect();
    let found = match consul::command(&named) {
        Some(found) if error.kind() == ErrorKind::InvalidSubcommand => vec![found],
        _ => options(&error, &own, words.first().copied().unwrap_or_default(), root),
    };
    if found.is_empty() {
        return similar_or_habit(error, &named, root);
    }
    let lines: Vec<_> = found.into_iter().map(|(name, row)| row.explain(name)).collect();
    clap::Error::raw(error.kind(), format!("{}\n", lines.join("\n")))
}

/// The same error with the commands that may be meant; or the remedy for an option that other
/// programs have.
fn similar_or_habit(mut error: clap::Error, words: &[&str], root: &Command) -> clap::Error {
    let command = words.iter().try_fold(root, |command, word| command.find_subcommand(word).ok_or(command));
    let (Ok(command) | Err(command)) = command;
    if let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand)
        && error.get(ContextKind::SuggestedSubcommand).is_none()
    {
        let visible = command.get_subcommands().filter(|inner| !inner.is_hide_set());
        let names: Vec<String> = visible.map(|inner| inner.get_name().into()).collect();
        let meant = similar(name, &names, Spelling::Dotted);
        if !meant.is_empty() {
            let meant = meant.into_iter().map(String::from).collect();
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(meant));
        }
        return error;
    }
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return error };
    let has_json = || command.get_arguments().any(|argument| argument.get_long() == Some("json"));
    let hint = match command.get_name() {
        "lock" | "semaphore" => of_flock(option),
        _ if option == "-o" && has_json() => Some("`-o FORMAT`: here it is `--json`".into()),
        _ => None,
    };
    match hint {
        Some(hint) => clap::Error::raw(error.kind(), format!("{hint}\n")),
        None => error,
    }
}

/// Options that only Consul has: of `agent` and `server`, and without a command, all of them; of
/// any other command, which may be followed by a child's options, the one that clap rejected.
fn options(
    error: &clap::Error,
    arguments: &[&str],
    command: &str,
    root: &Command,
) -> Vec<(&'static str, &'static consul::Row)> {
    let rejected = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) => argument.as_str(),
        _ => return Vec::new(),
    };
    let name = |argument: &str| -> Option<String> {
        let name = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-'))?;
        Some(name.split('=').next().unwrap_or(name).into())
    };
    let (command, candidates) = match command {
        // Its options for TLS are like Consul's.
        "migrate" => return Vec::new(),
        "" | "agent" | "server" => ("agent", arguments),
        other => (other, std::slice::from_ref(&rejected)),
    };
    let is_known = |option: &str| {
        let own = root.find_subcommand(arguments.first().copied().unwrap_or_default());
        own.is_some_and(|own| own.get_arguments().any(|argument| argument.get_long() == Some(option)))
    };
    let names = candidates.iter().filter_map(|argument| name(argument)).filter(|option| !is_known(option));
    let mut found: Vec<_> = names.filter_map(|option| consul::option(command, &option)).collect();
    found.dedup_by_key(|(name, _)| *name);
    found
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    fn understood(line: &[&str]) -> Result<super::super::Invocation, clap::Error> {
        super::super::understand(["lockmesh"].iter().chain(line).map(OsString::from))
    }

    #[test]
    fn consul_only_commands_name_remedy() {
        for (line, hint) in [
            (["services", "export", "-name=web"].as_slice(), "`services export` of Consul (cluster peering)"),
            (&["info"], "here it is `GET /metrics`"),
            (&["-http-addr", "h:1", "info"], "here it is `GET /metrics`"),
            (&["help", "intention"], "`intention` of Consul (service mesh): not in"),
            (&["help", "config", "read"], "`config read` of Consul (service mesh)"),
            (&["config", "help", "read"], "`config read` of Consul (service mesh)"),
            (&["intention", "--help"], "`intention` of Consul (service mesh): not in"),
            (&["--token=t", "config", "read", "-kind", "x"], "`config read` of Consul (service mesh)"),
            (&["login"], "`login` of Consul (logins): not in Lockmesh"),
            (&["config", "read", "-kind", "x", "-name", "y"], "`config read` of Consul (service mesh)"),
            (&["snapshot", "agent"], "`snapshot agent` of Consul"),
            (&["tls", "ca", "create"], "`lockmesh operator tls init`"),
            (&["agent", "-dev"], "`agent -dev` of Consul (development mode): here it is `lockmesh dev`"),
            (&["-dev"], "here it is `lockmesh dev`"),
            (
                &["agent", "-server", "-bind", "10.0.0.1"],
                "here it is `lockmesh server`\n`agent -bind` of Consul",
            ),
            (&["server", "-bootstrap-expect=3", "-client=::"], "`agent -client` of Consul"),
            (&["agent", "--config-dir", "/etc/consul.d"], "`--config FILE`, one TOML file"),
            (&["agent", "-config-file=consul.hcl"], "`--config FILE`, one TOML file"),
            (&["kv", "get", "-namespace=x", "key"], "`-namespace` of Consul (Consul Enterprise)"),
        ] {
            let error = understood(line).expect_err("Lockmesh does not have it");
            let text = error.to_string();
            assert!(
                text.contains(hint) && text.starts_with("error: ") && text.ends_with('\n'),
                "{line:?}: {text}"
            );
            assert!(!text.contains("bootstrap-expect"), "Lockmesh has it: {text}");
            assert_eq!(error.exit_code(), 2, "{line:?}");
        }
        for line in
            [["nonsense"].as_slice(), &["agent", "-nonsense"], &["lock", "-nonsense", "n", "sh", "-dev"]]
        {
            let text = understood(line).expect_err("it makes no sense").to_string();
            assert!(!text.contains("Consul"), "{text}");
        }
        let text = understood(&["migrate", "consul", "-ca-path", "d"]).expect_err("it is a file").to_string();
        assert!(text.contains("'-ca-path'") && !text.contains("socket"), "{text}");
        let text = understood(&["-http-addr", "h:1", "nonsense"]).expect_err("it makes no sense").to_string();
        assert!(text.contains("unrecognized subcommand 'nonsense'"), "{text}");
    }

    #[test]
    fn unknown_option_quoted_as_typed() {
        for (line, hint) in [
            (["locks", "-o", "json"].as_slice(), "`-o FORMAT`: here it is `--json`"),
            (&["leave", "-o", "json"], "unexpected argument '-o' found"),
            (&["lock", "-w", "5", "n", "--", "true"], "`-w` of flock(1): here it is `--timeout DURATION`"),
            (&["semaphore", "-n2", "-x", "n", "true"], "`-x` of flock(1): a lock is exclusive by default"),
            (&["lock", "-v", "n", "--", "true"], "unexpected argument '-v' found"),
            (&["kv", "get", "-bogus=1", "key"], "unexpected argument '-bogus' found\n\nUsage"),
            (
                &["kv", "get", "--bogus", "key"],
                "unexpected argument '--bogus' found\n\n  tip: to pass '--bogus'",
            ),
            (&["kv", "gte", "key"], "a similar subcommand exists: 'get'"),
        ] {
            let text = understood(line).expect_err("there is no such option").to_string();
            assert!(text.contains(hint), "{line:?}: {text}");
        }
    }

    #[test]
    fn listed_commands_are_unimplemented() {
        let mut root = super::super::command();
        root.build();
        for name in lockmesh_agent::consul::COMMANDS.iter().flat_map(|row| row.names) {
            let words = name.split(' ');
            let found = words.clone().try_fold(&root, |command, word| command.find_subcommand(word));
            assert!(found.is_none(), "`{name}` exists: remove it from consul/table.rs");
        }
    }
}
