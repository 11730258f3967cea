//! A client of ZooKeeper: one session on one TCP connection, and the standard recipe for locks.
//!
//! The recipe: create an ephemeral sequential node below the lock and list the nodes. The client
//! with the lowest number holds the lock. Each other client watches the node just before its own
//! and lists again when it is gone. Deleting the node releases the lock. A linearizable read is
//! `sync` and `getData`, sent together; the server keeps their order.

use super::{Client, values};
use crate::wire::jute::{self, Kind};
use crate::wire::malformed;
use crate::work::Work;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The timeout of a session; servers allow at most 20 ticks of 2 s.
const SESSION: Duration = Duration::from_secs(30);

/// The time without a response to a linearizable read after which the server gets a ping.
const NUDGE: Duration = Duration::from_millis(100);

/// The root node of all others.
const ROOT: &str = "/compare";

/// The addresses of ZooKeeper.
#[derive(Debug)]
pub(crate) struct Site {
    /// The servers that receive requests, in turn.
    pub(crate) targets: Vec<SocketAddr>,
}

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// The packets at the beginning of the buffer that were read already.
    read: usize,
    number: i32,
    /// Events received while waiting for a response. Each client watches one node at a time.
    events: usize,
}

/// A response.
struct Answer<'a> {
    error: i32,
    record: &'a [u8],
}

impl Answer<'_> {
    fn check(&self, doing: &str) -> io::Result<()> {
        match self.error {
            jute::OK => Ok(()),
            error => Err(io::Error::other(format!("ZooKeeper's error {error} to {doing}"))),
        }
    }
}

impl Session {
    /// Connects and creates a session.
    pub(crate) async fn begin(server: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let mut session = Self { stream, buffer: Vec::with_capacity(1024), read: 0, number: 0, events: 0 };
        let timeout_ms = i32::try_from(SESSION.as_millis()).expect("a session is shorter than days");
        session.stream.write_all(&jute::connect(timeout_ms)).await?;
        let (from, to) = session.packet().await?;
        match jute::connected(&session.buffer[from..to])? {
            0 => Err(io::Error::other("ZooKeeper made no session")),
            _ => Ok(session),
        }
    }

    /// Ends the session.
    pub(crate) async fn end(mut self) -> io::Result<()> {
        self.ask(&mut jute::close_session()).await?.check("closeSession")
    }

    /// Sends a request and waits for its response.
    async fn ask(&mut self, request: &mut [u8]) -> io::Result<Answer<'_>> {
        let number = self.next_number();
        jute::renumber(request, number);
        self.stream.write_all(request).await?;
        self.answer(number).await
    }

    fn next_number(&mut self) -> i32 {
        self.number = self.number.wrapping_add(1).max(1);
        self.number
    }

    /// Waits for the response to the request of this number.
    async fn answer(&mut self, number: i32) -> io::Result<Answer<'_>> {
        loop {
            let (from, to) = self.packet().await?;
            let (head, record) = jute::head(&self.buffer[from..to])?;
            match head.number {
                jute::EVENT => self.events += 1,
                jute::PING => {}
                known if known == number => {
                    let from = to - record.len();
                    return Ok(Answer { error: head.error, record: &self.buffer[from..to] });
                }
                _ => return Err(malformed("an answer of ZooKeeper's to another request")),
            }
        }
    }

    /// As [`Session::answer`], but sends a ping if nothing arrives for a while.
    ///
    /// ZooKeeper 3.8 sometimes forgets a `sync` with a read right behind it, about once in 40,000
    /// times, until another packet arrives; a lone session would wait until it expires.
    async fn answer_insisting(&mut self, number: i32) -> io::Result<Answer<'_>> {
        loop {
            match timeout(NUDGE, self.fill()).await {
                Ok(filled) => filled?,
                Err(_) => {
                    self.stream.write_all(&jute::ping()).await?;
                    continue;
                }
            };
            if self.next_is_ping() {
                self.packet().await?;
            } else {
                return self.answer(number).await;
            }
        }
    }

    /// Waits for an event, and keeps the session alive meanwhile.
    async fn event(&mut self) -> io::Result<()> {
        while self.events == 0 {
            match timeout(SESSION / 3, self.packet()).await {
                Ok(packet) => {
                    let (from, to) = packet?;
                    let (head, _) = jute::head(&self.buffer[from..to])?;
                    self.events += usize::from(head.number == jute::EVENT);
                }
                Err(_) => self.stream.write_all(&jute::ping()).await?,
            }
        }
        self.events -= 1;
        Ok(())
    }

    /// Waits for a packet; returns its range in the buffer, without its length. Cancel safe.
    async fn packet(&mut self) -> io::Result<(usize, usize)> {
        let length = self.fill().await?;
        let at = self.read;
        self.read += length;
        Ok((at + 4, at + length))
    }

    /// Waits until the next packet is in the buffer; returns its length. Cancel safe.
    async fn fill(&mut self) -> io::Result<usize> {
        loop {
            let unread = &self.buffer[self.read..];
            if let Some(length) = jute::packet_length(unread)?
                && unread.len() >= length
            {
                return Ok(length);
            }
            self.buffer.drain(..self.read);
            self.read = 0;
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "ZooKeeper closed the connection"));
            }
        }
    }

    /// Returns `true` if the packet in the buffer answers a ping.
    fn next_is_ping(&self) -> bool {
        jute::head(&self.buffer[self.read + 4..]).is_ok_and(|(head, _)| head.number == jute::PING)
    }

    /// Creates a persistent node, if it is missing.
    async fn ensure(&mut self, path: &str) -> io::Result<()> {
        let answer = self.ask(&mut jute::create(path, b"", Kind::Persistent)).await?;
        if answer.error == jute::NODE_EXISTS { Ok(()) } else { answer.check("create") }
    }
}

