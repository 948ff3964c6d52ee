//! TCP_NODELAY for the lanes. sqlx 0.9.0 does not set it (transact-rs/sqlx issue 4335; 0.8 did, and so will the version
//! after 0.9.0), and gives nobody its sockets. Without it the end of every statement longer than a packet waits up to
//! 40 ms for the server's acknowledgement: a group of emails took 20 ms instead of 6.
//!
//! So the sockets are found by their numbers: the connections of this process to the database's port. It is asked once
//! per connection of a lane; one that is not found only stays slower.

use std::fs;

use nix::sys::socket::sockopt::TcpNoDelay;
use nix::sys::socket::{SockaddrLike as _, SockaddrStorage, getpeername, setsockopt};

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
    peer.as_sockaddr_in()
        .map(|peer| peer.port())
        .or_else(|| peer.as_sockaddr_in6().map(nix::sys::socket::SockaddrIn6::port))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn connections_to_the_port_are_found() {
        let (ours, theirs) = (TcpListener::bind("127.0.0.1:0"), TcpListener::bind("[::1]:0"));
        let connected = |listener: &TcpListener| {
            TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection")
        };
        let ours = ours.expect("a port");
        let (one, other) = (connected(&ours), theirs.ok().map(|theirs| connected(&theirs)));
        send_at_once(ours.local_addr().expect("an address").port());
        assert!(one.nodelay().expect("a socket"));
        assert!(!other.is_some_and(|other| other.nodelay().expect("a socket")), "others are left alone");
    }
}
