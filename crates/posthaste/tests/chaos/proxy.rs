//! The wire between the gateway and its database, which can be cut: a TCP proxy on the loopback. A cut finds
//! transactions half done and commits on their way.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Between two tries to accept, should the machine have run out of something.
const PAUSE: Duration = Duration::from_millis(20);
const BUFFER_BYTES: usize = 16 * 1024;

/// What the wire does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Whole,
    /// Connections are reset, and so is everybody who knocks: the cable of a switch that says so.
    Reset,
    /// Nothing passes and nobody is told. What was on its way goes on when the wire is whole again.
    Silent,
}

pub struct Proxy {
    pub address: SocketAddr,
    wire: watch::Sender<Wire>,
    /// Ends with the proxy, and with it all connections.
    _relaying: JoinSet<()>,
}

impl Proxy {
    pub async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let (wire, watched) = watch::channel(Wire::Whole);
        let mut relaying = JoinSet::new();
        relaying.spawn(accept(listener, to, watched));
        Self { address, wire, _relaying: relaying }
    }

    pub fn set(&self, wire: Wire) {
        self.wire.send_replace(wire);
    }
}

async fn accept(listener: TcpListener, to: SocketAddr, wire: watch::Receiver<Wire>) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((client, _)) => drop(connections.spawn(relay(client, to, wire.clone()))),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// One connection, until either side ends it or the wire does.
async fn relay(mut client: TcpStream, to: SocketAddr, mut wire: watch::Receiver<Wire>) {
    let mut reset = wire.clone();
    let mut server = None;
    let connected = async {
        let _ = wire.wait_for(|wire| *wire == Wire::Whole).await;
        let Ok(stream) = TcpStream::connect(to).await else { return };
        let server = server.insert(stream);
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        tokio::select! {
            () = copy(from_client, to_server, wire.clone()) => {}
            () = copy(from_server, to_client, wire.clone()) => {}
        }
    };
    let is_reset = tokio::select! {
        _ = reset.wait_for(|wire| *wire == Wire::Reset) => true,
        () = connected => false,
    };
    if is_reset {
        // Without a farewell, and what was on its way is lost.
        for stream in [Some(client), server].into_iter().flatten() {
            let _ = stream.set_zero_linger();
        }
    }
}

/// Takes nothing from either side while the wire is silent.
async fn copy(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, mut wire: watch::Receiver<Wire>) {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else { return };
        if wire.wait_for(|wire| *wire == Wire::Whole).await.is_err() {
            return;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers every byte with the same.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let address = listener.local_addr().expect("a listener has an address");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        address
    }

    async fn say(stream: &mut TcpStream, byte: u8) -> std::io::Result<u8> {
        stream.write_u8(byte).await?;
        stream.read_u8().await
    }

    #[tokio::test]
    async fn a_wire_can_be_cut_and_mended() {
        let proxy = Proxy::start(echo().await).await;
        let mut held = TcpStream::connect(proxy.address).await.expect("the proxy listens");
        assert_eq!(say(&mut held, 1).await.expect("the wire is whole"), 1);

        proxy.set(Wire::Silent);
        held.write_u8(2).await.expect("the kernel takes it");
        let nothing = tokio::time::timeout(Duration::from_millis(50), held.read_u8()).await;
        assert!(nothing.is_err(), "nothing passes: {nothing:?}");
        proxy.set(Wire::Whole);
        assert_eq!(held.read_u8().await.expect("what was on its way arrives"), 2);

        proxy.set(Wire::Reset);
        assert!(say(&mut held, 3).await.is_err(), "the connection is gone");
        let mut knocking = TcpStream::connect(proxy.address).await.expect("the proxy listens");
        assert!(say(&mut knocking, 4).await.is_err(), "and no other comes through");

        proxy.set(Wire::Whole);
        let mut again = TcpStream::connect(proxy.address).await.expect("the proxy listens");
        assert_eq!(say(&mut again, 5).await.expect("the wire is whole"), 5);
    }
}
