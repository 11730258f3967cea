//! An HTTP server that checks look at: well or not, as the test decides.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// The server. It ends when dropped.
#[derive(Debug)]
pub struct HttpTarget {
    address: SocketAddr,
    is_well: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl HttpTarget {
    /// Starts it on a free port; it is well.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (is_well, is_over) = (Arc::new(AtomicBool::new(true)), Arc::<AtomicBool>::default());
        let (answered, ending) = (Arc::clone(&is_well), Arc::clone(&is_over));
        let serve = move || {
            for stream in listener.incoming().flatten() {
                if ending.load(Ordering::Relaxed) {
                    return;
                }
                answer(stream, answered.load(Ordering::Relaxed));
            }
        };
        Self { address, is_well, is_over, thread: Some(thread::spawn(serve)) }
    }

    /// Returns its URL.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Lets it answer 200 or 503 from now on.
    pub fn set_well(&self, is_well: bool) {
        self.is_well.store(is_well, Ordering::Relaxed);
    }
}

impl Drop for HttpTarget {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Wakes it up.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers the request of one connection. A client that goes away gets no answer.
fn answer(mut stream: TcpStream, is_well: bool) {
    let (mut request, mut part) = (Vec::new(), [0; 1024]);
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut part) {
            Ok(read) if read > 0 => request.extend_from_slice(&part[..read]),
            _ => return,
        }
    }
    let status = if is_well { "200 OK" } else { "503 Service Unavailable" };
    let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{Address, Client};

    #[test]
    fn responds_with_configured_health() {
        let target = HttpTarget::start();
        let client = Client { address: Address::Tcp(target.address) };
        client.get("/").expect(200);
        target.set_well(false);
        client.get("/").expect(503);
    }
}