/// An application. Its session is closed with its connection.
#[derive(Debug)]
pub(crate) struct ZooKeeper {
    session: Session,
    server: SocketAddr,
    sets: [Vec<u8>; 2],
    get: Vec<u8>,
    /// `sync` and `getData`, one behind the other.
    read: Vec<u8>,
    lock: String,
    create: Vec<u8>,
    children: Vec<u8>,
    /// This client's node in the queue.
    node: String,
}

impl Client for ZooKeeper {
    type Site = Site;

    async fn connect(site: &Rc<Site>, number: usize, work: Work) -> io::Result<Self> {
        let server = site.targets[number % site.targets.len()];
        let mut session = Session::begin(server).await?;
        let key = format!("{ROOT}/key-{number}");
        let lock = match work {
            Work::Handoff => format!("{ROOT}/contended"),
            _ => format!("{ROOT}/lock-{number}"),
        };
        if work != Work::Churn {
            session.ensure(ROOT).await?;
        }
        match work {
            Work::Cycles | Work::Handoff => session.ensure(&lock).await?,
            Work::Puts | Work::Reads | Work::StaleReads => session.ensure(&key).await?,
            Work::Churn => {}
        }
        let mut client = Self {
            session,
            server,
            sets: values().map(|value| jute::set_data(&key, &value)),
            get: jute::data(&key),
            read: [jute::sync(&key), jute::data(&key)].concat(),
            create: jute::create(&format!("{lock}/lock-"), b"", Kind::EphemeralSequential),
            children: jute::children(&lock),
            lock,
            node: String::new(),
        };
        if matches!(work, Work::Reads | Work::StaleReads) {
            client.put().await?;
        }
        Ok(client)
    }

    async fn put(&mut self) -> io::Result<()> {
        self.sets.swap(0, 1);
        self.session.ask(&mut self.sets[0]).await?.check("setData")
    }

    async fn read(&mut self) -> io::Result<()> {
        let at = self.read.len() - self.get.len();
        let (sync, get) = self.read.split_at_mut(at);
        let (first, second) = (self.session.next_number(), self.session.next_number());
        jute::renumber(sync, first);
        jute::renumber(get, second);
        self.session.stream.write_all(&self.read).await?;
        self.session.answer_insisting(first).await?.check("sync")?;
        found(&self.session.answer_insisting(second).await?)
    }

    async fn read_stale(&mut self) -> io::Result<()> {
        found(&self.session.ask(&mut self.get).await?)
    }

    async fn cycle(&mut self) -> io::Result<()> {
        self.stand_in_line().await?;
        match self.before().await? {
            None => self.release().await,
            Some(_) => Err(io::Error::other("a lock that is wanted by one client is held by another")),
        }
    }

    async fn churn(&mut self) -> io::Result<()> {
        Session::begin(self.server).await?.end().await
    }

    async fn acquire(&mut self) -> io::Result<()> {
        self.stand_in_line().await?;
        while let Some(before) = self.before().await? {
            let mut watch = jute::exists_and_watch(&format!("{}/{before}", self.lock));
            let answer = self.session.ask(&mut watch).await?;
            if answer.error == jute::NO_NODE {
                // It was deleted meanwhile. The watch stays for a node of that name, which is never
                // created again.
                continue;
            }
            answer.check("exists")?;
            self.session.event().await?;
        }
        Ok(())
    }

    async fn release(&mut self) -> io::Result<()> {
        let mut delete = jute::delete(&format!("{}/{}", self.lock, self.node));
        self.session.ask(&mut delete).await?.check("delete")
    }

    async fn close(self) -> io::Result<()> {
        self.session.end().await
    }
}

impl ZooKeeper {
    async fn stand_in_line(&mut self) -> io::Result<()> {
        let answer = self.session.ask(&mut self.create).await?;
        answer.check("create")?;
        let path = String::from_utf8_lossy(jute::text(answer.record)?).into_owned();
        self.node = path.rsplit('/').next().unwrap_or_default().to_owned();
        Ok(())
    }

    /// Returns the node just before this client's own; `None` if its own is the first.
    async fn before(&mut self) -> io::Result<Option<String>> {
        let answer = self.session.ask(&mut self.children).await?;
        answer.check("getChildren")?;
        let names = jute::names(answer.record)?;
        let mine = self.node.as_bytes();
        if !names.contains(&mine) {
            return Err(io::Error::other("a node in line is gone before its session"));
        }
        let before = names.into_iter().filter(|name| *name < mine).max();
        Ok(before.map(|name| String::from_utf8_lossy(name).into_owned()))
    }
}

fn found(answer: &Answer<'_>) -> io::Result<()> {
    answer.check("getData")?;
    match jute::text(answer.record)?.is_empty() {
        false => Ok(()),
        true => Err(io::Error::other("data that was just written is not there")),
    }
}
