//! A database server of the run's own, made by the scripts in tests/peers: killed by its process id, started again on
//! the same files, and gone with the run, however that ends.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use tokio::process::Command;

use crate::processes::free_port;

/// Recovery after a kill took up to 4 seconds on two cores; the scripts themselves give up after a minute.
const VERB_MAX: Duration = Duration::from_secs(90);
/// Names the folder of the scripts.
const SCRIPTS: &str = "POSTHASTE_TEST_PEERS";
/// Names a folder whose servers the whole run of tests ends, should we not come to it.
const RUN: &str = "POSTHASTE_TEST_PEERS_RUN";

/// What becomes of the server's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Files {
    Deleted,
    Kept,
}

pub struct Peer {
    script: PathBuf,
    folder: PathBuf,
    port: u16,
    /// Set when the server was ended in good order.
    is_over: bool,
}

impl Peer {
    /// A new, empty server: `name` is that of its script.
    pub async fn start(name: &str, folder: &Path) -> Self {
        let scripts = std::env::var_os(SCRIPTS).map(PathBuf::from);
        let scripts =
            scripts.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/peers"));
        let port = free_port();
        // The names of the folders in the run's folder begin with that of the script.
        let folder = match std::env::var_os(RUN) {
            Some(run) => Path::new(&run).join(format!("{name}-chaos-{port}")),
            None => folder.join(name),
        };
        let peer = Self { script: scripts.join(format!("{name}.sh")), folder, port, is_over: false };
        peer.verb("start", Some(port)).await;
        peer
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Of its superuser, by way of whoever listens on that port.
    pub async fn url(&self, port: u16) -> String {
        let printed = run(self.script().arg("url").arg(port.to_string())).await;
        String::from_utf8_lossy(&printed.stdout).trim().to_owned()
    }

    /// SIGKILL for the whole server. PostgreSQL's other processes notice by themselves; `recover` waits for that.
    pub async fn kill(&self) {
        let printed = self.verb("pid", None).await;
        let id: u32 = printed.trim().parse().unwrap_or_else(|_| panic!("not a process id: {printed}"));
        run(Command::new("sh").args(["-c", "kill -s KILL \"$0\"", &id.to_string()])).await;
    }

    /// Starts it again on what the kill has left; returns when it takes connections.
    pub async fn recover(&self) {
        self.verb("start", Some(self.port)).await;
    }

    pub async fn end(mut self, files: Files) {
        self.verb(if files == Files::Kept { "stop" } else { "remove" }, None).await;
        self.is_over = true;
    }

    fn script(&self) -> Command {
        let mut command = Command::new(&self.script);
        command.stdin(std::process::Stdio::null());
        command
    }

    async fn verb(&self, verb: &str, port: Option<u16>) -> String {
        let mut command = self.script();
        command.arg(verb).arg(&self.folder).args(port.map(|port| port.to_string()));
        String::from_utf8_lossy(&run(&mut command).await.stdout).into_owned()
    }
}

impl Drop for Peer {
    /// After a panic: nobody waits for us any more, and the server must not stay.
    fn drop(&mut self) {
        if !self.is_over {
            let _ = std::process::Command::new(&self.script).arg("stop").arg(&self.folder).output();
        }
    }
}

/// Runs to its end, in time and with success.
async fn run(command: &mut Command) -> Output {
    let output = tokio::time::timeout(VERB_MAX, command.output()).await;
    let Ok(output) = output else { panic!("{command:?} takes longer than {VERB_MAX:?}") };
    let output = output.unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}"));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {complaint}", output.status);
    output
}
