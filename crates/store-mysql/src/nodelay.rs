//! TCP_NODELAY for the connections. sqlx 0.9.0 does not set it (transact-rs/sqlx issue 4335; 0.8 did, and so will the
//! version after 0.9.0), and gives nobody its sockets. Without it the end of a statement longer than a packet, or a
//! small packet behind another, waits up to 40 ms for the server's acknowledgement: over TLS, half of the acceptances of 16
//! callers took 60 to 100 ms instead of 25 to 30.
//!
//! So the sockets are found by their numbers: the connections of this process to the database's port. It is asked once
//! per connection; one that is not found only stays slower.

use std::fs;

use nix::sys::socket::sockopt::TcpNoDelay;
use nix::sys::socket::{SockaddrIn6, SockaddrLike as _, SockaddrStorage, getpeername, setsockopt};

/// The open files of this process, by number, on Linux and the BSDs alike.
const OPEN_FILES: &str = "/dev/fd";

/// Makes the connections of this process to that port send what they have at once.
pub fn send_at_once(port: u16) {
    let Ok(files) = fs::read_dir(OPEN_FILES) else { return };
    for number in files.flatten().filter_map(|file| file.file_name().to_str()?.parse().ok()) {
        if getpeername::<SockaddrStorage>(number).is_ok_and(|peer| port_of(&peer) == Some(port)) {
            // A socket that has been closed meanwhile needs nothing.
            let _ = setsockopt(number, TcpNoDelay, &true);
        }
    }
}

fn port_of(peer: &SockaddrStorage) -> Option<u16> {
    peer.family()?;
    let port = peer.as_sockaddr_in().map(|peer| peer.port());
    port.or_else(|| peer.as_sockaddr_in6().map(SockaddrIn6::port))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn connections_to_the_port_are_found() {
        let listen = || TcpListener::bind("127.0.0.1:0").expect("a port");
        let connected = |listener: &TcpListener| {
            TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection")
        };
        let (ours, theirs) = (listen(), listen());
        let (one, other) = (connected(&ours), connected(&theirs));
        send_at_once(ours.local_addr().expect("an address").port());
        assert!(one.nodelay().expect("a socket"));
        assert!(!other.nodelay().expect("a socket"), "others are left alone");
    }
}
