//! Examples and exit codes on the help pages, and the pages of topics.
//!
//! **Invariant:** each page has an example that parses, and no line is longer than 100 columns.

use super::context::ConnectionArgs;
use super::error::{ELECT_EXIT_CODES, EXIT_CODES, HOLDER_EXIT_CODES};
use clap::{Args, Command};

/// The examples of each page, by the command's words.
const EXAMPLES: &[(&str, &[&str])] = &[
    ("", &["lockmesh dev", "lockmesh lock nightly -- /usr/local/bin/report", "lockmesh help lock"]),
    ("dev", &["lockmesh dev", "lockmesh dev --nodes 5 --data-dir ~/fleet"]),
    ("dev kill", &["lockmesh dev kill n4 --data-dir ~/fleet"]),
    ("agent", &["lockmesh agent --config /etc/lockmesh/agent.toml"]),
    (
        "server",
        &[
            "lockmesh server --config /etc/lockmesh/server.toml",
            "lockmesh server --bootstrap-expect 3 --join 10.0.0.5:8300,10.0.0.6:8300",
        ],
    ),
    (
        "lock",
        &[
            "lockmesh lock nightly -- /usr/local/bin/report --all",
            "lockmesh lock nightly --once --window fast -- /usr/local/bin/report",
            "lockmesh lock nightly --timeout 10s 'cd /srv && ./report | mail ops'",
        ],
    ),
    (
        "elect",
        &["lockmesh elect scheduler -- /usr/local/bin/scheduler", "lockmesh elect scheduler --show --json"],
    ),
    ("semaphore", &["lockmesh semaphore backups --slots 3 -- /usr/local/bin/backup"]),
    ("locks", &["lockmesh locks jobs/", "lockmesh locks --losses"]),
    ("session", &["lockmesh session list"]),
    (
        "session create",
        &["lockmesh session create --name job --ttl 15s", "lockmesh session create --behavior delete"],
    ),
    ("session list", &["lockmesh session list --node web-1"]),
    ("session info", &["lockmesh session info 23cc4a7e-8aef-a56b-7cd5-8c82fa16a93a"]),
    ("session renew", &["lockmesh session renew 23cc4a7e-8aef-a56b-7cd5-8c82fa16a93a"]),
    ("session destroy", &["lockmesh session destroy 23cc4a7e-8aef-a56b-7cd5-8c82fa16a93a"]),
    ("kv", &["lockmesh kv get config/limit"]),
    ("kv get", &["lockmesh kv get config/limit", "lockmesh kv get --recurse --detailed config/"]),
    (
        "kv put",
        &[
            "lockmesh kv put config/limit 10",
            "lockmesh kv put --cas --modify-index 17 config/limit @limit.txt",
        ],
    ),
    ("kv delete", &["lockmesh kv delete config/limit", "lockmesh kv delete --recurse config/"]),
    ("kv list", &["lockmesh kv list config/"]),
    ("kv export", &["lockmesh kv export config/"]),
    ("kv import", &["lockmesh kv import @config.json"]),
    (
        "watch",
        &[
            "lockmesh watch --type key --key config/limit /usr/local/bin/reload",
            "lockmesh watch --type service --service web --passingonly /usr/local/bin/update-proxy",
            "lockmesh watch --type event --name deploy 'jq .[].Payload'",
        ],
    ),
    ("event", &["lockmesh event fire deploy v1.4", "lockmesh event list"]),
    ("event fire", &["lockmesh event fire deploy v1.4 --node '^web-'"]),
    ("event list", &["lockmesh event list --name deploy"]),
    ("services", &["lockmesh services list"]),
    (
        "services register",
        &[
            "lockmesh services register --name web --port 80 --check-http http://localhost/health",
            "lockmesh services register web.json",
        ],
    ),
    (
        "services deregister",
        &["lockmesh services deregister --id web", "lockmesh services deregister web.json"],
    ),
    ("services list", &["lockmesh services list", "lockmesh services list --filter 'Service == web'"]),
    ("checks", &["lockmesh checks", "lockmesh checks --status critical"]),
    ("catalog", &["lockmesh catalog services"]),
    ("catalog services", &["lockmesh catalog services --tags"]),
    ("catalog nodes", &["lockmesh catalog nodes --service web"]),
    ("catalog datacenters", &["lockmesh catalog datacenters"]),
    ("query", &["lockmesh query execute web"]),
    ("query list", &["lockmesh query list"]),
    (
        "query create",
        &[
            "lockmesh query create @web.json",
            r#"lockmesh query create '{"Name": "web", "Service": {"Service": "web", "OnlyPassing": true}}'"#,
        ],
    ),
    ("query update", &["lockmesh query update web @web.json"]),
    ("query delete", &["lockmesh query delete web"]),
    ("query show", &["lockmesh query show web"]),
    ("query execute", &["lockmesh query execute web --limit 3 --near _agent"]),
    ("query explain", &["lockmesh query explain web-eu"]),
    ("acl", &["lockmesh acl bootstrap", "lockmesh acl token list"]),
    ("acl bootstrap", &["lockmesh acl bootstrap", "lockmesh acl bootstrap - --json"]),
    ("acl token", &["lockmesh acl token list"]),
    (
        "acl token create",
        &[
            "lockmesh acl token create --description nightly --policy-name jobs",
            "lockmesh acl token create --role-name ops --expires-ttl 8h",
        ],
    ),
    ("acl token read", &["lockmesh acl token read --self", "lockmesh acl token read --id 6a1253d2"]),
    ("acl token update", &["lockmesh acl token update --id 6a1253d2 --append-policy-name reports"]),
    ("acl token delete", &["lockmesh acl token delete --id 6a1253d2"]),
    ("acl token clone", &["lockmesh acl token clone --id 6a1253d2 --description 'second host'"]),
    ("acl token list", &["lockmesh acl token list --json"]),
    ("acl policy", &["lockmesh acl policy list"]),
    (
        "acl policy create",
        &[
            "lockmesh acl policy create --name jobs --rules @jobs.hcl",
            r#"lockmesh acl policy create --name jobs --rules 'key_prefix "jobs/" { policy = "write" }'"#,
        ],
    ),
    ("acl policy read", &["lockmesh acl policy read --name jobs"]),
    ("acl policy update", &["lockmesh acl policy update --name jobs --rules @jobs.hcl"]),
    ("acl policy delete", &["lockmesh acl policy delete --name jobs"]),
    ("acl policy list", &["lockmesh acl policy list"]),
    ("acl role", &["lockmesh acl role list"]),
    ("acl role create", &["lockmesh acl role create --name ops --policy-name jobs --policy-name reports"]),
    ("acl role read", &["lockmesh acl role read --name ops"]),
    ("acl role update", &["lockmesh acl role update --name ops --policy-name reports"]),
    ("acl role delete", &["lockmesh acl role delete --name ops"]),
    ("acl role list", &["lockmesh acl role list"]),
    ("acl auth-method", &["lockmesh acl auth-method list"]),
    ("acl auth-method create", &["lockmesh acl auth-method create --name host --type unix-peer"]),
    ("acl auth-method read", &["lockmesh acl auth-method read --name host"]),
    ("acl auth-method update", &["lockmesh acl auth-method update --name host --description 'local users'"]),
    ("acl auth-method delete", &["lockmesh acl auth-method delete --name host"]),
    ("acl auth-method list", &["lockmesh acl auth-method list --json"]),
    ("acl binding-rule", &["lockmesh acl binding-rule list"]),
    (
        "acl binding-rule create",
        &[
            r#"lockmesh acl binding-rule create --method host --selector 'user == "deploy"' --bind-type policy --bind-name jobs"#,
            r#"lockmesh acl binding-rule create --method host --selector '"ops" in groups' --bind-type role --bind-name ops"#,
        ],
    ),
    ("acl binding-rule read", &["lockmesh acl binding-rule read --id 6a1253d2"]),
    ("acl binding-rule update", &["lockmesh acl binding-rule update --id 6a1253d2 --bind-name reports"]),
    ("acl binding-rule delete", &["lockmesh acl binding-rule delete --id 6a1253d2"]),
    ("acl binding-rule list", &["lockmesh acl binding-rule list --method host"]),
    ("whoami", &["lockmesh whoami", "lockmesh whoami --can key:write jobs/x --can operator:read"]),
    ("members", &["lockmesh members", "lockmesh members --detailed"]),
    ("monitor", &["lockmesh monitor", "lockmesh monitor --log-level debug --log-json"]),
    ("leave", &["lockmesh leave"]),
    ("force-leave", &["lockmesh force-leave web-3"]),
    ("join", &["lockmesh join 10.0.0.7:8300"]),
    ("maint", &["lockmesh maint", "lockmesh maint --enable --reason 'new disk'", "lockmesh maint --disable"]),
    ("operator", &["lockmesh operator raft list-peers"]),
    (
        "operator acl",
        &[
            "lockmesh operator acl",
            "lockmesh operator acl --mode log",
            "lockmesh operator acl --default-policy deny",
        ],
    ),
    ("operator autopilot", &["lockmesh operator autopilot health"]),
    ("operator autopilot get-config", &["lockmesh operator autopilot get-config"]),
    ("operator autopilot set-config", &["lockmesh operator autopilot set-config --min-quorum 3"]),
    ("operator autopilot health", &["lockmesh operator autopilot health"]),
    ("operator hosts", &["lockmesh operator hosts", "lockmesh operator hosts --set ops-1,ops-2"]),
    ("operator deadlocks", &["lockmesh operator deadlocks", "lockmesh operator deadlocks --policy refuse"]),
    ("operator gossip", &["lockmesh operator gossip key"]),
    ("operator gossip key", &["lockmesh operator gossip key"]),
    ("operator gossip rotate", &["lockmesh operator gossip rotate"]),
    ("operator raft", &["lockmesh operator raft list-peers"]),
    ("operator raft list-peers", &["lockmesh operator raft list-peers"]),
    ("operator raft add", &["lockmesh operator raft add 10.0.0.8:8300"]),
    ("operator raft inspect", &["lockmesh operator raft inspect --config /etc/lockmesh/server.toml"]),
    ("operator raft moved", &["lockmesh operator raft moved --config /etc/lockmesh/server.toml"]),
    ("operator raft remove", &["lockmesh operator raft remove s3"]),
    ("operator raft remove-peer", &["lockmesh operator raft remove-peer --address 10.0.0.7:8300"]),
    ("operator raft recover", &["lockmesh operator raft recover --config /etc/lockmesh/server.toml"]),
    ("operator raft transfer-leader", &["lockmesh operator raft transfer-leader s2"]),
    ("operator snapshot", &["lockmesh operator snapshot save backup.snap"]),
    ("operator snapshot save", &["lockmesh operator snapshot save backup.snap"]),
    ("operator snapshot restore", &["lockmesh operator snapshot restore backup.snap"]),
    ("operator snapshot inspect", &["lockmesh operator snapshot inspect backup.snap"]),
    ("operator tls", &["lockmesh operator tls init --out /root/authority"]),
    ("operator tls init", &["lockmesh operator tls init --out /root/authority"]),
    (
        "operator tls issue",
        &["lockmesh operator tls issue --role agent --node web-1 --ca /root/authority --out web-1"],
    ),
    ("reload", &["lockmesh reload"]),
    ("migrate", &["lockmesh migrate consul --prefix config/"]),
    (
        "migrate consul",
        &[
            "lockmesh migrate consul --prefix jobs/ --dry-run",
            "lockmesh migrate consul --from http://127.0.0.1:8501 --prefix jobs/ --prefix config/ --follow",
            "lockmesh migrate consul --from https://consul-1:8501 --ca-file consul-ca.pem --prefix jobs/",
            "lockmesh migrate consul --prefix jobs/ --verify-only --json",
        ],
    ),
    ("bench", &["lockmesh bench puts --clients 64 --duration 10s"]),
    ("config", &["lockmesh config validate /etc/lockmesh/agent.toml"]),
    ("config validate", &["lockmesh config validate --role server /etc/lockmesh/server.toml"]),
    ("config from-consul", &["lockmesh config from-consul /etc/consul.d --output /etc/lockmesh"]),
    ("version", &["lockmesh version --json"]),
    ("completions", &["lockmesh completions bash > /etc/bash_completion.d/lockmesh"]),
];

