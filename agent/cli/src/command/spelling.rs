//! Rewrites arguments before they are parsed: Consul's spelling of options (`-cas`,
//! `-modify-index=5`, `-recurse=true`), and options of the connection before the command.
//!
//! Pure. Short options, values and all arguments of a child process are left alone.

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command};
use std::ffi::OsString;

/// The options that may stand before the command that they belong to, as in `lockmesh --http-addr
/// H:1 kv get k`.
const GLOBAL: [&str; 3] = ["http-addr", "token", "token-file"];

/// Rewrites the arguments of a built command. The first argument is the name of the program.
pub fn rewrite(arguments: impl IntoIterator<Item = OsString>, root: &Command) -> Vec<OsString> {
    let mut arguments = arguments.into_iter();
    let mut rewritten: Vec<OsString> = arguments.next().into_iter().collect();
    let mut command = root;
    let mut positionals = 0;
    // Options of the connection that this command does not have, and the end of the commands.
    let (mut early, mut commands_end) = (Vec::new(), rewritten.len());
    while let Some(argument) = arguments.next() {
        let text = argument.to_str().unwrap_or_default();
        // All arguments behind it are the child's.
        if text == "--" {
            rewritten.push(argument);
            break;
        }
        if text.len() > 1 && text.starts_with('-') {
            match early_option(text, &mut arguments, command) {
                Some(option) => early.push(option),
                None => rewrite_option(argument, &mut arguments, command, &mut rewritten),
            }
            continue;
        }
        // After a positional argument the same word is a value.
        match command.find_subcommand(text).filter(|_| positionals == 0) {
            Some(inner) => command = inner,
            None => positionals += 1,
        }
        rewritten.push(argument);
        // The parser must reject an unknown word, and not the options that would follow it.
        if positionals == 0 || (positionals == 1 && takes_no_argument(command)) {
            commands_end = rewritten.len();
        }
        // The arguments of a child may look like options of ours.
        if positionals > 0 && begins_a_child(command, positionals) {
            break;
        }
    }
    rewritten.splice(commands_end..commands_end, early);
    rewritten.extend(arguments);
    rewritten
}

/// The same error, with an unknown option as it was typed.
pub fn as_typed(mut error: clap::Error, typed: &[OsString]) -> clap::Error {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return error };
    let one_dash = option.strip_prefix('-').unwrap_or(option).to_owned();
    let names = typed.iter().filter_map(|word| word.to_str()?.split('=').next());
    if one_dash.starts_with('-') && names.into_iter().any(|name| name == one_dash) {
        error.insert(ContextKind::InvalidArg, ContextValue::String(one_dash));
        // A tip in the other spelling, to pass it as a value.
        error.remove(ContextKind::Suggested);
    }
    error
}

/// An option of the connection that stands before the command that it belongs to, with its value.
fn early_option(
    text: &str,
    rest: &mut impl Iterator<Item = OsString>,
    command: &Command,
) -> Option<OsString> {
    let (name, value) = global_option(text)?;
    if !command.has_subcommands() || long_option(command, name).is_some() {
        return None;
    }
    let mut option = OsString::from(format!("--{name}="));
    match value {
        Some(value) => option.push(value),
        None => option.push(rest.next().unwrap_or_default()),
    }
    Some(option)
}

/// The name of an option in [`GLOBAL`], and its value if that is joined to it.
fn global_option(text: &str) -> Option<(&str, Option<&str>)> {
    let bare = text.strip_prefix("--").or_else(|| text.strip_prefix('-'))?;
    let (name, value) = match bare.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (bare, None),
    };
    GLOBAL.contains(&name).then_some((name, value))
}

fn rewrite_option(
    argument: OsString,
    rest: &mut impl Iterator<Item = OsString>,
    command: &Command,
    rewritten: &mut Vec<OsString>,
) {
    let text = argument.to_str().unwrap_or_default();
    let bare = text.strip_prefix("--").or_else(|| text.strip_prefix('-')).unwrap_or(text);
    let (name, value) = match bare.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (bare, None),
    };
    let Some(option) = long_option(command, name) else {
        let (short, waits) = short_option(command, text);
        // A misspelt long option is not a group of short ones, which could contain `-h` for help.
        let is_misspelt = !short && name.len() > 1 && name.starts_with(char::is_alphabetic);
        rewritten.push(if is_misspelt { OsString::from(format!("--{bare}")) } else { argument });
        // The value of a short option may begin with a dash.
        rewritten.extend(waits.then(|| rest.next()).flatten());
        return;
    };
    let is_flag = !option.get_action().takes_values();
    let mut spelled = OsString::from(format!("--{name}"));
    match value {
        Some("true") if is_flag => {}
        // A flag of ours is off if it is left out.
        Some("false") if is_flag => return,
        Some(value) => spelled.push(format!("={value}")),
        // Joined, so that a value may begin with a dash.
        None if takes_value(option) => {
            if let Some(next) = rest.next() {
                spelled.push("=");
                spelled.push(next);
            }
        }
        None => {}
    }
    rewritten.push(spelled);
}

/// The command's option of that name.
fn long_option<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let has_name = |argument: &&Arg| {
        argument.get_long() == Some(name)
            || argument.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
    };
    command.get_arguments().find(has_name)
}

/// `true` if the option takes its value from the next argument; an optional value must be joined.
fn takes_value(argument: &Arg) -> bool {
    let may_stand_alone = argument.get_num_args().is_some_and(|values| values.min_values() == 0);
    argument.get_action().takes_values() && !may_stand_alone
}

