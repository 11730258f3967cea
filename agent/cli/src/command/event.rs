//! `lockmesh event`: user events, fired and listed. `lockmesh watch --type event` waits for them.

use super::context::Context;
use super::error::CliError;
use super::output::{OutputArgs, Table, print_json, print_line};
use lockmesh_client::shape::event::Event;
use lockmesh_client::{NewEvent, Read};
use std::process::ExitCode;

/// The maximum length of a payload in the table, in characters.
const SHOWN_PAYLOAD: usize = 40;

/// Send an event to all hosts, or list received events
///
/// `lockmesh event -name NAME PAYLOAD` is Consul's spelling of `lockmesh event fire NAME PAYLOAD`.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Event name
    #[arg(long, value_name = "NAME", required = true)]
    name: Option<String>,
    #[command(flatten)]
    event: EventArgs,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Send an event to every agent, at most once
    ///
    /// Events travel by gossip, without a server, within one or two seconds. An agent that does not
    /// run misses it.
    Fire {
        /// Event name
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        event: EventArgs,
    },
    /// List the last 256 events that this agent received for its host
    List {
        /// Only events of this name
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        #[command(flatten)]
        output: OutputArgs,
    },
}

// An event besides its name. No doc comment, which would become the help of the command.
#[derive(clap::Args, Debug)]
struct EventArgs {
    /// Only hosts whose node name matches this regular expression
    #[arg(long, value_name = "REGEX")]
    node: Option<String>,
    /// Only hosts with a service whose id matches
    #[arg(long, value_name = "REGEX")]
    service: Option<String>,
    /// Only hosts whose matching service has a matching tag
    #[arg(long, value_name = "REGEX")]
    tag: Option<String>,
    /// Print the JSON of the agent's API
    #[arg(long)]
    json: bool,
    /// Event payload (about 400 bytes at most)
    #[arg(value_name = "PAYLOAD")]
    payload: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// The request was rejected or not answered. Without an answer the event may have been sent: check
/// with `event list`.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    let (name, event) = match args.command {
        Some(Command::List { name, output }) => {
            let events = client.events().list(&name.unwrap_or_default(), &Read::default()).await?.value;
            output.print(&events[..], table)?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(Command::Fire { name, event }) => (name, event),
        None => (args.name.unwrap_or_default(), args.event),
    };
    let EventArgs { node, service, tag, json, payload } = event;
    let new = NewEvent {
        name,
        payload: payload.unwrap_or_default().into(),
        node: node.unwrap_or_default(),
        service: service.unwrap_or_default(),
        tag: tag.unwrap_or_default(),
    };
    if new.name.is_empty() {
        return Err(CliError::usage("the name of the event is empty"));
    }
    let fired = client.events().fire(&new).await?;
    match json {
        true => print_json(&fired)?,
        false => print_line(&format!("Event ID: {}", fired.id))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn table(events: &[Event]) -> Table {
    let mut table = Table::new(["ID", "Name", "LTime", "Payload", "Nodes", "Services", "Tags"]);
    for event in events {
        table.row([
            event.id.clone(),
            event.name.clone(),
            event.lamport_time.to_string(),
            shown_payload(event),
            event.node_filter.clone(),
            event.service_filter.clone(),
            event.tag_filter.clone(),
        ]);
    }
    table
}

fn shown_payload(event: &Event) -> String {
    let bytes = event.payload.as_ref().map(|blob| blob.0.as_ref()).unwrap_or_default();
    let text = String::from_utf8_lossy(bytes);
    let mut shown: String = text.chars().take(SHOWN_PAYLOAD).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_client::shape::Blob;

    #[test]
    fn events_fit_the_table() {
        let plain = Event { id: "i1".into(), name: "deploy".into(), lamport_time: 7, ..Event::default() };
        let payload = Some(Blob("x\ny".repeat(50).into_bytes().into()));
        let long = Event { payload, node_filter: "^web-".into(), ..plain.clone() };
        let rendered = table(&[plain, long]).render();
        let lines: Vec<&str> = rendered.lines().collect();
        assert!(lines[0].starts_with("ID  Name    LTime  Payload"), "{rendered}");
        assert!(lines[1].starts_with("i1  deploy  7      -  "), "{rendered}");
        assert!(lines[2].contains(r"x\nyx\ny") && lines[2].contains("…  ^web-"), "{rendered}");
    }
}
