//! `lockmesh event`: user events, fired and listed. `lockmesh watch --type event` waits for them.

use super::context::Context;
use super::error::CliError;
use super::output::{Table, print_json, print_line};
use lockmesh_client::shape::event::Event;
use lockmesh_client::{NewEvent, Read};
use std::process::ExitCode;

/// How much of a payload the table shows, in characters.
const SHOWN_PAYLOAD: usize = 40;

/// Tell something to all hosts, or see what was told
///
/// `lockmesh event -name NAME PAYLOAD` is Consul's spelling of `lockmesh event fire NAME PAYLOAD`.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// What it is about
    #[arg(long, value_name = "NAME", required = true)]
    name: Option<String>,
    #[command(flatten)]
    event: EventArgs,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Fire an event: every agent hears of it, at most once
    ///
    /// It travels from agent to agent, without a server, within a second or two. An agent that is
    /// not there misses it.
    Fire {
        /// What it is about
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        event: EventArgs,
    },
    /// Show the last 256 events that this agent has received and that were for its host
    List {
        /// Only those of this name
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Print JSON as the agent's API has it
        #[arg(long)]
        json: bool,
    },
}

// What an event is made of besides its name. No doc comment: it would stand as the help of whatever
// it is part of.
#[derive(clap::Args, Debug)]
struct EventArgs {
    /// Only for hosts with such a name: a regular expression, as the next two
    #[arg(long, value_name = "REGEX")]
    node: Option<String>,
    /// Only for hosts with such a service, by its id
    #[arg(long, value_name = "REGEX")]
    service: Option<String>,
    /// Only for hosts on which such a service has such a tag
    #[arg(long, value_name = "REGEX")]
    tag: Option<String>,
    /// Print JSON as the agent's API has it
    #[arg(long)]
    json: bool,
    /// What else there is to say: some 400 bytes
    #[arg(value_name = "PAYLOAD")]
    payload: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// The agent refuses, or gave no answer. Where an answer was lost, the event may have been fired:
/// `event list` tells.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let client = context.client()?;
    let (name, event) = match args.command {
        Some(Command::List { name, json }) => {
            let events = client.events().list(&name.unwrap_or_default(), &Read::default()).await?.value;
            match json {
                true => print_json(&events)?,
                false => table(&events).print()?,
            }
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
    let mut table = Table::new(["ID", "Name", "Time", "Payload", "Nodes", "Services", "Tags"]);
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
        assert!(lines[0].starts_with("ID  Name    Time  Payload"), "{rendered}");
        assert!(lines[1].starts_with("i1  deploy  7     -  "), "{rendered}");
        assert!(lines[2].contains(r"x\nyx\ny") && lines[2].contains("…  ^web-"), "{rendered}");
    }
}