/// `true` if this is a short option of the command, as `-n`, `-n3` or `-n=3`; and `true` if its
/// value is the next argument.
fn short_option(command: &Command, text: &str) -> (bool, bool) {
    let mut characters = text.chars().skip(1);
    let (first, is_alone) = (characters.next(), characters.next().is_none());
    let is_it = |argument: &&Arg| argument.get_short().is_some() && argument.get_short() == first;
    match command.get_arguments().find(is_it) {
        Some(option) if takes_value(option) => (true, is_alone),
        Some(_) => (is_alone, false),
        None => (false, false),
    }
}

/// Returns `true` if every argument of the command is one of its commands.
fn takes_no_argument(command: &Command) -> bool {
    command.has_subcommands() && command.get_positionals().next().is_none()
}

/// `true` if all arguments from this positional on belong to a child process.
fn begins_a_child(command: &Command, positional: usize) -> bool {
    command
        .get_positionals()
        .any(|argument| argument.get_index() == Some(positional) && argument.is_allow_hyphen_values_set())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ArgAction;

    fn command() -> Command {
        let flag = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
        let option = |name: &'static str| Arg::new(name).long(name);
        let put = Command::new("put")
            .args([flag("cas"), option("modify-index"), option("flags").alias("flag")])
            .args([Arg::new("key"), Arg::new("value")]);
        let lock = Command::new("lock")
            .args([Arg::new("n").short('n'), flag("try"), Arg::new("name")])
            .arg(option("shell").num_args(0..=1).require_equals(true))
            .arg(Arg::new("child").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true));
        let mut root = Command::new("lockmesh")
            .arg(option("http-addr").global(true))
            .subcommand(Command::new("kv").subcommand(put))
            .subcommand(lock);
        root.build();
        root
    }

    fn rewritten(line: &str) -> String {
        let arguments = line.split(' ').map(OsString::from);
        let words = rewrite(arguments, &command());
        words.iter().map(|word| word.to_str().expect("it was text")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn single_dash_accepted_as_double() {
        assert_eq!(rewritten("x kv put -cas -modify-index=5 k v"), "x kv put --cas --modify-index=5 k v");
        assert_eq!(rewritten("x kv put --cas -flag 5 k v"), "x kv put --cas --flag=5 k v");
        assert_eq!(rewritten("x kv put -http-addr h:1 k v"), "x kv put --http-addr=h:1 k v");
        assert_eq!(rewritten("x kv put -help"), "x kv put --help");
    }

    #[test]
    fn connection_options_accepted_before_command() {
        let option = |name: &'static str| Arg::new(name).long(name);
        let mut root = Command::new("lockmesh").subcommand(
            Command::new("kv").subcommand(Command::new("get").args([option("token"), Arg::new("key")])),
        );
        root.build();
        let moved = |line: &str| {
            let words = rewrite(line.split(' ').map(OsString::from), &root);
            words.iter().map(|word| word.to_str().expect("it was text")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(moved("x -token=t kv get k"), "x kv get --token=t k");
        assert_eq!(moved("x --token t kv get k"), "x kv get --token=t k");
        assert_eq!(moved("x kv -token t get k"), "x kv get --token=t k");
        assert_eq!(moved("x -token kv"), "x --token=kv", "a value is no command");
        assert_eq!(moved("x kv get k -token t"), "x kv get k --token=t");
        assert_eq!(moved("x -token"), "x --token=");
        assert_eq!(moved("x -token t services list"), "x services --token=t list");
        assert_eq!(moved("x -token t kv nonsense"), "x kv nonsense --token=t");
    }

    #[test]
    fn flag_accepts_true_or_false() {
        assert_eq!(rewritten("x kv put -cas=true k v"), "x kv put --cas k v");
        assert_eq!(rewritten("x kv put -cas=false k v"), "x kv put k v");
        assert_eq!(rewritten("x kv put -cas=maybe k v"), "x kv put --cas=maybe k v");
        assert_eq!(rewritten("x kv put -flags=true k v"), "x kv put --flags=true k v");
        assert_eq!(rewritten("x lock -shell name sh"), "x lock --shell name sh");
        assert_eq!(rewritten("x lock -shell=false name"), "x lock --shell=false name");
    }

    #[test]
    fn option_value_not_parsed_as_option() {
        assert_eq!(rewritten("x kv put -flags -cas k v"), "x kv put --flags=-cas k v");
        assert_eq!(rewritten("x kv put k -"), "x kv put k -");
        assert_eq!(rewritten("x kv put lock -cas"), "x kv put lock --cas");
        assert_eq!(rewritten("x kv put -flags"), "x kv put --flags");
    }

    #[test]
    fn unknown_option_not_split_into_letters() {
        assert_eq!(rewritten("x kv put -unknown=1 k v"), "x kv put --unknown=1 k v");
        assert_eq!(rewritten("x lock -cas name"), "x lock --cas name");
        assert_eq!(rewritten("x lock -n3 -h name"), "x lock -n3 -h name");
        assert_eq!(rewritten("x lock -help-me name"), "x lock --help-me name");
    }

    #[test]
    fn foreign_arguments_left_unchanged() {
        assert_eq!(rewritten("x lock -n 3 name sh -try"), "x lock -n 3 name sh -try");
        assert_eq!(rewritten("x lock -n=3 -try name sh"), "x lock -n=3 --try name sh");
        assert_eq!(rewritten("x lock -try name -- sh -try -cas"), "x lock --try name -- sh -try -cas");
        assert_eq!(rewritten("x kv put -5 -n"), "x kv put -5 -n");
    }

    #[cfg(unix)]
    #[test]
    fn non_utf8_arguments_pass_through() {
        use std::os::unix::ffi::OsStringExt;
        let value = OsString::from_vec(vec![b'-', 0xff]);
        let arguments = ["x", "kv", "put", "k"].map(OsString::from).into_iter().chain([value.clone()]);
        assert_eq!(rewrite(arguments, &command()).last(), Some(&value));
    }
}
