//! A UDP socket for single, unacknowledged datagrams, which carry gossip.

use crate::quic;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use tokio::net::UdpSocket as TokioSocket;

/// The size in bytes of the kernel's buffers: about a thousand datagrams.
const BUFFER_BYTES: usize = 1 << 20;

/// The number of consecutive errors after which a read returns nothing, so that the caller can do
/// other work first.
const MAX_ERRORS: usize = 64;

/// A UDP socket that sends and receives single datagrams.
#[derive(Debug)]
pub struct DatagramSocket {
    arriving: TokioSocket,
    /// The same socket: a send that would block is dropped.
    sending: UdpSocket,
}

impl DatagramSocket {
    /// Binds the socket. Must be called inside a runtime. `[::]` means all IPv4 addresses on a host
    /// without IPv6.
    ///
    /// # Errors
    /// The address is in use, or does not belong to this host. Nothing is bound.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = quic::socket_or_v4(address, BUFFER_BYTES)?;
        // Required by tokio, and by `send`: gossip must not wait for a full buffer.
        socket.set_nonblocking(true)?;
        let sending = socket.try_clone()?;
        Ok(Self { arriving: TokioSocket::from_std(socket)?, sending })
    }

    /// Returns the bound address.
    ///
    /// # Errors
    /// The system does not report it.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.sending.local_addr()
    }

    /// Waits until a datagram has arrived.
    ///
    /// # Errors
    /// The socket is unusable.
    pub async fn arrival(&self) -> io::Result<()> {
        self.arriving.readable().await
    }

    /// Receives a datagram and returns its length; a datagram longer than the buffer is truncated.
    /// `None` if nothing has arrived, or if there are only errors.
    pub fn take(&self, buffer: &mut [u8]) -> Option<usize> {
        first_arrival(|| self.arriving.try_recv(buffer))
    }

    /// Sends a datagram; returns `true` if the kernel accepted it. A rejected datagram is lost,
    /// like any that is dropped on the way.
    pub fn send(&self, datagram: &[u8], to: SocketAddr) -> bool {
        let is_v6 = self.sending.local_addr().is_ok_and(|own| own.is_ipv6());
        let to = match to.ip() {
            // From a socket of both families.
            IpAddr::V4(address) if is_v6 => SocketAddr::new(address.to_ipv6_mapped().into(), to.port()),
            _ => to,
        };
        self.sending.send_to(datagram, to).is_ok()
    }
}

fn first_arrival(mut receive: impl FnMut() -> io::Result<usize>) -> Option<usize> {
    for _ in 0..MAX_ERRORS {
        match receive() {
            Ok(length) => return Some(length),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            // The error of an earlier datagram, such as a port without a listener.
            Err(_) => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_skipped_up_to_limit() {
        let mut errors = 0;
        let arrival = first_arrival(|| {
            errors += 1;
            if errors < MAX_ERRORS { Err(io::ErrorKind::ConnectionRefused.into()) } else { Ok(5) }
        });
        assert_eq!(arrival, Some(5));
        assert_eq!(first_arrival(|| Err(io::ErrorKind::NotConnected.into())), None);
    }

    #[tokio::test]
    async fn datagrams_cross_address_families() {
        let here = DatagramSocket::bind("[::]:0".parse().expect("an address")).expect("a socket");
        let there = DatagramSocket::bind("127.0.0.1:0".parse().expect("an address")).expect("a socket");
        let mut buffer = [0; 16];
        assert_eq!(there.take(&mut buffer), None);
        assert!(here.send(b"hello", there.local_address().expect("it is bound")));
        there.arrival().await.expect("it arrives");
        assert_eq!(there.take(&mut buffer), Some(5));
        assert_eq!(&buffer[..5], b"hello");
        let port = here.local_address().expect("it is bound").port();
        assert!(there.send(&[7; 100], SocketAddr::from(([127, 0, 0, 1], port))));
        here.arrival().await.expect("it arrives");
        assert_eq!(here.take(&mut buffer), Some(16), "cut");
    }
}
