//! The crash runs: the real binary under load, killed (`kills`), asked to end (`terminate`) or stopped in its tracks
//! (`pause`), and then three witnesses compared: what the clients were told (`load`), what reached the provider
//! (`provider_ledger`) and what the store says (`stored`). `verdict` compares them; `./chaos` runs the long version.

mod database;
mod history;
mod http;
mod kills;
mod load;
mod pause;
mod plan;
mod processes;
mod provider_ledger;
mod rig;
mod stored;
mod terminate;
mod verdict;
