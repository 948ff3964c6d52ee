//! The wire between a store and its server, which can be cut: a TCP proxy on the loopback. A cut finds transactions half
//! done and commits on their way.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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
    /// The same, but the connections of before never pass anything again: the firewall on the way has forgotten them.
    HalfOpen,
    /// Once a client has said these words, what the server says to it is lost, and nobody is told; it hears everything.
    /// Without words, it is so from the next on. Connections are made as ever.
    DeafAfter(&'static str),
}

/// What the wire does, and how often it has forgotten its connections.
#[derive(Debug, Clone, Copy)]
struct State {
    wire: Wire,
    forgotten: u64,
}

pub struct Proxy {
    pub address: SocketAddr,
    state: watch::Sender<State>,
    deaf: Arc<AtomicUsize>,
    /// Ends with the proxy, and with it all connections.
    _relaying: JoinSet<()>,
}

impl Proxy {
    pub async fn start(to: SocketAddr) -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST, to).await
    }

    /// At another address of this machine.
    pub async fn start_at(ip: Ipv4Addr, to: SocketAddr) -> Self {
        let listener = TcpListener::bind((ip, 0)).await.expect("a port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let (state, watched) = watch::channel(State { wire: Wire::Whole, forgotten: 0 });
        let (mut relaying, deaf) = (JoinSet::new(), Arc::default());
        relaying.spawn(accept(listener, to, watched, Arc::clone(&deaf)));
        Self { address, state, deaf, _relaying: relaying }
    }

    pub fn set(&self, wire: Wire) {
        self.state.send_modify(|state| {
            state.wire = wire;
            state.forgotten += u64::from(wire == Wire::HalfOpen);
        });
    }

    /// How many connections have fallen deaf so far.
    pub fn deaf(&self) -> usize {
        self.deaf.load(Ordering::SeqCst)
    }
}

async fn accept(
    listener: TcpListener,
    to: SocketAddr,
    state: watch::Receiver<State>,
    deaf: Arc<AtomicUsize>,
) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((client, _)) => drop(connections.spawn(relay(client, to, state.clone(), Arc::clone(&deaf)))),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// One connection, until either side ends it or the wire does.
async fn relay(
    mut client: TcpStream,
    to: SocketAddr,
    mut state: watch::Receiver<State>,
    deaf: Arc<AtomicUsize>,
) {
    let mut reset = state.clone();
    let mut server = None;
    let connected = async {
        let Some(known) = passes(&mut state, None, lets_through).await else { return };
        let Ok(stream) = TcpStream::connect(to).await else { return };
        let server = server.insert(stream);
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let is_deaf = AtomicBool::new(false);
        let listen = |said: &[u8]| {
            let wire = state.borrow().wire;
            let falls_deaf = matches!(wire, Wire::DeafAfter(words) if contains(said, words.as_bytes()));
            if falls_deaf && !is_deaf.swap(true, Ordering::SeqCst) {
                deaf.fetch_add(1, Ordering::SeqCst);
            }
        };
        tokio::select! {
            () = copy(from_client, to_server, state.clone(), known, |said| { listen(said); true }) => {}
            () = copy(from_server, to_client, state.clone(), known, |_| !is_deaf.load(Ordering::SeqCst)) => {}
        }
    };
    let is_reset = tokio::select! {
        _ = reset.wait_for(|state| state.wire == Wire::Reset) => true,
        () = connected => false,
    };
    if is_reset {
        // Without a farewell, and what was on its way is lost.
        for stream in [Some(client), server].into_iter().flatten() {
            let _ = stream.set_zero_linger();
        }
    }
}

/// Waits until the wire is one of these, and says how often it has forgotten its connections by then. A connection that
/// was known before it forgot waits for ever. None when the proxy has ended.
async fn passes(
    state: &mut watch::Receiver<State>,
    known: Option<u64>,
    when: impl Fn(Wire) -> bool,
) -> Option<u64> {
    let is_good =
        |state: &State| when(state.wire) && known.is_none_or(|forgotten| forgotten == state.forgotten);
    state.wait_for(is_good).await.ok().map(|state| state.forgotten)
}

fn lets_through(wire: Wire) -> bool {
    matches!(wire, Wire::Whole | Wire::DeafAfter(_))
}

fn contains(said: &[u8], words: &[u8]) -> bool {
    words.is_empty() || said.windows(words.len()).any(|window| window == words)
}

/// Takes nothing more from a side that is not heard.
async fn copy(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut state: watch::Receiver<State>,
    known: u64,
    is_heard: impl Fn(&[u8]) -> bool,
) {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else { return };
        if passes(&mut state, Some(known), lets_through).await.is_none() {
            return;
        }
        if !is_heard(&buffer[..length]) {
            std::future::pending::<()>().await;
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

        proxy.set(Wire::HalfOpen);
        again.write_u8(6).await.expect("the kernel takes it");
        proxy.set(Wire::Whole);
        let mut anew = TcpStream::connect(proxy.address).await.expect("the proxy listens");
        assert_eq!(say(&mut anew, 7).await.expect("the wire is whole"), 7);
        let nothing = tokio::time::timeout(Duration::from_millis(50), again.read_u8()).await;
        assert!(nothing.is_err(), "it was forgotten: {nothing:?}");
    }

    async fn say_to(from: &mut TcpStream, to: &mut TcpStream, byte: u8) -> u8 {
        from.write_u8(byte).await.expect("the kernel takes it");
        to.read_u8().await.expect("it arrives")
    }

    #[tokio::test]
    async fn a_deaf_wire_lets_the_server_hear() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let proxy = Proxy::start(listener.local_addr().expect("a listener has an address")).await;
        let mut client = TcpStream::connect(proxy.address).await.expect("the proxy listens");
        let (mut server, _) = listener.accept().await.expect("a connection");
        proxy.set(Wire::DeafAfter("x"));
        assert_eq!(say_to(&mut server, &mut client, 1).await, 1, "nobody has said the word");
        client.write_u8(b'x').await.expect("the kernel takes it");
        assert_eq!(server.read_u8().await.expect("it hears"), b'x');
        server.write_u8(2).await.expect("the kernel takes it");
        let nothing = tokio::time::timeout(Duration::from_millis(50), client.read_u8()).await;
        assert!(nothing.is_err(), "the answer is lost: {nothing:?}");
        let mut another = TcpStream::connect(proxy.address).await.expect("the proxy listens");
        let (mut server, _) = listener.accept().await.expect("another connection");
        assert_eq!(say_to(&mut server, &mut another, 3).await, 3, "this one has not said it");
    }
}
