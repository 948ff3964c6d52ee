//! The crash runs: the real binary under load, killed (`kills`), asked to end (`terminate`) or stopped in its tracks
//! (`pause`), and a gateway of several processes whose database server is killed too (`servers`). Then three witnesses
//! are compared: what the clients were told (`load`), what reached the provider (`provider_ledger`) and what the store
//! says (`stored`). `verdict` compares them; `./chaos` runs the long versions.

mod database;
mod faults;
mod fleet;
mod history;
mod http;
mod kills;
mod load;
mod pause;
mod peer;
mod plan;
mod processes;
mod provider_ledger;
mod rig;
mod servers;
mod stored;
mod terminate;
mod verdict;
