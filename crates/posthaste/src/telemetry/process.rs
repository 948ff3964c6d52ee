//! The process's own numbers, under the names every Prometheus client uses. Linux only; elsewhere there are none.

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use model::Timestamp;

const CPU: &str = "process_cpu_seconds_total";
const MEMORY: &str = "process_resident_memory_bytes";
const OPEN_FILES: &str = "process_open_fds";
const STARTED: &str = "process_start_time_seconds";

/// Linux counts CPU time for programs in hundredths of a second, whatever the kernel does itself.
const TICKS_PER_SEC: u64 = 100;

pub fn describe(started_at: Timestamp) {
    describe_counter!(CPU, Unit::Seconds, "CPU time used by the process, in whole seconds");
    describe_gauge!(MEMORY, Unit::Bytes, "Memory of the process that is in RAM");
    describe_gauge!(OPEN_FILES, "Open files and connections");
    describe_gauge!(STARTED, Unit::Seconds, "When the process was started, in seconds since 1970");
    gauge!(STARTED).set(started_at.millis() as f64 / 1000.0);
}

/// Reads them anew.
pub fn refresh() {
    if let Some(secs) = std::fs::read_to_string("/proc/self/stat").ok().and_then(|stat| cpu_secs(&stat)) {
        counter!(CPU).absolute(secs);
    }
    if let Some(bytes) =
        std::fs::read_to_string("/proc/self/status").ok().and_then(|status| memory_bytes(&status))
    {
        gauge!(MEMORY).set(bytes as f64);
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        gauge!(OPEN_FILES).set(files.count() as f64);
    }
}

/// User and system time are the 14th and 15th field; the second one, a name in parentheses, may hold spaces.
fn cpu_secs(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS_PER_SEC)
}

fn memory_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_where_the_kernel_puts_them() {
        let stat = "42 (post (haste) x) S 1 2 3 4 5 6 7 8 9 10 250 75 0 0 20 0 4 0 100 0 0";
        assert_eq!(cpu_secs(stat), Some(3));
        assert_eq!(cpu_secs("nonsense"), None);
        assert_eq!(memory_bytes("Name:\tx\nVmRSS:\t   2048 kB\n"), Some(2 * 1024 * 1024));
        assert_eq!(memory_bytes(""), None);
    }
}
