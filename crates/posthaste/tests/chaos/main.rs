//! The crash runs: the real binary under load, killed (`kills`), asked to end (`terminate`), stopped in its tracks
//! (`pause`), brought down by an email (`poison`), left without room (`full_disk`) or with its power cut (`power`), and a
//! gateway of several processes whose database server is killed too (`servers`). Then three witnesses are compared: what
//! the clients were told (`load`), what reached the provider (`provider_ledger`) and what the store says (`stored`).
//! `verdict` compares them; `./chaos` runs the long versions. `backup` restores what was copied under the same load.
//! `unheard` loses one answer of the database. Beside the crashes: more load than it can take (`overload`), no files left
//! to open (`descriptors`), and one company with a backlog among many without (`neighbours`).

mod backup;
mod database;
mod descriptors;
mod disk;
mod faults;
mod fleet;
mod full_disk;
mod history;
mod http;
mod kills;
mod load;
mod neighbours;
mod overload;
mod pause;
mod peer;
mod plan;
mod poison;
mod power;
mod processes;
mod provider_ledger;
mod rig;
mod servers;
mod stored;
mod terminate;
mod unheard;
mod verdict;
mod watch;
