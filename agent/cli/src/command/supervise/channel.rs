//! The socket between a guard, its supervisor, and the process that becomes the command.
//!
//! It keeps the borders of packets. The first packet of each socket is a start, with the command's
//! standard input as an open file; all others are [`Message`]s. No packet is waited for: a process
//! that stands still does not stop the other one.

use crate::supervision::Terms;
use crate::supervision::message::{LENGTH, Message};
use lockmesh_client::holder::Moment;
use rustix::cmsg_space;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg, socketpair,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// The maximum length of a start in bytes; the value of a lock is a part of it.
const MAX_START: usize = 128 * 1024;

/// The maximum number of unsent messages: a supervisor that stands still receives no more signals.
const MAX_UNSENT: usize = 64;

/// The start of a supervisor.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Start {
    /// The first deadline, in nanoseconds of the boot clock; `None` without a hold.
    pub deadline: Option<u64>,
    /// As in [`Terms`].
    pub covers_descendants: bool,
    /// The lock-delay of the hold's session in milliseconds.
    pub lock_delay: u64,
    /// The process group that the command joins, instead of a new one.
    pub group: Option<i32>,
    /// Additions to the environment of the command.
    pub environment: Vec<(String, String)>,
    /// The hold, which is given back if the guard is dead.
    pub hold: Option<HoldToEnd>,
}

/// A hold, as far as another process needs it to end it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldToEnd {
    /// The address of the agent.
    pub address: String,
    /// The token of requests.
    pub token: Option<String>,
    /// The keys of the locks, or the prefix of a semaphore.
    pub names: Vec<String>,
    /// The number of slots; `None` for a lock.
    pub slots: Option<u32>,
    /// The value and the flags that the release of a lock writes.
    pub value: Vec<u8>,
    /// See `value`.
    pub flags: u64,
    /// The session.
    pub session: String,
}

impl Start {
    /// Returns the terms of the supervision.
    pub fn terms(&self) -> Terms {
        Terms {
            deadline: self.deadline.map(Moment::from_nanos),
            covers_descendants: self.covers_descendants,
            lock_delay: Duration::from_millis(self.lock_delay),
        }
    }
}

/// One end of a socket.
#[derive(Debug)]
pub struct Channel {
    socket: UnixStream,
    unsent: VecDeque<Message>,
}

/// Returns both ends of a new socket. They are closed on exec, so that no other child process keeps
/// one open.
///
/// # Errors
/// The system has no more files.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends a start with the command's standard input.
///
/// # Errors
/// It was not sent.
pub fn send_start<T: Serialize>(
    socket: impl AsFd,
    start: &T,
    input: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(start)?;
    if bytes.len() > MAX_START {
        return Err(io::Error::other("the value of the lock is too long for its supervisor"));
    }
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut files = SendAncillaryBuffer::new(&mut space);
    if !input.as_slice().is_empty() && !files.push(SendAncillaryMessage::ScmRights(input.as_slice())) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut files, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Waits for the start and the command's standard input; `None` if the sender is dead.
///
/// # Errors
/// This is not the socket of a sender.
pub fn receive_start<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut files = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = vec![0; MAX_START];
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut files, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let input = files.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Ok(Some((serde_json::from_slice(&bytes[..received.bytes])?, input)))
}

impl Channel {
    /// Uses one end of a socket for messages.
    ///
    /// # Errors
    /// The system refuses to watch it.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = StdUnixStream::from(socket);
        socket.set_nonblocking(true)?;
        // Only its readiness is used: its packets keep their borders.
        Ok(Self { socket: UnixStream::from_std(socket)?, unsent: VecDeque::new() })
    }

    /// Sends a start: see [`send_start`].
    ///
    /// # Errors
    /// It was not sent.
    pub fn send_start<T: Serialize>(&self, start: &T, input: Option<BorrowedFd<'_>>) -> io::Result<()> {
        send_start(&self.socket, start, input)
    }

    /// Sends a message, or keeps it until there is room. A newer deadline replaces an unsent one.
    pub fn send(&mut self, message: Message) {
        if let Message::Deadline(_) = message {
            self.unsent.retain(|unsent| !matches!(unsent, Message::Deadline(_)));
        }
        // Other messages are few: a deadline replaces an unsent one, and the rest is sent once.
        if self.unsent.len() < MAX_UNSENT || !matches!(message, Message::Signal(_)) {
            self.unsent.push_back(message);
        }
        self.flush();
    }

    fn flush(&mut self) {
        while let Some(message) = self.unsent.front() {
            let bytes = message.encode();
            let sent = self.socket.try_io(Interest::WRITABLE, || {
                Ok(send(&self.socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?)
            });
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // A process that is gone needs none.
                Ok(_) | Err(_) => self.unsent.pop_front(),
            };
        }
    }

    /// Waits for the next message; `None` if the other process is gone. May be cancelled and called
    /// again.
    pub async fn receive(&mut self) -> Option<Message> {
        loop {
            let interest = match self.unsent.is_empty() {
                true => Interest::READABLE,
                false => Interest::READABLE | Interest::WRITABLE,
            };
            if self.socket.ready(interest).await.ok()?.is_writable() {
                self.flush();
            }
            let mut bytes = [0; LENGTH];
            let received = self
                .socket
                .try_io(Interest::READABLE, || Ok(recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT)?.0));
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(LENGTH) => match Message::decode(&bytes) {
                    Some(message) => return Some(message),
                    // Not one of ours: another version of this program.
                    None => continue,
                },
                // The other process closed its end with unread messages; its own may wait here.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
                Ok(_) | Err(_) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn full_socket_drops_signals_and_stale_deadlines() {
        let (ours, theirs) = pair().expect("the system has files");
        let (mut guard, mut supervisor) =
            (Channel::new(ours).expect("watched"), Channel::new(theirs).expect("watched"));
        let deadline = |seconds| Message::Deadline(Moment::default() + Duration::from_secs(seconds));
        while guard.unsent.len() < MAX_UNSENT {
            guard.send(Message::Signal(10));
        }
        let messages = [deadline(1), Message::Signal(12), deadline(2), Message::HoldEnded];
        messages.into_iter().for_each(|message| guard.send(message));
        let mut received = Vec::new();
        while received.last() != Some(&Message::HoldEnded) {
            let message = tokio::select! {
                message = supervisor.receive() => message.expect("the guard lives"),
                message = guard.receive() => panic!("{message:?} was never sent"),
            };
            received.push(message);
        }
        received.retain(|message| *message != Message::Signal(10));
        assert_eq!(received, [deadline(2), Message::HoldEnded]);
    }
}