/// The topic on the options of every command that connects to the agent.
const AGENT_ADDRESS: &str = "agent-address";

const AGENT_ADDRESS_ORDER: &str = "\
The address is the first of these: --http-addr, LOCKMESH_HTTP_ADDR, CONSUL_HTTP_ADDR,
/run/lockmesh/agent.sock if it answers, 127.0.0.1:8500. The options may stand before the
command. The token of Consul's variables is not sent to the address of --http-addr or
LOCKMESH_HTTP_ADDR.

Examples:
  lockmesh members --http-addr unix:///run/lockmesh/agent.sock
  lockmesh --http-addr 127.0.0.1:8501 members";

/// Adds the pages of topics, and examples and exit codes to all pages of the program.
pub fn complete(program: Command) -> Command {
    let topic = ConnectionArgs::augment_args(Command::new(AGENT_ADDRESS))
        .about("The options of commands that connect to the agent")
        // Hidden on the pages of the commands, all of which have these options.
        .mut_args(|option| option.hide(false))
        .help_template("{about-with-newline}\n{options}{after-help}")
        .disable_help_flag(true)
        .arg_required_else_help(true)
        .after_help(AGENT_ADDRESS_ORDER)
        .hide(true);
    add(program, "", false).subcommand(topic)
}

fn add(command: Command, path: &str, is_online: bool) -> Command {
    let path = path.to_owned();
    // The options of a command are those of its subcommands too.
    let is_online = is_online || command.get_arguments().any(|option| option.get_id() == "http_addr");
    let command = match path.as_str() {
        "semaphore" => command.mut_args(|argument| match argument.get_id() == "name" {
            true => argument.help("Semaphore name; slots are keys under NAME/"),
            false => argument,
        }),
        _ => command,
    };
    let command = match text(&path, is_online) {
        Some(text) => command.after_help(text),
        None => command,
    };
    command.mut_subcommands(move |inner| {
        let path = format!("{path} {}", inner.get_name());
        add(inner, path.trim_start(), is_online)
    })
}

