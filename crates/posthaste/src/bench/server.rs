//! The server that is measured: this very program as a process of its own, with a fresh database.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

/// How long a server may take to answer `readyz`, and to end.
const START_TRIES: u32 = 500;
const START_PAUSE: Duration = Duration::from_millis(10);
const STOP_WAIT: Duration = Duration::from_secs(40);
/// The kernel counts processor time in hundredths of a second on every Linux in use.
const TICKS_PER_SEC: f64 = 100.0;

pub struct Server {
    child: Child,
    pub address: SocketAddr,
}

/// What a server has used so far.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    pub cpu_secs: f64,
    pub peak_mb: f64,
}

impl Server {
    /// Starts `serve --role ROLE` on the configuration in `folder` and waits until it is ready.
    pub async fn start(folder: &Path, role: &str) -> anyhow::Result<Self> {
        let address = free_address().await?;
        let program = std::env::current_exe().context("cannot find this program")?;
        let child = Command::new(program)
            .args(["serve", "--role", role, "--config"])
            .arg(folder.join("posthaste.toml"))
            .env("POSTHASTE_LISTEN", address.to_string())
            .env("POSTHASTE_WORKER__LISTEN", address.to_string())
            // For an endpoint on this machine; nobody's.
            .env("AWS_ACCESS_KEY_ID", "bench")
            .env("AWS_SECRET_ACCESS_KEY", "bench")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the server")?;
        let mut server = Self { child, address };
        server.wait_until_ready().await?;
        Ok(server)
    }

    async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        for _ in 0..START_TRIES {
            if let Some(status) = self.child.try_wait()? {
                bail!("the server ended at once ({status}); run `posthaste serve` to see why");
            }
            if is_ready(self.address).await {
                return Ok(());
            }
            tokio::time::sleep(START_PAUSE).await;
        }
        bail!("the server was not ready within {:?}", START_PAUSE * START_TRIES)
    }

    /// Processor time and peak memory, as Linux counts them.
    pub fn usage(&self) -> anyhow::Result<Usage> {
        let pid = self.child.id().context("the server has ended")?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("cannot read /proc")?;
        let after_name = stat.rsplit_once(')').context("/proc is not as expected")?.1;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        let ticks: f64 = fields
            .get(11..13)
            .context("/proc is not as expected")?
            .iter()
            .flat_map(|text| text.parse::<f64>())
            .sum();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let peak_kb: f64 = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .and_then(|text| text.trim().trim_end_matches(" kB").parse().ok())
            .context("/proc is not as expected")?;
        Ok(Usage { cpu_secs: ticks / TICKS_PER_SEC, peak_mb: peak_kb / 1024.0 })
    }

    /// Ends it as an operator would.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        let pid = self.child.id().context("the server has ended")?;
        Command::new("kill").args(["-TERM", &pid.to_string()]).status().await.context("cannot run kill")?;
        tokio::time::timeout(STOP_WAIT, self.child.wait()).await.context("the server does not end")??;
        Ok(())
    }
}

async fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0").await?.local_addr()?)
}

async fn is_ready(address: SocketAddr) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await?;
        Ok::<_, std::io::Error>(answer.ends_with(b"200"))
    };
    ask.await.unwrap_or(false)
}
