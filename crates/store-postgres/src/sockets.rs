//! What the connections to the database need of the operating system, which sqlx 0.9.0 does not ask for, and it gives
//! nobody its sockets.
//!
//! - TCP_NODELAY (transact-rs/sqlx issue 4335; 0.8 set it, and so will the version after 0.9.0). Without it the end of a
//!   statement longer than a packet waits up to 40 ms for the server's acknowledgement. A group of emails took 20 ms instead of 6.
//! - Keepalive, and an end to sending into the void: where packets vanish, the connection ends after some ten seconds and
//!   not after a quarter of an hour.
//!
//! So the sockets are found by their numbers: the connections of this process to the database's port. It is asked once
//! per connection; one that is not found only stays slower.

use std::fs;

use nix::sys::socket::sockopt::{KeepAlive, TcpNoDelay};
use nix::sys::socket::{SockaddrLike as _, SockaddrStorage, getpeername, setsockopt};

/// The open files of this process, by number, on Linux and the BSDs alike.
const OPEN_FILES: &str = "/dev/fd";

/// A silent peer is asked after so long, again and again after the second, and given up after as many questions.
#[cfg(target_os = "linux")]
const KEEPALIVE: (u32, u32, u32) = (5, 2, 3);
/// So long may pass until the other side acknowledges what was sent.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_MS_MAX: u32 = 11_000;

/// Makes the connections of this process to that port send what they have at once, and notice when nobody is there.
pub fn tune(port: u16) {
    let Ok(files) = fs::read_dir(OPEN_FILES) else { return };
    for number in files.flatten().filter_map(|file| file.file_name().to_str()?.parse().ok()) {
        if getpeername::<SockaddrStorage>(number).is_ok_and(|peer| port_of(&peer) == Some(port)) {
            // A socket that has been closed meanwhile needs nothing.
            let _ = setsockopt(number, TcpNoDelay, &true);
            let _ = setsockopt(number, KeepAlive, &true);
            #[cfg(target_os = "linux")]
            notice_silence(number);
        }
    }
}

#[cfg(target_os = "linux")]
fn notice_silence(number: i32) {
    use nix::sys::socket::sockopt::{TcpKeepCount, TcpKeepIdle, TcpKeepInterval, TcpUserTimeout};
    let (idle_secs, every_secs, count) = KEEPALIVE;
    let _ = setsockopt(number, TcpKeepIdle, &idle_secs);
    let _ = setsockopt(number, TcpKeepInterval, &every_secs);
    let _ = setsockopt(number, TcpKeepCount, &count);
    let _ = setsockopt(number, TcpUserTimeout, &UNACKNOWLEDGED_MS_MAX);
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
        tune(ours.local_addr().expect("an address").port());
        assert!(one.nodelay().expect("a socket"));
        let is_asked = nix::sys::socket::getsockopt(std::os::fd::AsRawFd::as_raw_fd(&one), KeepAlive);
        assert!(is_asked.expect("a socket"), "a silent peer is asked whether it lives");
        assert!(!other.is_some_and(|other| other.nodelay().expect("a socket")), "others are left alone");
    }
}
