//! How many connections a process may have by the number of files that the system lets it open. Whoever connects must not
//! take the last of them: the store and the calls to providers need theirs, and an email whose call finds none has lost an
//! attempt.

/// For the store's files or its pool, the log, the runtime and what the dashboard and traces ask for.
const OTHERS: usize = 64;
/// Of the connections that fit, one in so many is kept free to tell others that there are too many.
const REFUSED_SHARE: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    pub connections: usize,
    /// Told to come back at the same time.
    pub refusals: usize,
}

/// What fits of `wanted`. `calls` are the connections to providers that may be open at once. Half of what the system
/// gives is for clients even where it gives too little for all: a gateway that takes nothing in is of no use either.
pub fn places(wanted: Places, open_files_max: Option<usize>, calls: usize) -> Places {
    let Some(most) = open_files_max else { return wanted };
    let rest = (OTHERS + calls).min(most / 2);
    let free = most - rest;
    let refusals = (free / REFUSED_SHARE).min(wanted.refusals);
    Places { connections: (free - refusals).min(wanted.connections), refusals }
}

/// As the system says; `None` where it does not say so in a file.
pub fn open_files_max() -> Option<usize> {
    soft_limit(&std::fs::read_to_string("/proc/self/limits").ok()?)
}

fn soft_limit(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits() {
        let cases = [
            // case                           limit          calls  connections, refusals
            ("nobody knows", None, 64, (4096, 256)),
            ("plenty", Some(1_048_576), 64, (4096, 256)),
            ("what a service has by default", Some(1024), 64, (784, 112)),
            ("few", Some(96), 16, (42, 6)),
            ("more calls than files", Some(1024), 5_000, (448, 64)),
            ("nearly none", Some(4), 64, (2, 0)),
        ];
        for (case, limit, calls, (connections, refusals)) in cases {
            let fitting = places(Places { connections: 4096, refusals: 256 }, limit, calls);
            assert_eq!(fitting, Places { connections, refusals }, "{case}");
        }
    }

    #[test]
    fn the_limit_is_read_as_the_system_writes_it() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max processes             95883                95883                processes \n\
                      Max open files            1024                 1048576              files     \n";
        assert_eq!(soft_limit(limits), Some(1024));
        assert_eq!(soft_limit(&limits.replace("1024 ", "unlimited ")), None, "no bound");
        assert_eq!(soft_limit(""), None);
    }
}
