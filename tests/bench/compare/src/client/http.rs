//! A client of Consul's HTTP API: Lockmesh's agent through its Unix socket, or a server of Consul.
//!
//! A lock that is held is awaited in Lockmesh's queue, and by a blocking query in Consul.

use super::{Client, LIFETIME, Site, locks, names, value};
use crate::Result;
use crate::cluster::Service;
use crate::work::Work;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};

/// A connection that carries one request at a time.
#[derive(Debug)]
pub(crate) struct Wire(SendRequest<Full<Bytes>>);

impl Wire {
    /// Connects to `host:port`, or to the path of a Unix socket.
    pub(crate) async fn connect(target: &str) -> Result<Self> {
        if target.starts_with('/') {
            let (sender, connection) = handshake(TokioIo::new(UnixStream::connect(target).await?)).await?;
            tokio::spawn(connection);
            return Ok(Self(sender));
        }
        let stream = TcpStream::connect(target).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self(sender))
    }

    /// Sends a request; returns the body and Consul's index. Any status except 200 and 404 fails.
    pub(crate) async fn send(&mut self, method: &str, path: &str, body: Bytes) -> Result<(Bytes, String)> {
        let request = hyper::Request::builder().method(method).uri(path).header("Host", "localhost");
        self.0.ready().await?;
        let response = self.0.send_request(request.body(Full::new(body))?).await?;
        let status = response.status().as_u16();
        let index = response.headers().get("X-Consul-Index").and_then(|index| index.to_str().ok());
        let index = index.unwrap_or("0").to_owned();
        let body = response.into_body().collect().await?.to_bytes();
        match status {
            200 | 404 => Ok((body, index)),
            _ => Err(format!("{method} {path} returned {status}: {}", String::from_utf8_lossy(&body)).into()),
        }
    }

    /// Sends a request without a body, and returns the JSON of the response.
    pub(crate) async fn ask(&mut self, path: &str) -> Result<serde_json::Value> {
        Ok(serde_json::from_slice(&self.send("GET", path, Bytes::new()).await?.0)?)
    }

    /// Sends a write; returns `true` if the response is `true`.
    async fn grants(&mut self, path: &str, body: &'static [u8]) -> Result<bool> {
        Ok(self.send("PUT", path, Bytes::from_static(body)).await?.0.trim_ascii() == b"true")
    }

    /// Sends a write that must succeed.
    async fn succeed(&mut self, path: &str, body: &'static [u8]) -> Result<()> {
        let granted = self.grants(path, body).await?;
        if granted { Ok(()) } else { Err(format!("PUT {path} returned false").into()) }
    }

    async fn new_session(&mut self) -> Result<String> {
        let body = format!(r#"{{"TTL":"{LIFETIME}s","LockDelay":"0s","NodeChecks":[]}}"#);
        let (answer, _) = self.send("PUT", "/v1/session/create", body.into()).await?;
        let answer: serde_json::Value = serde_json::from_slice(&answer)?;
        answer["ID"].as_str().map(str::to_owned).ok_or_else(|| "a session without an id".into())
    }
}

/// An application with its own connection.
#[derive(Debug)]
pub(crate) struct Http {
    wire: Wire,
    key: String,
    lock: String,
    /// The session that holds locks; empty if the work uses no locks.
    session: String,
    acquire: String,
    release: String,
    is_lockmesh: bool,
    turn: bool,
}

impl Client for Http {
    async fn connect(site: &Site, number: usize, work: Work) -> Result<Self> {
        let mut wire = Wire::connect(site.target(number)).await?;
        let session = if locks(work) { wire.new_session().await? } else { String::new() };
        let (key, lock) = names(number, work);
        let (key, lock) = (format!("/v1/kv/{key}"), format!("/v1/kv/{lock}"));
        let is_lockmesh = site.service == Service::Lockmesh;
        let wait = if is_lockmesh && work == Work::Handoff { "&wait=60s" } else { "" };
        Ok(Self {
            wire,
            key,
            acquire: format!("{lock}?acquire={session}{wait}"),
            release: format!("{lock}?release={session}"),
            lock,
            session,
            is_lockmesh,
            turn: false,
        })
    }

    async fn put(&mut self) -> Result<()> {
        self.wire.succeed(&self.key, value(&mut self.turn)).await
    }

    async fn acquire(&mut self) -> Result<()> {
        let mut index = "0".to_owned();
        while !self.wire.grants(&self.acquire, b"").await? {
            let mut held = !self.is_lockmesh;
            while held {
                let path = format!("{}?consistent&wait=60s&index={index}", self.lock);
                let (body, now) = self.wire.send("GET", &path, Bytes::new()).await?;
                index = now;
                let entries: serde_json::Value = serde_json::from_slice(&body)?;
                held = entries[0]["Session"].is_string();
            }
        }
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        self.wire.succeed(&self.release, b"").await
    }

    async fn close(mut self) -> Result<()> {
        match self.session.is_empty() {
            true => Ok(()),
            false => self.wire.succeed(&format!("/v1/session/destroy/{}", self.session), b"").await,
        }
    }
}