fn text(path: &str, is_online: bool) -> Option<String> {
    // The alias of Consul's users has the pages of the original.
    let path = match path.strip_prefix("snapshot") {
        Some(rest) => format!("operator snapshot{rest}"),
        None => path.to_owned(),
    };
    let examples = EXAMPLES.iter().find(|(known, _)| *known == path).map(|(_, examples)| *examples)?;
    let lines: Vec<String> = examples.iter().map(|example| format!("  {example}")).collect();
    let codes = match path.as_str() {
        "" => format!("\n\n{EXIT_CODES}"),
        "lock" => format!("\n\n{HOLDER_EXIT_CODES}"),
        "semaphore" => "\n\nExit codes: as of `lockmesh lock`".into(),
        "elect" => format!("\n\n{ELECT_EXIT_CODES}"),
        _ => String::new(),
    };
    let address = match is_online {
        true => format!("\n\nOptions to reach the agent: lockmesh help {AGENT_ADDRESS}"),
        false => String::new(),
    };
    Some(format!("Examples:\n{}{codes}{address}", lines.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    /// All commands with their paths, without hidden ones and without `help`.
    fn pages(command: &Command, path: &str, found: &mut Vec<(String, Command)>) {
        found.push((path.into(), command.clone()));
        let visible = |inner: &&Command| !inner.is_hide_set() && inner.get_name() != "help";
        for inner in command.get_subcommands().filter(visible) {
            pages(inner, format!("{path} {}", inner.get_name()).trim_start(), found);
        }
    }

    fn all_pages() -> Vec<(String, Command)> {
        let mut command = crate::command::command();
        command.build();
        let mut found = Vec::new();
        pages(&command, "", &mut found);
        found
    }

    #[test]
    fn pages_include_examples_and_fit_screen() {
        let pages = all_pages();
        assert!(pages.len() > 50, "{}", pages.len());
        for (path, mut command) in pages {
            for page in [command.render_help().to_string(), command.render_long_help().to_string()] {
                assert!(page.contains("Examples:\n  lockmesh"), "`lockmesh {path}` has no example:\n{page}");
                let is_online = command.get_arguments().any(|option| option.get_id() == "http_addr");
                assert_eq!(page.contains("lockmesh help agent-address"), is_online, "{page}");
                assert!(!page.contains("--http-addr"), "{page}");
                let wide: Vec<&str> = page.lines().filter(|line| line.chars().count() > 100).collect();
                assert!(wide.is_empty(), "`lockmesh {path}`: {wide:#?}");
            }
        }
    }

    #[test]
    fn each_example_parses() {
        for (path, example) in
            EXAMPLES.iter().flat_map(|(path, lines)| lines.iter().map(move |line| (path, line)))
        {
            // A shell would redirect the output, and take a quoted part for one word.
            let line = example.split(" > ").next().unwrap_or_default();
            let parts = line.split('\'').enumerate();
            let words = parts.flat_map(|(number, part)| match number % 2 {
                1 => vec![OsString::from(part)],
                _ => part.split_whitespace().map(OsString::from).collect(),
            });
            let words: Vec<OsString> = words.collect();
            match crate::command::understand(words) {
                Ok(_) => {}
                Err(error) if !error.use_stderr() => {}
                Err(error) => panic!("`{path}`: {example}: {error}"),
            }
            assert!(example.contains(path), "{example} shows `{path}`");
        }
    }

    #[test]
    fn help_subcommand_shows_command_help() {
        for line in [
            "lockmesh help lock",
            "lockmesh help operator raft add",
            "lockmesh kv help get",
            "lockmesh help agent-address",
        ] {
            let words = line.split(' ').map(OsString::from);
            let shown = crate::command::understand(words).expect_err("it is help");
            assert!(!shown.use_stderr() && shown.to_string().contains("Examples:"), "{line}: {shown}");
        }
    }
}
