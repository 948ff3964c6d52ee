//! What the system says of a process that runs: its memory, the time it has had, its limit of open files.

use std::time::Duration;

use tokio::process::Command;

/// How the kernel counts a process's time, whatever the machine: the hundredths of a second of `USER_HZ`.
const TICK: Duration = Duration::from_millis(10);

/// The most memory it has had so far, in megabytes.
pub fn memory_peak_mb(process: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("the process exists");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the kernel counts memory");
    let kilobytes: usize = line.trim().trim_end_matches(" kB").parse().expect("a number of kilobytes");
    kilobytes / 1024
}

/// The processor's time it has had so far, of all its threads.
pub fn cpu_time(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("the process exists");
    // The name stands in parentheses and may hold anything; its own and the kernel's time are the 14th and 15th field.
    let (_, fields) = stat.rsplit_once(") ").expect("a name in parentheses");
    let ticks = |field: usize| -> u32 {
        fields.split(' ').nth(field - 3).and_then(|text| text.parse().ok()).expect("a number of ticks")
    };
    TICK * (ticks(14) + ticks(15))
}

/// How many files it may have open from now on; those it has it keeps.
pub async fn limit_open_files(process: u32, most: usize) {
    let limit = format!("--nofile={most}:");
    let set = Command::new("prlimit").args(["--pid", &process.to_string(), &limit]).status().await;
    assert!(set.is_ok_and(|status| status.success()), "prlimit {limit} for process {process}");
}
