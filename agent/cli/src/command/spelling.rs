//! Consul's spelling of options, made ours before anything is parsed: `-cas`, `-modify-index=5`,
//! `-recurse=true`.
//!
//! A pure pass over the arguments that knows the commands and their options. Short options, values
//! and whatever belongs to a child process are left alone.

use clap::{Arg, Command};
use std::ffi::OsString;

/// Rewrites the arguments of a built command, the first one being the program's own name.
pub fn rewrite(arguments: impl IntoIterator<Item = OsString>, root: &Command) -> Vec<OsString> {
    let mut arguments = arguments.into_iter();
    let mut rewritten: Vec<OsString> = arguments.next().into_iter().collect();
    let mut command = root;
    let mut positionals = 0;
    while let Some(argument) = arguments.next() {
        let text = argument.to_str().unwrap_or_default();
        // All behind it is the child's, to the letter.
        if text == "--" {
            rewritten.push(argument);
            break;
        }
        if text.len() > 1 && text.starts_with('-') {
            rewrite_option(argument, &mut arguments, command, &mut rewritten);
            continue;
        }
        // Behind an argument the same word is a value.
        if let Some(inner) = command.find_subcommand(text).filter(|_| positionals == 0) {
            command = inner;
            rewritten.push(argument);
            continue;
        }
        positionals += 1;
        rewritten.push(argument);
        // What follows may look like our options, and is not.
        if begins_a_child(command, positionals) {
            break;
        }
    }
    rewritten.extend(arguments);
    rewritten
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
        // A misspelt long option is not a heap of short ones, least of all one with `-h` for help
        // in it.
        let is_misspelt = !short && text.chars().nth(1).is_some_and(char::is_alphabetic);
        rewritten.push(if is_misspelt { OsString::from(format!("--{bare}")) } else { argument });
        // Its value may begin with a dash, and must not be taken for an option.
        rewritten.extend(waits.then(|| rest.next()).flatten());
        return;
    };
    let is_flag = !option.get_action().takes_values();
    let mut spelled = OsString::from(format!("--{name}"));
    match value {
        Some("true") if is_flag => {}
        // A flag of ours is off where it is left out.
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

/// Whether the option needs a value; one that may stand alone takes none from the next argument.
fn takes_value(argument: &Arg) -> bool {
    let may_stand_alone = argument.get_num_args().is_some_and(|values| values.min_values() == 0);
    argument.get_action().takes_values() && !may_stand_alone
}

/// Whether this is a short option of the command, as `-n`, `-n3` or `-n=3`, and whether its value
/// is the next argument.
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

/// Whether everything from this positional on belongs to a child process.
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
    fn one_dash_is_as_good_as_two() {
        assert_eq!(rewritten("x kv put -cas -modify-index=5 k v"), "x kv put --cas --modify-index=5 k v");
        assert_eq!(rewritten("x kv put --cas -flag 5 k v"), "x kv put --cas --flag=5 k v");
        assert_eq!(rewritten("x kv put -http-addr h:1 k v"), "x kv put --http-addr=h:1 k v");
        assert_eq!(rewritten("x -http-addr=h:1 kv put k"), "x --http-addr=h:1 kv put k");
        assert_eq!(rewritten("x kv put -help"), "x kv put --help");
    }

    #[test]
    fn a_flag_may_say_true_or_false() {
        assert_eq!(rewritten("x kv put -cas=true k v"), "x kv put --cas k v");
        assert_eq!(rewritten("x kv put -cas=false k v"), "x kv put k v");
        assert_eq!(rewritten("x kv put -cas=maybe k v"), "x kv put --cas=maybe k v");
        assert_eq!(rewritten("x kv put -flags=true k v"), "x kv put --flags=true k v");
        assert_eq!(rewritten("x lock -shell name sh"), "x lock --shell name sh");
        assert_eq!(rewritten("x lock -shell=false name"), "x lock --shell=false name");
    }

    #[test]
    fn a_value_is_never_taken_for_an_option() {
        assert_eq!(rewritten("x kv put -flags -cas k v"), "x kv put --flags=-cas k v");
        assert_eq!(rewritten("x kv put k -"), "x kv put k -");
        assert_eq!(rewritten("x kv put lock -cas"), "x kv put lock --cas");
        assert_eq!(rewritten("x kv put -flags"), "x kv put --flags");
    }

    #[test]
    fn an_option_that_is_not_there_is_no_heap_of_short_ones() {
        assert_eq!(rewritten("x kv put -unknown=1 k v"), "x kv put --unknown=1 k v");
        assert_eq!(rewritten("x lock -cas name"), "x lock --cas name");
        assert_eq!(rewritten("x lock -n3 -h name"), "x lock -n3 -h name");
        assert_eq!(rewritten("x lock -help-me name"), "x lock --help-me name");
    }

    #[test]
    fn what_is_not_ours_is_left_alone() {
        assert_eq!(rewritten("x lock -n 3 name sh -try"), "x lock -n 3 name sh -try");
        assert_eq!(rewritten("x lock -n=3 -try name sh"), "x lock -n=3 --try name sh");
        assert_eq!(rewritten("x lock -try name -- sh -try -cas"), "x lock --try name -- sh -try -cas");
        assert_eq!(rewritten("x kv put -5 -n"), "x kv put -5 --n");
    }

    #[cfg(unix)]
    #[test]
    fn bytes_that_are_no_text_pass_through() {
        use std::os::unix::ffi::OsStringExt;
        let value = OsString::from_vec(vec![b'-', 0xff]);
        let arguments = ["x", "kv", "put", "k"].map(OsString::from).into_iter().chain([value.clone()]);
        assert_eq!(rewrite(arguments, &command()).last(), Some(&value));
    }
}
