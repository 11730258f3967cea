//! `/v1/snapshot`: backups of the whole state, and their restore.
//!
//! A backup is collected in a temporary file and then sent. A restore is received into one,
//! verified as a whole, and only then applied. Neither is ever held in memory.

use super::super::answer::{self, Failure};
use super::super::archive::{self, ArchiveError, Meta};
use super::super::body::Body;
use super::super::call::{Call, broken_off};
use super::super::file_body::FileBody;
use crate::upstream::calls::ReadBackup;
use http::header::{self, HeaderValue};
use http::{Method, Response, StatusCode};
use http_body_util::BodyExt;
use lockmesh_client::outcome::Outcome;
use lockmesh_net::random;
use lockmesh_protocol::change::Change;
use lockmesh_protocol::command::{Command, RestoreStep};
use lockmesh_protocol::id::{LogIndex, Term};
use lockmesh_protocol::reply::Reply;
use std::fs::File;
use std::io::{self, BufReader, Seek};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

pub(super) async fn run(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    match *call.method() {
        Method::PUT => restore(call, body).await,
        _ => save(call).await,
    }
}

async fn save(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let (file, length, index) = gather(call).await?;
    let body = FileBody::new(tokio::fs::File::from_std(file), length);
    let mut response = Response::new(Body::file(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-gzip"));
    answer::write_meta(headers, index, true, Duration::ZERO);
    Ok(response)
}

/// Fetches every part into an archive.
async fn gather(call: &Call<'_>) -> Result<(File, u64, LogIndex), Failure> {
    let stale = call.params.has("stale");
    let mut writer = blocking(archive::ArchiveWriter::new).await?;
    let (mut backup, mut number) = (None::<(u64, LogIndex, Term)>, 0);
    loop {
        let next = ReadBackup { backup: backup.map(|(backup, ..)| backup), number, stale };
        let part = call.upstream.call(next).await?;
        // Each server counts its own backups: after an election another server's may have the same
        // number.
        let whole = (part.backup, part.index, part.term);
        if part.number != number || *backup.get_or_insert(whole) != whole {
            return Err(Failure::not_done("the server sent a part of another backup: begin again"));
        }
        let rows = part.rows;
        writer = blocking(move || {
            writer.push(&rows)?;
            Ok(writer)
        })
        .await?;
        if part.last {
            let meta = Meta {
                build: call.api.identity.version.clone(),
                cluster_id: part.cluster_id,
                index: part.index.0,
                term: part.term.0,
                made_at_ms: archive::now_ms(),
                ..Meta::default()
            };
            let (file, length) = blocking(move || writer.finish(meta)).await?;
            return Ok((file, length, part.index));
        }
        number += 1;
    }
}

async fn restore(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    if call.params.has("stale") {
        return Err(Failure::refused("stale not allowed for restore"));
    }
    let mut file = receive(call, body).await?;
    let (verified, file) = tokio::task::spawn_blocking(move || {
        let outcome = file.rewind().map_err(ArchiveError::Io);
        (outcome.and_then(|()| archive::verify(BufReader::new(&file))), file)
    })
    .await
    .map_err(|_| Failure::not_done("the agent is shutting down"))?;
    let meta = verified.map_err(unusable)?;
    let index = put_in_place(call, file, &meta).await?;
    Ok(answer::with_write_index(answer::nothing(), index))
}

/// Receives the client's bytes into a temporary file.
async fn receive(call: &Call<'_>, mut body: Body) -> Result<File, Failure> {
    let limits = &call.api.limits;
    let mut file = tokio::fs::File::from_std(blocking(tempfile::tempfile).await?);
    let mut length = 0_u64;
    loop {
        // For each piece, not for the total: a large backup may take long.
        let frame = tokio::time::timeout(limits.body_read_timeout, body.frame()).await;
        let frame = frame.map_err(|_| {
            crate::metrics::LIMITS.with_label_values(&["body_read_timeout"]).inc();
            let text = "the backup took too long to arrive";
            Failure::new(StatusCode::REQUEST_TIMEOUT, text).with_outcome(Outcome::NotDone)
        })?;
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| broken_off("backup", &error))?;
        let Ok(data) = frame.into_data() else { continue };
        length += data.len() as u64;
        if length > limits.max_snapshot_size {
            crate::metrics::LIMITS.with_label_values(&["snapshot_size"]).inc();
            let text = format!("the backup is larger than {} bytes", limits.max_snapshot_size);
            return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, text));
        }
        file.write_all(&data).await.map_err(spool_failed)?;
    }
    // The file is written in the background: the last error may show only here.
    file.flush().await.map_err(spool_failed)?;
    Ok(file.into_std().await)
}

/// Sends a verified backup to the quorum, part by part; the state changes at the last step.
async fn put_in_place(call: &Call<'_>, mut file: File, meta: &Meta) -> Result<LogIndex, Failure> {
    // Random, so that the parts of two concurrent restores are not mixed.
    let id = random::bytes().map_err(|error| Failure::not_done(error.to_string()))?;
    let id = u64::from_le_bytes(id);
    step(call, RestoreStep::Begin { id }).await?;
    // A short queue: parts are read while others are on their way, but never all of them.
    let (sender, mut parts) = mpsc::channel::<(u32, Vec<Change>)>(2);
    let reading = tokio::task::spawn_blocking(move || {
        file.rewind().map_err(ArchiveError::Io)?;
        let hand_over = |number, rows| {
            sender
                .blocking_send((number, rows))
                .map_err(|_| io::Error::other("the receiver of the parts is gone"))
        };
        archive::read_parts(BufReader::new(&file), hand_over)
    });
    while let Some((number, rows)) = parts.recv().await {
        step(call, RestoreStep::Part { id, number, rows }).await?;
    }
    // A file that cannot be read also ends the parts, which must not be committed then.
    let read = reading.await.map_err(|_| Failure::not_done("the agent is shutting down"))?;
    read.map_err(unusable)?;
    step(call, RestoreStep::Commit { id, parts: meta.parts }).await
}

async fn step(call: &Call<'_>, step: RestoreStep) -> Result<LogIndex, Failure> {
    let applied = call.propose(Command::Restore(step)).await?;
    match applied.reply {
        Reply::Refused(refusal) => Err(refusal.into()),
        _ => Ok(applied.index),
    }
}

/// The failure for an unreadable backup: the file is damaged, or its disk failed.
fn unusable(error: ArchiveError) -> Failure {
    match error {
        ArchiveError::Io(error) => spool_failed(error),
        damaged => Failure::refused(damaged.to_string()),
    }
}

/// Runs file operations on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome.map_err(spool_failed),
        Err(_) => Err(Failure::not_done("the agent is shutting down")),
    }
}

fn spool_failed(error: io::Error) -> Failure {
    let folder = std::env::temp_dir();
    Failure::not_done(format!(
        "no room for the backup in {}: {error}: free some, or set TMPDIR",
        folder.display()
    ))
}
